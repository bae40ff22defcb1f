"""A run against its plan: utilisation, measured terms of a step, their differences, causes and constants."""
