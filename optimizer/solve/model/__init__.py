"""The CP-SAT model of a slice of tuples: variables, constraints, objective."""
