"""Exporters: a layout to a framework's launch configuration, or the reason why it has none."""
