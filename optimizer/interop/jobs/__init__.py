"""Importers of launch files: a training framework's flags or configuration to model, layout and batch."""
