"""The awkward inputs: small functions that change what the generator made, by name of the input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parity.layers.draw import as_single
from parity.layers.spec import Arrays, Edit, Settings


def changed(change: Callable[[np.ndarray], np.ndarray], *names: str) -> Edit:
    """Applies a function to some inputs, which it leaves as they are."""

    def edit(inputs: Arrays, settings: Settings) -> Arrays:
        return {**inputs, **{name: change(inputs[name]) for name in names}}

    return edit


def terminal(where: str, name: str = "is_terminal") -> Edit:
    """Terminals at the `first`, `middle` or `last` step, at `every` one, or at `none`.

    A float input of 0 and 1 (`continues`, `discounts`) means the opposite polarity and is set accordingly.
    """

    def change(old: np.ndarray) -> np.ndarray:
        ends, steps = np.zeros(old.shape, bool), len(old)
        rows = {"first": [0], "middle": [steps // 2], "last": [steps - 1], "every": range(steps), "none": []}
        ends[list(rows[where])] = True
        return ends if old.dtype == bool else (~ends).astype(old.dtype)

    return changed(change, name)


def scaled(factor: float, *names: str) -> Edit:
    """Multiplies inputs: saturated logits, rewards past the two-hot range, tiny values."""
    return changed(lambda values: as_single(factor * values), *names)


def filled(value: float, *names: str) -> Edit:
    """Makes inputs constant."""
    return changed(lambda values: np.full_like(values, value), *names)


def same_as(source: str, name: str) -> Edit:
    """Copies one input over another, e.g. behaviour equal to the online policy: every ratio is 1."""

    def edit(inputs: Arrays, settings: Settings) -> Arrays:
        return {**inputs, name: inputs[source].copy()}

    return edit


def tied(name: str, axis: int) -> Edit:
    """Repeats the first slice along `axis` in the second: ties between two actions."""

    def change(old: np.ndarray) -> np.ndarray:
        new = old.copy()
        if new.ndim and new.shape[axis] > 1:
            slices = np.moveaxis(new, axis, 0)
            slices[1] = slices[0]
        return new

    return changed(change, name)


def holding(name: str, *values: float) -> Edit:
    """Writes given numbers over the first elements: zeros, bounds, bin edges."""

    def change(old: np.ndarray) -> np.ndarray:
        new = old.copy()
        new.reshape(-1)[: len(values)] = as_single(np.array(values[: new.size], np.float64))
        return new

    return changed(change, name)
