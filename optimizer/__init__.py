"""The rooms of layoutopt, from the ground up: specs, topology, cost, space, solve and what stands on them."""
