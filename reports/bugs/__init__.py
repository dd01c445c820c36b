"""Mutation testing: the kill matrix, and what is killed in low precision."""
