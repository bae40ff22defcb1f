"""axolotl: fine-tuning on PyTorch FSDP or DeepSpeed."""
