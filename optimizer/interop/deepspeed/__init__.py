"""Launch files of DeepSpeed: ``read`` brings them in, ``write`` hands them out."""
