"""Built-in cluster files, one YAML each."""
