"""Goldens: stored, loaded, checked, and shown as tables."""
