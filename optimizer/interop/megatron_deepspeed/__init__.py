"""Launch files of Megatron-DeepSpeed: ``read`` brings them in, ``write`` hands them out."""
