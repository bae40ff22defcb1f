"""Reasons: why a layout is invalid, does not fit or is slow, what would help, and what a wish costs."""
