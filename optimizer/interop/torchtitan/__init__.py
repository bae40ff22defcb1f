"""Launch files of torchtitan: ``read`` brings them in, ``write`` hands them out."""
