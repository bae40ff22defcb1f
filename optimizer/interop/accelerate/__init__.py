"""Launch files of Hugging Face accelerate: ``read`` brings them in, ``write`` hands them out."""
