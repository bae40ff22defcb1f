"""Primus: AMD's launcher of Megatron-LM and torchtitan."""
