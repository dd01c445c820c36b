"""Relations that hold whatever the numbers, but for rounding: a candidate is compared with itself.

Permuting the batch permutes every output along it and changes nothing else. Permuting the actions permutes every
output along them. Where layers treat trajectories one by one, a batch may be split. A step after a terminal one cannot
reach back over it.

Inputs are those of a golden, so that sigma is known of each number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from parity.compare import compare
from parity.goldens.judge import run
from parity.goldens.store import Golden
from parity.implementation import Implementation
from parity.layers.draw import draw, generator
from parity.layers.spec import Arrays, Case, Layer, Settings, Spec
from parity.sketch import reduced
from parity.tolerance import PRECISIONS


def axes_of(spec: Spec, letter: str) -> list[int]:
    """Axes whose size is the letter itself."""
    return [axis for axis, dim in enumerate(spec.dims) if dim == letter]


def taken(arrays: Arrays, specs: Mapping[str, Spec], letter: str, rows: np.ndarray) -> Arrays:
    """Some entries, or all in another order, of every axis of a letter."""
    out = {}
    for name, value in arrays.items():
        for axis in axes_of(specs[name], letter):
            value = np.take(value, rows, axis=axis)
        out[name] = value
    return out


def permute(arrays: Arrays, specs: Mapping[str, Spec], letter: str, order: np.ndarray) -> Arrays:
    """Reorders every axis of a letter; indices into it are renamed along."""
    place = np.argsort(order).astype(np.int32)
    indices = {
        name: place[x] for name, x in arrays.items() if specs[name].kind == "int" and specs[name].below == letter
    }
    return taken({**arrays, **indices}, specs, letter, order)


def uses(specs: Mapping[str, Spec], letter: str) -> bool:
    """Whether any array has an axis of the letter."""
    return any(axes_of(spec, letter) for spec in specs.values())


@dataclass(frozen=True)
class Relation:
    """A named relation: whether it holds for a layer, and what the outputs must be when the inputs are changed."""

    name: str
    applies: Callable[[Layer, Settings], bool]
    check: Callable[[Implementation, Layer, Golden], str]
    case: str = ""

    def template(self, layer: Layer) -> Case | None:
        """The recorded case whose inputs are used; None where the relation does not apply."""
        case = next((case for case in layer.cases if case.name == (self.case or layer.cases[0].name)), None)
        return case if case and self.applies(layer, layer.case_settings(case)) else None


def _sigmas(golden: Golden) -> Arrays:
    return {name: golden.sigma("value", name, PRECISIONS["float64"]) for name in golden.outputs}


def _difference(golden: Golden, expected: Arrays, got: Arrays, sigmas: Arrays) -> str:
    """What differs by more than the rule allows."""
    for name, ref in expected.items():
        where = (golden.layer, golden.case, name)
        row = compare(where, "value", "float64", reduced(ref), got[name], sigmas[name], ref.shape)
        if not row.equal:
            return row.sentence()
    return ""


def _permuted(letter: str) -> Callable[[Implementation, Layer, Golden], str]:
    def check(candidate: Implementation, layer: Layer, golden: Golden) -> str:
        settings, specs = golden.settings, layer.outputs(golden.settings)
        order = generator(layer.name, "order").permutation(settings[letter])
        changed = permute(golden.inputs, layer.inputs(settings), letter, order)
        plain, got = run(candidate, golden), run(candidate, replace(golden, inputs=changed))
        sigmas = taken(_sigmas(golden), specs, letter, order)
        return _difference(golden, permute(plain, specs, letter, order), got, sigmas)

    return check


def _split(candidate: Implementation, layer: Layer, golden: Golden) -> str:
    settings = golden.settings
    inputs, outputs = layer.inputs(settings), layer.outputs(settings)
    whole, middle = run(candidate, golden), settings["B"] // 2
    for rows in (np.arange(middle), np.arange(middle, settings["B"])):
        part = replace(golden, inputs=taken(golden.inputs, inputs, "B", rows), settings={**settings, "B": len(rows)})
        expected, sigmas = (taken(arrays, outputs, "B", rows) for arrays in (whole, _sigmas(golden)))
        if problem := _difference(golden, expected, run(candidate, part), sigmas):
            return problem
    return ""


def _step_after_terminal(candidate: Implementation, layer: Layer, golden: Golden) -> str:
    """The golden's last step is terminal; one more step, drawn here, must not be seen from before it."""
    settings = golden.settings
    longer, rng = {**settings, "T": settings["T"] + 1}, generator(layer.name, "one more step")
    inputs = {name: draw(spec, longer, rng) for name, spec in layer.inputs(longer).items()}
    for name, value in golden.inputs.items():
        inputs[name][tuple(slice(n) for n in value.shape)] = value
    long, short = run(candidate, replace(golden, inputs=inputs, settings=longer)), run(candidate, golden)
    # What belongs to the bootstrap step of the shorter trajectory is not compared: it is another step in the longer.
    expected, got, sigmas = (
        {k: v[: settings["T"]] for k, v in arrays.items()} for arrays in (short, long, _sigmas(golden))
    )
    return _difference(golden, expected, got, sigmas)


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
    Relation(
        "step_after_a_terminal", lambda layer, s: layer.name in BY_TRAJECTORY, _step_after_terminal, "terminal_last"
    ),
)
