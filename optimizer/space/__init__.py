"""The declared space: axes, validity rules per framework, enumeration."""
