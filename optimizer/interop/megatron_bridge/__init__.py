"""Launch files of Megatron-Bridge: ``read`` brings them in, ``write`` hands them out."""
