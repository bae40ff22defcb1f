"""Launch files of nanotron: ``read`` brings them in, ``write`` hands them out."""
