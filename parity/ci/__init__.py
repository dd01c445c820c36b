"""What `python -m parity ci` adds to a check: a summary, annotations and a badge, as GitHub shows them."""
