"""Goldens made by hand, and a folder of fixtures that holds some."""

import hashlib

import numpy as np

from parity.files import write_atomically
from parity.goldens import manifests
from parity.goldens.store import FORMAT, Golden, Store, describe, file_name, layer_bytes
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.sigma import Rounding
from parity.tolerance import RECORDED

LAYER = "transforms/identity"  # one input `x`, one output `out`, of the same shape
SIGMA = 1e-3  # in units of the rounding, so that it is far below the floor


def sigmas(truth, kind, units=SIGMA):
    """Sigma of so many roundings at each p."""
    return {bits: np.full(truth.shape, units * 2.0**-bits) for bits in RECORDED[kind]}


def golden(values=None, *, vjp=None, case="plain", sigma=None, rounding=None, **more):
    """A golden of the identity: truth, VJP and sigma as given, else drawn; sigma is in roundings."""
    layer = REGISTRY[LAYER]
    settings = layer.case_settings(layer.cases[0])
    x = case_inputs(layer, layer.cases[0])["x"]
    out = np.asarray(x if values is None else np.broadcast_to(values, x.shape)).copy()
    vjps = {} if vjp is None else {"x": np.broadcast_to(np.asarray(vjp, np.float64), x.shape).copy()}
    if rounding is None:
        units = SIGMA if sigma is None else sigma
        found = {
            "value": {"out": sigmas(out, "value", units)},
            "vjp": {k: sigmas(v, "vjp", units) for k, v in vjps.items()},
        }
        rounding = Rounding(found)
    fields = {
        "origin": "generated",
        "meta_params": "seeded",
        "inputs": {"x": x},
        "cotangents": {"out": np.ones(x.shape)},
    }
    return Golden(LAYER, case, settings, outputs={"out": out}, vjps=vjps, rounding=rounding, **(fields | more))


class Answers:
    """An implementation of the identity that gives what it was made with."""

    name, description, layers = "answers", "", {LAYER}

    def __init__(self, values, vjps=None):
        self.values, self.vjps, self.asked_in = values, vjps, []

    def run(self, layer, inputs, settings, dtype):
        self.asked_in.append(dtype)
        return {"out": self.values.astype(dtype)}

    def vjp(self, layer, inputs, settings, dtype, cotangents, wrt):
        self.asked_in.append(dtype)
        return {name: self.vjps.astype(dtype) for name in wrt}


def write(root, *goldens):
    """Fixtures that hold some goldens of one layer."""
    content = layer_bytes(list(goldens))
    layer = goldens[0].layer
    write_atomically(root / "golden" / file_name(layer), content)
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "cases": {g.case: describe(g) for g in goldens}}
    manifest = {"format": FORMAT, "order": [layer], "layers": {layer: entry}}
    write_atomically(root / "manifest.json", manifests.as_bytes(manifest))
    return Store(root)
