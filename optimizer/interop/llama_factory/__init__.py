"""LLaMA-Factory: fine-tuning on the Hugging Face trainer, or on Megatron-LM."""
