"""A learner step, layer by layer: what reaches each layer, and whose error it is."""
