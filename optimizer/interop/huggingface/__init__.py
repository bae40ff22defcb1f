"""Importer of Hugging Face ``config.json`` files."""
