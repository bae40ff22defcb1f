"""Built-in model files, one YAML each."""
