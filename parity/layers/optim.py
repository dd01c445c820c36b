"""Layers of the optimiser: Adam's direction, its update of parameters, and averaged target parameters."""

from __future__ import annotations

import numpy as np

from parity.layers import edits, params
from parity.layers.cases import PLAIN
from parity.layers.params import tree
from parity.layers.spec import Arrays, Case, Edit, Settings, Spec, index, register

TREE: params.Shapes = {"first/w": (4, 3), "first/b": (3,), "second/w": (2, 5)}


def optimiser_state(shapes: params.Shapes, scale: float = 0.1) -> dict[str, Spec]:
    """Specs of Adam's state: step count and both moments."""
    return {
        "opt/count": index("", below=30),
        **tree("opt/mu", shapes, differentiable=True, scale=scale),
        **tree("opt/nu", shapes, differentiable=True, draw="positive", scale=scale**2),
    }


def zeroed(*prefixes: str) -> Edit:
    """Sets all inputs to zero whose names begin so."""

    def edit(inputs: Arrays, settings: Settings) -> Arrays:
        return {name: np.zeros_like(x) if name.startswith(prefixes) else x for name, x in inputs.items()}

    return edit


FRESH_OPTIMISER = zeroed("opt/")


register(
    "optim/adam",
    "Adam's direction with debiased moments; the denominator's gradient is stopped.",
    {**tree("grads", TREE, differentiable=True, scale=0.3), **optimiser_state(TREE)},
    {**tree("updates", TREE), **optimiser_state(TREE)},
    {"b1": 0.9, "b2": 0.999, "eps": 1e-8},
    (
        PLAIN,
        Case("first_step", edits=(FRESH_OPTIMISER,)),
        Case("zero_gradient", edits=(edits.filled(0.0, "grads/first/w"), FRESH_OPTIMISER)),
        Case("tiny_gradient", edits=(edits.scaled(1e-7, "grads/first/w", "grads/first/b"), FRESH_OPTIMISER)),
        Case("other_decays", {"b1": 0.5, "b2": 0.9, "eps": 1e-4}),
    ),
)
register(
    "optim/update",
    "Adam's direction, clipped, times minus the learning rate, added to the parameters.",
    {
        **tree("params", TREE, differentiable=True),
        **tree("grads", TREE, differentiable=True, scale=0.3),
        **optimiser_state(TREE),
    },
    {**tree("params", TREE), **tree("updates", TREE), **optimiser_state(TREE)},
    {"learning_rate": 0.01, "max_abs_update": 1.0},
    (
        PLAIN,
        Case("first_step", edits=(FRESH_OPTIMISER,)),
        Case("clipped", {"max_abs_update": 0.25}),
        Case("large_gradient", edits=(edits.scaled(1e4, "grads/first/w"),)),
    ),
    ("optim/adam",),
)
register(
    "optim/target_average",
    "coeff times the target parameters plus (1 - coeff) times the online ones.",
    {**tree("target", TREE, differentiable=True), **tree("online", TREE, differentiable=True)},
    tree("target", TREE),
    {"target_params_coeff": 0.9},
    (PLAIN, Case("slow", {"target_params_coeff": 0.995}), Case("copy", {"target_params_coeff": 0.0})),
)
