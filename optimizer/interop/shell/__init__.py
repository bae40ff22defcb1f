"""Shell scripts read without running them: what configures a job is evaluated, what depends on the outside stays open."""
