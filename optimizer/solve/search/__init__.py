"""The search: lower bounds on layouts, and the order in which tuples are expanded and solved."""
