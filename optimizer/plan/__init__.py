"""Training budget, failures and checkpoints, and the rule-of-thumb recipe."""
