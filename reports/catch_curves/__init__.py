"""Learning curves on Catch over seeds, with statistics."""
