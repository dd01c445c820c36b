"""Hypothesis strategies: for each layer, inputs of a fixed menu of sizes, with edges in the values.

A sample is a case of the registry (its sizes, its terminals, ties and bounds), a seed, and a few more edges laid over
the drawn numbers; so it shrinks to the smallest size, to the first seed and to no edges at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from hypothesis import strategies as st

from parity.layers import edits
from parity.layers.spec import Case, Edit, Layer, Settings
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


# Ways in which the numbers of an input are made awkward, by its kind.
EDGES: dict[str, list[Callable[[str], Edit]]] = {
    "float": [
        partial(edits.filled, 0.0),
        partial(edits.tied, axis=-1),
        lambda name: edits.holding(name, 0.0),
        lambda name: edits.holding(name, 2.0),
        partial(edits.scaled, 30.0),
        partial(edits.scaled, 1e3),
        partial(edits.scaled, 1e-4),
    ],
    "bool": [partial(edits.filled, 1), partial(edits.filled, 0)],
    "int": [partial(edits.filled, 0)],
}
CONSTRAINED = ("simplex", "zero_one", "positive", "uniform")  # probabilities and ratios are left as drawn


def may_have_edges(name: str, layer: Layer) -> bool:
    """Parameters and states keep what is drawn: a moving average of zeros or a negative second moment means nothing."""
    as_drawn = ("params/", "noise/", "state/", "_ema/", "opt/", "uniform", "gumbel")
    return not any(part in name for part in as_drawn) and not (layer.name.startswith("nets/") and name in ("w", "b"))


def edged(sample: Sample, choices: list[tuple[int, int]], layer: Layer) -> Sample:
    """Lays chosen edges over the inputs of a sample; each choice is (which input, which edge)."""
    specs, inputs = layer.inputs(sample.settings), sample.inputs
    names = [name for name in inputs if may_have_edges(name, layer)]
    for which, edge in choices if names else ():
        name = names[which % len(names)]
        fitting = EDGES[specs[name].kind]
        if specs[name].draw not in CONSTRAINED:
            inputs = fitting[edge % len(fitting)](name)(inputs, sample.settings)
    return replace(sample, inputs=inputs, how=f"{sample.how}, edges {choices}") if choices else sample


def samples(layer: Layer, sizes: int | None = None) -> st.SearchStrategy[Sample]:
    """Samples of a layer, at so many different settings."""
    choice = st.tuples(st.integers(0, 63), st.integers(0, 63))

    def make(case: Case, seed: int, choices: list[tuple[int, int]]) -> Sample:
        return edged(drawn(layer, case, seed), choices, layer)

    return st.builds(make, st.sampled_from(menu(layer, sizes)), st.integers(0, SEEDS - 1), st.lists(choice, max_size=3))
