"""The awkward inputs: small functions that change what the generator made, by name of the input."""

from __future__ import annotations

import numpy as np

from parity.layers.draw import as_single
from parity.layers.spec import Arrays, Edit, Settings


def terminal(where: str, name: str = "is_terminal") -> Edit:
    """Terminals at the `first`, `middle` or `last` step, at `every` one, or at `none`.

    A float input of 0 and 1 (`continues`, `discounts`) means the opposite polarity and is set accordingly.
    """

    def edit(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
        old = inputs[name]
        ends = np.zeros(old.shape, bool)
        steps = old.shape[0]
        rows = {"first": [0], "middle": [steps // 2], "last": [steps - 1], "every": range(steps), "none": []}
        ends[list(rows[where])] = True
        return {**inputs, name: ends if old.dtype == bool else (~ends).astype(old.dtype)}

    return edit


def scaled(factor: float, *names: str) -> Edit:
    """Multiplies inputs: saturated logits, rewards past the two-hot range, tiny values."""

    def edit(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
        return {**inputs, **{name: as_single(factor * inputs[name]) for name in names}}

    return edit


def filled(value: float, *names: str) -> Edit:
    """Makes inputs constant."""

    def edit(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
        return {**inputs, **{name: np.full_like(inputs[name], value) for name in names}}

    return edit


def same_as(source: str, *names: str) -> Edit:
    """Copies one input over others, e.g. behaviour equal to the online policy: every ratio is 1."""

    def edit(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
        return {**inputs, **{name: inputs[source].copy() for name in names}}

    return edit


def tied(name: str, axis: int) -> Edit:
    """Repeats the first slice along `axis` in the second: ties between two actions."""

    def edit(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
        values = np.moveaxis(inputs[name].copy(), axis, 0)
        if len(values) > 1:
            values[1] = values[0]
        return {**inputs, name: np.moveaxis(values, 0, axis)}

    return edit


def holding(name: str, *values: float) -> Edit:
    """Writes given numbers over the first elements: zeros, bounds, bin edges."""

    def edit(inputs: Arrays, settings: Settings, rng: np.random.Generator) -> Arrays:
        array = inputs[name].copy()
        count = min(len(values), array.size)
        array.reshape(-1)[:count] = as_single(np.asarray(values[:count], np.float64))
        return {**inputs, name: array}

    return edit
