"""Trainers as data: one record per framework, one registry."""
