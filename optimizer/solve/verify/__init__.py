"""Verification of a plan on a path that shares no bound and no solver with the search."""
