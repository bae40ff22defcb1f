"""Importers and exporters of other tools' files."""
