"""Makes a failing input smaller and plainer, as long as the same output of the same layer still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from parity.layers.draw import as_single
from parity.layers.spec import Arrays, Layer, Settings, Spec
from parity.live import Sample

Fails = Callable[[Sample], bool]
SMALLEST = {"T": 1, "B": 1, "A": 2}


def shrink(layer: Layer, sample: Sample, fails: Fails) -> Sample:
    """Smallest sizes first, then plainest values; every step keeps the failure."""
    sample = _smaller_sizes(layer, sample, fails)
    return _plainer_values(sample, fails)


def _smaller_sizes(layer: Layer, sample: Sample, fails: Fails) -> Sample:
    for letter, least in SMALLEST.items():
        if letter not in sample.settings:
            continue
        for size in range(least, sample.settings[letter]):
            cut = _cut(layer, sample, letter, size)
            if cut is not None and fails(cut):
                sample = cut
                break
    return sample


def _cut(layer: Layer, sample: Sample, letter: str, size: int) -> Sample | None:
    """The first `size` entries along a letter; None where a parameter's shape depends on it."""
    settings = {**sample.settings, letter: size}
    inputs = {}
    for name, spec in layer.inputs(settings).items():
        old, shape = sample.inputs[name], spec.shape(settings)
        if not _depends(spec, letter) and old.shape != shape:
            return None
        kept = old[tuple(slice(n) for n in shape)]
        inputs[name] = kept % size if spec.kind == "int" and spec.below == letter else kept
    return Sample(settings, inputs, sample.label)


def _depends(spec: Spec, letter: str) -> bool:
    return any(isinstance(dim, str) and letter in dim for dim in spec.dims)


def _plain_versions(value: np.ndarray) -> Iterator[np.ndarray]:
    yield np.zeros_like(value)
    if value.dtype.kind == "f":
        yield np.ones_like(value)
        yield np.round(value)
        yield as_single(np.round(value, 1))


def _plainer_values(sample: Sample, fails: Fails) -> Sample:
    for name in list(sample.inputs):
        for plain in _plain_versions(sample.inputs[name]):
            if np.array_equal(plain, sample.inputs[name]):
                break
            tried = _with(sample, name, plain)
            if fails(tried):
                sample = tried
                break
    return sample


def _with(sample: Sample, name: str, value: np.ndarray) -> Sample:
    inputs: Arrays = {**sample.inputs, name: value}
    settings: Settings = sample.settings
    return Sample(settings, inputs, sample.label)
