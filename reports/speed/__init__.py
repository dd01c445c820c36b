"""Timings of the port, the original and disco-torch in one run."""
