"""Tries to kill a mutant by each tier of checks, in data-flow order up to the first layer that differs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from parity.compare import Row
from parity.goldens.judge import BOTH, Judge
from parity.goldens.store import Golden, Store
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.mutants import PORT, Mutant, catalogue
from parity.mutants.coverage import Entered, entered, is_reached, stored_goldens
from parity.mutants.mutate import load_edited

LEARNER_STEPS = "agent/learner_steps"  # one layer, and a tier of its own
STORED = ("values", "gradients", "learner_steps")
TIERS = (*STORED, "live")
NOT_RUN = "not run"


@dataclass(frozen=True)
class Kill:
    """How one mutant was killed, or that it survived.

    Attributes:
        mutant: its name.
        named: the layer at which it should be killed.
        layers: tier -> first layer that differs; empty if none does; NOT_RUN where the tier did not run.
        checks: tier -> the comparison that killed it.
        cases: tier -> the case that killed it.
        seconds: tier -> how long it took, up to the kill or to the end.
        raised: tier -> layer and comparison in which it raised an error that is not its mistake.
    """

    mutant: str
    named: str
    layers: dict[str, str] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    raised: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def broken(self) -> str:
        """The comparison in which it raised an error before numbers differ at any layer; empty if it did not."""
        order = list(REGISTRY).index
        differing = [order(layer) for layer in self.layers.values() if layer not in ("", NOT_RUN)]
        first = min(self.raised.values(), key=lambda place: order(place[0]), default=None)
        return first[1] if first and order(first[0]) <= min(differing, default=len(REGISTRY)) else ""

    @property
    def killed_by(self) -> list[str]:
        """The tiers that killed it; none where it is broken."""
        return [] if self.broken else [tier for tier in TIERS if self.layers.get(tier, "") not in ("", NOT_RUN)]

    @property
    def first(self) -> str:
        """The first layer that differs in data-flow order, over all tiers; empty for a survivor."""
        order = list(REGISTRY)
        return min((self.layers[tier] for tier in self.killed_by), key=order.index, default="")

    @property
    def is_at_named(self) -> bool:
        """Whether it was killed at the layer named."""
        return self.first == self.named

    def note(self, tier: str, row: Row | None, seconds: float) -> None:
        """Adds the outcome of a tier."""
        self.seconds[tier] = seconds
        if row and catalogue()[self.mutant].is_broken(row):
            self.raised[tier], row = (row.layer, row.sentence()), None
        self.layers[tier] = row.layer if row else ""
        if row:
            self.checks[tier], self.cases[tier] = row.sentence(), row.case

    def as_json(self) -> dict[str, Any]:
        """The kill for machines."""
        mutant = catalogue()[self.mutant]
        about = {"mutant": mutant.name, "subject": mutant.subject, "origin": mutant.origin, "layer_named": self.named}
        verdict = {"killed": bool(self.killed_by), "first_layer": self.first, "at_layer_named": self.is_at_named}
        verdict["raised"] = next((sentence for _, sentence in self.raised.values()), "")
        tiers = {f"{tier}_layer": self.layers.get(tier, "") for tier in TIERS}
        times = {f"{tier}_seconds": round(self.seconds.get(tier, 0.0), 4) for tier in TIERS}
        return {**about, **verdict, **tiers, **times, "check": next(iter(self.checks.values()), "")}


@lru_cache(maxsize=1)
def opened_store() -> Store:
    """The goldens of this process."""
    return Store()


@cache
def _goldens(layer: str) -> list[Golden]:
    return stored_goldens(opened_store(), layer)


@lru_cache(maxsize=1)
def unchanged() -> Implementation:
    """The port as it is."""
    return load_edited(PORT, ())


def reached_by(layer: str) -> Entered:
    """The functions of the unchanged port that a layer enters."""
    return entered(opened_store(), unchanged(), layer)


@dataclass(frozen=True)
class PreparedLayer:
    """A layer of the unchanged port: the functions that it enters, and how it differs.

    Where it differs without a mutant, a kill proves nothing.
    """

    layer: str
    enters: Entered
    differences: list[str]


def prepare_layer(layer: str) -> PreparedLayer:
    """Compares a layer of the unchanged port."""
    judge = Judge(unchanged())
    wrong = [row.sentence() for golden in _goldens(layer) for row in judge.rows(golden) if not row.equal]
    return PreparedLayer(layer, reached_by(layer), wrong)


def _rows(candidate: Implementation, layer: str, tier: str, precisions: tuple[str, ...]) -> Iterator[Row]:
    """Comparisons of one layer that belong to a tier: values or VJPs."""
    judge = Judge(candidate, ("float64",) if tier == "gradients" else precisions)
    for golden in _goldens(layer):
        yield from judge.rows(replace(golden, outputs={}) if tier == "gradients" else replace(golden, vjps={}))


def first_difference(
    candidate: Implementation, layers: Iterable[str], tier: str, precisions: tuple[str, ...] = BOTH
) -> Row | None:
    """The first comparison that differs, in data-flow order."""
    return next((row for layer in layers for row in _rows(candidate, layer, tier, precisions) if not row.equal), None)


def kill(mutant: Mutant, reached: Mapping[str, Entered], tiers: Iterable[str] = STORED) -> Kill:
    """Runs the tiers of stored cases on the layers that a mutant can change.

    Args:
        mutant: of the catalogue.
        reached: layer -> functions that it enters, of all recorded layers in data-flow order.
        tiers: which to run.

    Returns:
        Where and by which comparison it was killed.
    """
    candidate = load_edited(PORT, mutant.edits)
    reachable = [layer for layer, functions in reached.items() if is_reached(mutant.edits, functions)]
    outcome = Kill(mutant.name, mutant.layer, {"live": NOT_RUN})
    for tier in tiers:
        start = time.perf_counter()
        layers = [layer for layer in reachable if (layer == LEARNER_STEPS) == (tier == "learner_steps")]
        outcome.note(tier, first_difference(candidate, layers, tier), time.perf_counter() - start)
    return outcome


def kill_by_name(name: str, reached: Mapping[str, Entered]) -> Kill:
    """`kill` for another process, where a mutant goes by its name."""
    return kill(catalogue()[name], reached)
