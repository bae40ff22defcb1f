"""Importers of what describes machines: schedulers, interconnects, collective benchmarks, graphs."""
