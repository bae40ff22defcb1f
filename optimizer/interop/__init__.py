"""Files of other tools in, launch configurations out. Nothing is loaded before it is asked for."""
