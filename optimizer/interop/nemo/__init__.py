"""NVIDIA NeMo: configurations and scripts of NeMo 1, recipes of NeMo 2."""
