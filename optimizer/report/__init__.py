"""Terminal tables, JSON, HTML and plots."""
