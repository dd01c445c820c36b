"""Training runs: specified, executed, recorded and compared."""
