"""Measured runs: tables, validation, calibration."""
