"""Bounds, the CP-SAT model, the certificate and its independent verification."""
