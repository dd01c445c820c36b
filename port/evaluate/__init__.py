"""Trains fresh agents on Catch by a rule, as the `eval` notebook does: `python -m port.evaluate --help`."""
