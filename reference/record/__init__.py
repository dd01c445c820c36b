"""The recorder: the only code that writes fixtures."""
