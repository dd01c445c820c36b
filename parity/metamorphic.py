"""Relations that hold exactly, whatever the numbers: no reference is needed to check them.

Permuting the batch permutes every output along it and changes nothing else. Permuting the actions permutes every
output along them. Where layers treat trajectories one by one, a batch may be split. A step after a terminal one cannot
reach back over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from parity.check import cast
from parity.implementation import Implementation
from parity.layers.draw import draw, generator
from parity.layers.spec import Arrays, Layer, Settings, Spec

TOLERANCE = 1e-11  # of the output's scale: sums are taken in another order


def axes_of(spec: Spec, letter: str) -> list[int]:
    """Axes whose size is the letter itself."""
    return [axis for axis, dim in enumerate(spec.dims) if dim == letter]


def permute(arrays: Arrays, specs: Mapping[str, Spec], letter: str, order: np.ndarray) -> Arrays:
    """Reorders every axis of a letter; indices into it are renamed along."""
    place = np.argsort(order).astype(np.int32)
    out = {}
    for name, value in arrays.items():
        spec = specs[name]
        if spec.kind == "int" and spec.below == letter:
            value = place[value]
        for axis in axes_of(spec, letter):
            value = np.take(value, order, axis=axis)
        out[name] = value
    return out


def uses(specs: Mapping[str, Spec], letter: str) -> bool:
    """Whether any array has an axis of the letter."""
    return any(axes_of(spec, letter) for spec in specs.values())


def _independent_of_parameters(layer: Layer, settings: Settings) -> bool:
    return not any("/mlp/" in f"/{name}/" and "params/" in name for name in layer.inputs(settings))


@dataclass(frozen=True)
class Relation:
    """A named relation: whether it holds for a layer, and what the outputs must be when the inputs are changed."""

    name: str
    applies: Callable[[Layer, Settings], bool]
    check: Callable[[Implementation, Layer, Settings], str]


def _inputs(layer: Layer, settings: Settings) -> Arrays:
    rng = generator(layer.name, "metamorphic")
    drawn = {name: draw(spec, settings, rng) for name, spec in layer.inputs(settings).items()}
    return cast(drawn, "float64")


def _difference(expected: Arrays, got: Arrays) -> str:
    for name, ref in expected.items():
        scale = max(float(np.abs(ref.astype(np.float64)).max(initial=0.0)), 1e-300)
        error = float(np.abs(got[name].astype(np.float64) - ref).max(initial=0.0))
        if not error <= TOLERANCE * scale:
            return f"{name} differs by {error / scale:.3g} of its scale"
    return ""


def _permuted(letter: str) -> Callable[[Implementation, Layer, Settings], str]:
    def check(candidate: Implementation, layer: Layer, settings: Settings) -> str:
        inputs = _inputs(layer, settings)
        order = generator(layer.name, "order").permutation(settings[letter])
        changed = permute(inputs, layer.inputs(settings), letter, order)
        plain = candidate.run(layer.name, inputs, settings, "float64")
        got = candidate.run(layer.name, cast(changed, "float64"), settings, "float64")
        return _difference(permute(plain, layer.outputs(settings), letter, order), got)

    return check


def _split(candidate: Implementation, layer: Layer, settings: Settings) -> str:
    inputs, specs, outputs = _inputs(layer, settings), layer.inputs(settings), layer.outputs(settings)
    whole = candidate.run(layer.name, inputs, settings, "float64")
    first = settings["B"] // 2
    for start, stop in ((0, first), (first, settings["B"])):
        part = {**settings, "B": stop - start}
        given = {name: _range(value, specs[name], start, stop) for name, value in inputs.items()}
        got = candidate.run(layer.name, cast(given, "float64"), part, "float64")
        problem = _difference({name: _range(v, outputs[name], start, stop) for name, v in whole.items()}, got)
        if problem:
            return problem
    return ""


def _range(value: np.ndarray, spec: Spec, start: int, stop: int) -> np.ndarray:
    for axis in axes_of(spec, "B"):
        value = np.take(value, np.arange(start, stop), axis=axis)
    return value


def _step_after_terminal(candidate: Implementation, layer: Layer, settings: Settings) -> str:
    longer = {**settings, "T": settings["T"] + 1}
    inputs = _inputs(layer, longer)
    for name in ("is_terminal", "continues"):
        if name in inputs:
            inputs[name][settings["T"] - 1] = name == "is_terminal"
    specs = layer.inputs(settings)
    shorter = {name: value[tuple(slice(n) for n in specs[name].shape(settings))] for name, value in inputs.items()}
    long = candidate.run(layer.name, inputs, longer, "float64")
    short = candidate.run(layer.name, cast(shorter, "float64"), settings, "float64")
    # What belongs to the bootstrap step of the shorter trajectory is not compared: it is another step in the longer.
    steps = settings["T"]
    return _difference({k: v[:steps] for k, v in short.items()}, {k: v[:steps] for k, v in long.items()})


POOLED = ("transforms/normalize", "values/outs", "moving_average/update", "meta/rnn", "meta/whole")
BY_TRAJECTORY = ("values/retrace", "values/estimate_q", "nets/unroll", "meta/trajectory_rnn")


def _batch_permutes(layer: Layer, settings: Settings) -> bool:
    return uses(layer.inputs(settings), "B") and settings.get("B", 1) > 1


def _batch_splits(layer: Layer, settings: Settings) -> bool:
    outputs = layer.outputs(settings)
    every = all(axes_of(spec, "B") for spec in outputs.values())
    return _batch_permutes(layer, settings) and every and layer.name not in POOLED


def _actions_permute(layer: Layer, settings: Settings) -> bool:
    groups = ("transforms/", "ops/", "values/", "meta/", "disco/agent_loss", "actor_critic/", "policy_gradient/")
    free = layer.name.startswith(groups)
    return free and uses(layer.inputs(settings), "A") and settings.get("A", 1) > 1


RELATIONS = (
    Relation("batch_permuted", _batch_permutes, _permuted("B")),
    Relation("batch_split", _batch_splits, _split),
    Relation("actions_permuted", _actions_permute, _permuted("A")),
    Relation("step_after_a_terminal", lambda layer, s: layer.name in BY_TRAJECTORY, _step_after_terminal),
)
