"""Hunts a planted mistake through the tiers of checks, each in data-flow order up to the first layer that differs."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from parity.bugs import PORT, Bug, catalogue
from parity.bugs.plant import load_edited
from parity.bugs.reach import Entered, entered, is_reached, stored_cases
from parity.check import Judge, load
from parity.compare import Row
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.store import Golden, Store

LIFETIME = "agent/learner_steps"
TIERS = ("goldens", "gradients", "lifetime", "live")
NOT_RUN = "not run"

LiveCheck = Callable[[Implementation, str], Iterable[Row]]


@dataclass(frozen=True)
class Kill:
    """How one mistake was found, or that it was not.

    Attributes:
        bug: its name.
        named: the layer it should be found at.
        layers: tier -> first layer that differs; empty if none does; NOT_RUN where the tier did not run.
        checks: tier -> the comparison that found it.
        seconds: tier -> how long it took, up to the find or to the end.
    """

    bug: str
    named: str
    layers: dict[str, str] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def found_by(self) -> list[str]:
        """The tiers that found it."""
        return [tier for tier in TIERS if self.layers.get(tier, "") not in ("", NOT_RUN)]

    @property
    def first(self) -> str:
        """The first layer that differs in data-flow order, over all tiers; empty for a survivor."""
        order = list(REGISTRY)
        return min((self.layers[tier] for tier in self.found_by), key=order.index, default="")

    @property
    def is_at_named(self) -> bool:
        """Whether it was found at the layer named."""
        return self.first == self.named

    def as_json(self) -> dict[str, Any]:
        """The kill for machines."""
        bug = catalogue()[self.bug]
        about = {"bug": self.bug, "subject": bug.subject, "origin": bug.origin, "layer_named": self.named}
        verdict = {"found": bool(self.found_by), "first_layer": self.first, "at_layer_named": self.is_at_named}
        tiers = {f"{tier}_layer": self.layers.get(tier, "") for tier in TIERS}
        times = {f"{tier}_seconds": round(self.seconds.get(tier, 0.0), 4) for tier in TIERS}
        return {**about, **verdict, **tiers, **times, "check": next(iter(self.checks.values()), "")}


def live_check() -> LiveCheck | None:
    """`parity.live.check_layer_live(candidate, layer)`, which gives rows, where this version has it."""
    try:
        module = importlib.import_module("parity.live")
    except ImportError:
        return None
    found: LiveCheck | None = getattr(module, "check_layer_live", None)
    return found


@lru_cache(maxsize=1)
def opened_store() -> Store:
    """The goldens of this process."""
    return Store()


@lru_cache(maxsize=4096)
def _golden(layer: str, case: str) -> Golden:
    return load(opened_store(), layer, case)


def reached_by(layer: str) -> Entered:
    """The functions of the unchanged port that a layer enters."""
    return entered(opened_store(), load_edited(PORT, ()), layer)


def _rows(candidate: Implementation, layer: str, tier: str) -> Iterator[Row]:
    """Comparisons of one layer that belong to a tier: values, or VJPs."""
    judge = Judge(candidate)
    for case in stored_cases(opened_store(), layer):
        golden = _golden(layer, case)
        if tier == "gradients":
            golden = replace(golden, outputs={})
        else:
            golden = replace(golden, vjps={})
        yield from judge.rows(golden)


def first_difference(candidate: Implementation, layers: Iterable[str], tier: str) -> Row | None:
    """The first comparison that differs, in data-flow order."""
    return next((row for layer in layers for row in _rows(candidate, layer, tier) if not row.equal), None)


def hunt(bug: Bug, reached: Mapping[str, Entered], tiers: Iterable[str] = TIERS) -> Kill:
    """Plants one mistake and runs the tiers on what it can reach.

    Args:
        bug: the mistake.
        reached: layer -> functions that it enters, of all recorded layers in data-flow order.
        tiers: which to run.

    Returns:
        Where and by which comparison it was found.
    """
    candidate = load_edited(PORT, bug.edits)
    layers = [layer for layer, functions in reached.items() if is_reached(bug.edits, functions)]
    kill = Kill(bug.name, bug.layer)
    for tier in tiers:
        start = time.perf_counter()
        if tier == "live":
            row = _live(candidate, kill)
        else:
            own = [layer for layer in layers if (layer == LIFETIME) == (tier == "lifetime")]
            row = first_difference(candidate, own, tier)
        kill.seconds[tier] = time.perf_counter() - start
        kill.layers.setdefault(tier, row.layer if row else "")
        if row:
            kill.checks[tier] = row.sentence()
    return kill


def _live(candidate: Implementation, kill: Kill) -> Row | None:
    """The live comparison of the layer where the goldens found the mistake, or of the one named."""
    check = live_check()
    if check is None:
        kill.layers["live"] = NOT_RUN
        return None
    return next((row for row in check(candidate, kill.first or kill.named) if not row.equal), None)


def hunt_by_name(name: str, reached: Mapping[str, Entered], tiers: Iterable[str] = TIERS) -> Kill:
    """`hunt` for another process, where a mistake goes by its name."""
    return hunt(catalogue()[name], reached, tiers)
