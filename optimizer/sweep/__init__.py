"""Many solves: executors, store, resume."""
