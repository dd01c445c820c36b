"""Examples of training, each a short program: `python -m port.examples.own_network`."""
