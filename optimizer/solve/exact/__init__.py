"""The exact optimum of one tuple's stages by dynamic programming, without the solver."""
