"""verl: reinforcement learning whose actor Megatron-LM or PyTorch FSDP trains."""
