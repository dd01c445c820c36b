"""Errors in sigmas, counted: whether the rule of `parity.tolerance` is calibrated.

Where two implementations differ by rounding alone, chance says how their difference over sigma is distributed. Each
carries an error of about one sigma, so the difference is about normal with a standard deviation of sqrt(2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from parity.compare import BINS_PER_SIGMA, NUM_BINS, Row
from parity.files import read_json, reading

FILE = "calibration.json"  # in the fixtures
REMEDY = "Restore it with `git checkout -- fixtures`, or measure again with `python -m reference calibrate`."
HELD = {"comparisons": int, "different": int, "largest": float, "counts": [int]}
FORM = {"manifest": str, "layers": {str: {str: HELD}}}  # as of `check_form`


@dataclass
class Held:
    """Comparisons of one sort: how many differ, the largest C that one needs, and how errors are distributed."""

    comparisons: int = 0
    different: int = 0
    largest: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * NUM_BINS)

    def add(self, row: Row) -> None:
        """Adds one comparison."""
        largest = row.sigmas if math.isfinite(row.sigmas) else 0.0
        self.merge(Held(1, int(not row.equal), largest, [*row.counts] or [0] * NUM_BINS))

    def merge(self, other: Held) -> None:
        """Adds other comparisons."""
        self.comparisons += other.comparisons
        self.different += other.different
        self.largest = max(self.largest, other.largest)
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]


@dataclass
class Calibration:
    """What was held to the rule, by how it was computed, precision and kind: `eagerly, float64, value`."""

    held: dict[str, Held] = field(default_factory=dict)

    def add(self, way: str, rows: Iterable[Row]) -> None:
        """Adds comparisons."""
        for row in rows:
            self.held.setdefault(f"{way}, {row.dtype}, {row.kind}", Held()).add(row)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {name: asdict(held) for name, held in sorted(self.held.items())}


def recorded(root: Path) -> dict[str, Held]:
    """What `python -m reference calibrate` measured over the layers done, by how it was computed."""
    total = dict[str, Held]()
    with reading(root / FILE, REMEDY):
        for name, numbers in (pair for layer in layers_done(root).values() for pair in layer.items()):
            total.setdefault(name, Held()).merge(Held(**numbers))
    return total


def layers_done(root: Path) -> dict[str, Any]:
    """The evidence by layer; empty where there is none, or where it was measured on other goldens."""
    path = root / FILE
    if not path.exists():
        return {}
    known = read_json(path, FORM, REMEDY)
    goldens = read_json(root / "manifest.json", {"digest": str}, REMEDY)
    layers: dict[str, Any] = known["layers"] if known["manifest"] == goldens["digest"] else {}
    return layers


def by_chance(bins: int = NUM_BINS) -> list[float]:
    """The share of elements in each bin if errors were rounding alone: |N(0, 2)|; the last bin is open."""
    edges = [math.erf(i / BINS_PER_SIGMA / 2.0) for i in range(bins)]
    return [b - a for a, b in zip(edges, [*edges[1:], 1.0], strict=True)]
