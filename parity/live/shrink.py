"""Makes a failing input smaller and plainer, as long as the same output of the layer still fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from parity.layers.draw import as_single
from parity.layers.spec import Layer, Spec
from parity.live.comparison import Sample

Fails = Callable[[Sample], bool]
SMALLEST = {"T": 1, "B": 1, "A": 2}
SECONDS = 60.0


def shrink(layer: Layer, sample: Sample, fails: Fails, seconds: float = SECONDS) -> Sample:
    """Smallest sizes first, then plainest values; every step keeps the failure.

    Args:
        layer: what fails.
        sample: where it fails.
        fails: whether another sample fails in the same way.
        seconds: when to stop looking; a new size costs the reference a compilation.
    """
    end = time.monotonic() + seconds
    for smaller in (_smaller_sizes, _plainer_values):
        tries = smaller(layer, sample)
        while time.monotonic() < end and (tried := next(tries, None)):
            if fails(tried):
                sample, tries = tried, smaller(layer, tried)
    return sample


def _smaller_sizes(layer: Layer, sample: Sample) -> Iterator[Sample]:
    """The sample cut along one letter, the smallest first."""
    for letter, least in SMALLEST.items():
        for size in range(least, sample.settings.get(letter, 0)):
            cut = _cut(layer, sample, letter, size)
            if cut is not None:
                yield cut


def _cut(layer: Layer, sample: Sample, letter: str, size: int) -> Sample | None:
    """The first `size` entries along a letter; None where a parameter's shape depends on it."""
    settings = {**sample.settings, letter: size}
    inputs = {}
    for name, spec in layer.inputs(settings).items():
        old, shape = sample.inputs[name], spec.shape(settings)
        if not _depends(spec, letter) and old.shape != shape:
            return None
        part = old[tuple(slice(n) for n in shape)]
        if spec.draw == "simplex":
            part = as_single(part / part.sum(axis=-1, keepdims=True))
        inputs[name] = part % size if spec.kind == "int" and spec.below == letter else part
    return replace(sample, settings=settings, inputs=inputs, how=f"{sample.how}; cut to {letter} = {size}")


def _depends(spec: Spec, letter: str) -> bool:
    return any(isinstance(dim, str) and letter in dim for dim in spec.dims)


def _plainer_values(layer: Layer, sample: Sample) -> Iterator[Sample]:
    """The sample with one input made plainer; probabilities, moments and the like stay as they were drawn."""
    specs = layer.inputs(sample.settings)
    for name, value in sample.inputs.items():
        if specs[name].kind == "float" and specs[name].draw != "normal":
            continue
        for plain in _plain_versions(value):
            if _plainness(plain) < _plainness(value):
                how = f"{sample.how}; plainer {name}"
                yield replace(sample, inputs={**sample.inputs, name: plain}, how=how)


def _plain_versions(value: np.ndarray) -> Iterator[np.ndarray]:
    yield np.zeros_like(value)
    if value.dtype.kind == "f":
        yield np.ones_like(value)
        yield np.round(value)
        yield as_single(np.round(value, 1))


def _plainness(value: np.ndarray) -> int:
    """How much there is to read: digits of the numbers that are not zero."""
    shown = value.reshape(-1).astype(np.float32)
    return int(np.count_nonzero(shown)) + sum(len(f"{x:g}") for x in np.unique(shown)[:64])
