"""Event simulation of pipeline schedules, and its trace."""
