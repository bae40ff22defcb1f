"""The cluster as a graph: mesh orderings, process groups, and the price of a collective on a group."""
