"""Launch files of Megatron-LM: ``read`` brings them in, ``write`` hands them out."""
