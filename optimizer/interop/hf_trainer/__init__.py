"""Training scripts of Hugging Face's Trainer, started by accelerate, torchrun or deepspeed."""
