"""Inputs from a seed: the same bits on every machine, and every value exact in float32.

Only `Generator.random` and `integers` are used, with sums and products of their results, so that no mathematical
library can change a digit. Being exact in float32, an input is the same number in both precisions, and a float32
result may be held against the float64 truth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from parity.layers.spec import Arrays, Case, Draw, Layer, Settings, Spec, size


def generator(*names: str) -> np.random.Generator:
    """A generator that depends on nothing but the given names."""
    digest = hashlib.sha256("/".join(names).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def as_single(values: np.ndarray) -> np.ndarray:
    """Rounds to float32 and gives float64 back."""
    return values.astype(np.float32).astype(np.float64)


def bell(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Bell-shaped noise of mean 0 and variance 1: four uniforms added up."""
    return as_single((rng.random((4, *shape)).sum(axis=0) - 2.0) * np.sqrt(3.0))


def _simplex(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    weights = 0.05 + rng.random(shape)
    return weights / weights.sum(axis=-1, keepdims=True)


DRAWN: dict[Draw, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": bell,
    "uniform": lambda rng, shape: rng.random(shape),
    "positive": lambda rng, shape: 0.05 + rng.random(shape),
    "simplex": _simplex,
    "zero_one": lambda rng, shape: (rng.random(shape) < 0.8).astype(np.float64),
}


def draw(spec: Spec, settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Fills one input as its spec says."""
    shape = spec.shape(settings)
    if spec.kind == "int":
        return rng.integers(0, size(spec.below, settings), shape, dtype=np.int32)
    if spec.kind == "bool":
        return rng.random(shape) < 0.2
    return as_single(spec.scale * DRAWN[spec.draw](rng, shape))


def case_inputs(layer: Layer, case: Case, *seed: str) -> Arrays:
    """Makes the inputs of a generated case: ints, bools, and floats in float64.

    Without a seed these are the recorded inputs; with one, others that are awkward in the same way.
    """
    settings = layer.case_settings(case)
    rng = generator(layer.name, case.name, *seed)
    inputs = {name: draw(spec, settings, rng) for name, spec in layer.inputs(settings).items()}
    for edit in case.edits:
        inputs = edit(inputs, settings)
    return inputs


def case_cotangents(layer: Layer, case: str, settings: Settings) -> Arrays:
    """Cotangents for the float outputs of a case; logs get none, since nothing is learned through them."""
    rng = generator(layer.name, case, "cotangents")
    return {
        name: bell(rng, spec.shape(settings))
        for name, spec in sorted(layer.outputs(settings).items())
        if spec.kind == "float" and not name.startswith("log/")
    }


NEVER_NEGATIVE = ("/nu/", "moment2", "/m2/")


def jittered(inputs: Arrays, dtype: str, rng: np.random.Generator) -> Arrays:
    """Every float moved by one unit in the last place, up or down; zeros by 1e-30, second moments only upwards."""

    def move(name: str, value: np.ndarray) -> np.ndarray:
        if value.dtype.kind != "f":
            return value
        up = rng.integers(0, 2, value.shape).astype(bool)
        near = np.nextafter(value.astype(dtype), np.where(up, np.inf, -np.inf).astype(dtype))
        moved = np.where(value == 0, np.where(up, 1e-30, -1e-30), near.astype(np.float64))
        return _allowed(name, moved)

    return {name: move(name, value) for name, value in inputs.items()}


def _allowed(name: str, value: np.ndarray) -> np.ndarray:
    return np.abs(value) if any(part in f"/{name}/" for part in NEVER_NEGATIVE) else value
