"""The registry of layers, in data-flow order (the order of these imports)."""

# ruff: noqa: I001
from parity.layers import elementary, networks, values, vtrace, metanet, optim, learning, rules
from parity.layers import environments, metatraining, distributed
from parity.layers.spec import REGISTRY, Arrays, Case, Layer, Settings, Spec

__all__ = ["REGISTRY", "Arrays", "Case", "Layer", "Settings", "Spec"]

del elementary, networks, values, vtrace, metanet, optim, learning, rules, environments, metatraining, distributed
