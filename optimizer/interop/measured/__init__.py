"""Importers of what a run left behind: step logs and out-of-memory messages."""
