"""slime: reinforcement learning whose actor Megatron-LM trains."""
