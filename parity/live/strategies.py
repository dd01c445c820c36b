"""Hypothesis strategies: for each layer, inputs of a fixed menu of sizes, with edges in the values.

A sample is a case of the registry (its sizes, its terminals, ties and bounds), a seed, and a few more edges laid over
the drawn numbers; so it shrinks to the smallest size, to the first seed and to no edges at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from parity.layers.draw import as_single
from parity.layers.spec import Arrays, Case, Layer, Settings
from parity.live.comparison import Sample, drawn

HEAVY = (
    "meta/rnn",
    "meta/whole",
    "disco/unroll_meta_net",
    "agent/loss",
    "agent/learner_step",
    "agent/learner_steps",
    "agent/actor_critic_step",
    "meta_train/value_fn",
    "meta_train/outer_loss",
    "meta_train/second_derivative",
    "distributed/value_fn",
)
SIZES, SIZES_OF_HEAVY = 3, 1
SEEDS = 2**16


def menu(layer: Layer, most: int | None = None) -> list[Case]:
    """The cases that samples are made after, the smallest first: stored ones, of at most so many different settings.

    Every new setting costs the reference a compilation; `most` says how many may be paid for.
    """
    stored = [case for case in layer.cases if case.stored]
    different: list[Settings] = []
    for settings in map(layer.case_settings, stored):
        if settings not in different:
            different.append(settings)
    smallest = sorted(different[1:], key=lambda settings: _volume(layer, settings))
    count = most or (SIZES_OF_HEAVY if layer.name in HEAVY else SIZES)
    chosen = [different[0], *smallest[: count - 1]]
    cases = [case for case in stored if layer.case_settings(case) in chosen]
    return sorted(cases, key=lambda case: _volume(layer, layer.case_settings(case)))


def _volume(layer: Layer, settings: Settings) -> int:
    return sum(int(np.prod(spec.shape(settings))) for spec in layer.inputs(settings).values())


@dataclass(frozen=True)
class Edge:
    """One way in which drawn numbers are made awkward."""

    name: str
    apply: Callable[[np.ndarray], np.ndarray]
    kind: str = "float"


def _tie(values: np.ndarray) -> np.ndarray:
    out = values.copy()
    if out.ndim and out.shape[-1] > 1:
        out[..., 1] = out[..., 0]
    return out


def _first(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def set_first(values: np.ndarray) -> np.ndarray:
        out = values.copy()
        out.reshape(-1)[:1] = value
        return out

    return set_first


EDGES = (
    Edge("zeros", np.zeros_like),
    Edge("ties", _tie),
    Edge("first_zero", _first(0.0)),
    Edge("first_two", _first(2.0)),
    Edge("saturated", lambda v: as_single(30.0 * v)),
    Edge("huge", lambda v: as_single(1e3 * v)),
    Edge("tiny", lambda v: as_single(1e-4 * v)),
    Edge("all", np.ones_like, kind="bool"),
    Edge("none", np.zeros_like, kind="bool"),
    Edge("same_index", np.zeros_like, kind="int"),
)
CONSTRAINED = ("simplex", "zero_one", "positive", "uniform")  # probabilities and ratios are left as drawn
KIND = {"f": "float", "b": "bool", "i": "int"}


def may_have_edges(name: str, layer: Layer) -> bool:
    """Parameters and states keep what is drawn: a moving average of zeros or a negative second moment means nothing."""
    as_drawn = ("params/", "noise/", "state/", "_ema/", "opt/", "uniform", "gumbel")
    return not any(part in name for part in as_drawn) and not (layer.name.startswith("nets/") and name in ("w", "b"))


def edged(inputs: Arrays, choices: list[tuple[int, int]], layer: Layer) -> Arrays:
    """Lays chosen edges over inputs; each choice is (which input, which edge)."""
    names = [name for name in inputs if may_have_edges(name, layer)]
    out = dict(inputs)
    for which, edge_index in choices:
        if not names:
            break
        name = names[which % len(names)]
        fitting = [edge for edge in EDGES if edge.kind == KIND[out[name].dtype.kind]]
        spec = layer.inputs(layer.settings).get(name)
        if spec is None or spec.draw not in CONSTRAINED:
            out[name] = fitting[edge_index % len(fitting)].apply(out[name])
    return out


def samples(layer: Layer, sizes: int | None = None) -> st.SearchStrategy[Sample]:
    """Samples of a layer, at so many different settings."""
    choice = st.tuples(st.integers(0, 63), st.integers(0, 63))

    def make(case: Case, seed: int, choices: list[tuple[int, int]]) -> Sample:
        plain = drawn(layer, case, seed)
        how = f"{plain.how}, edges {choices}" if choices else plain.how
        return replace(plain, inputs=edged(plain.inputs, choices, layer), how=how)

    return st.builds(make, st.sampled_from(menu(layer, sizes)), st.integers(0, SEEDS - 1), st.lists(choice, max_size=3))
