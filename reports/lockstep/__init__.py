"""Training runs of port and original, compared action by action."""
