"""The commands of the terminal: one module each, with a click command called ``command``."""
