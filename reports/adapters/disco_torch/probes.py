"""Functions of `disco-torch` that are not a layer of the registry, judged all the same.

V-trace is judged live against the original's `estimate_values`, where the original is installed; the second inverse of
the signed hyperbolic on the goldens of that inverse.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace

import numpy as np
import torch
from disco_torch import utils

from parity.check import load as load_case
from parity.compare import Row, compare
from parity.layers import REGISTRY
from parity.layers.draw import bell, generator
from parity.layers.spec import Arrays
from parity.store import Accuracy, Store
from reports.adapters.disco_torch.inputs import default_dtype
from reports.adapters.disco_torch.values import vtrace

VTRACE = "V-trace (live)"
INVERSE = "inverse_signed_hyperbolic (unused)"
SETTINGS = {"discount": 0.997, "lambda": 0.95}


def unit_normal(T: int = 9, B: int = 4) -> Arrays:
    """Inputs of V-trace: rewards, values and log ratios of mean 0 and variance 1, one terminal."""
    rng = generator("probe", VTRACE)
    continues = np.ones((T, B))
    continues[T // 2, 0] = 0.0
    return {
        "rewards": bell(rng, (T, B)),
        "target_values": bell(rng, (T + 1, B)),
        "continues": continues,
        "rho": np.exp(bell(rng, (T, B))),
    }


def original_vtrace(x: Arrays) -> Arrays:
    """The original's own V-trace, in float64."""
    jax = importlib.import_module("jax")
    value_utils = importlib.import_module("disco_rl.value_fns.value_utils")
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        actions = np.zeros(x["rewards"].shape, np.int32)
        values = x["target_values"]
        outs = value_utils.estimate_values(
            x["rewards"], actions, x["continues"], x["rho"], values, values, SETTINGS["discount"], SETTINGS["lambda"]
        )
        return {"errors": np.asarray(outs.td), "adv": np.asarray(outs.adv)}


def vtrace_rows() -> list[Row]:
    """V-trace's errors and advantages; nothing where the original is not installed."""
    if importlib.util.find_spec("disco_rl") is None or importlib.util.find_spec("jax") is None:
        return []
    x = unit_normal()
    with default_dtype(torch.float64):
        got = vtrace({name: torch.from_numpy(value) for name, value in x.items()}, SETTINGS)
    return [
        compare(
            (VTRACE, "unit_normal", name), "value", "float64", ref, got[name].numpy(), Accuracy(np.abs(ref).max(), 0.0)
        )
        for name, ref in original_vtrace(x).items()
    ]


def inverse_rows(store: Store) -> list[Row]:
    """The second inverse on the goldens of the first."""
    layer, found = "ops/signed_parabolic", []
    if not hasattr(utils, "inverse_signed_hyperbolic") or layer not in REGISTRY:
        return []
    for case in store.cases(layer):
        golden = load_case(store, layer, case)
        got = utils.inverse_signed_hyperbolic(torch.from_numpy(golden.inputs["x"].copy())).numpy()
        accuracy = golden.accuracy["value"]["out"]
        row = compare((layer, case, "out"), "value", "float64", golden.outputs["float64"]["out"], got, accuracy)
        found.append(replace(row, layer=INVERSE))
    return found


def rows(store: Store) -> list[Row]:
    """All of these comparisons."""
    return [*vtrace_rows(), *inverse_rows(store)]
