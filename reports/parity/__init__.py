"""The parity table, its pictures and their data."""
