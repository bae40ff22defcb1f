"""ms-swift: Megatron-LM behind keys with underscores."""
