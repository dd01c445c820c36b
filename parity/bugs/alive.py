"""The live tier: planted mistakes against a running reference, on inputs that nobody has recorded.

The reference compiles for seconds where a copy of the port answers in milliseconds, so that all mistakes found at a
layer are judged together, on what the reference says once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache

from parity import live
from parity.bugs import PORT, catalogue
from parity.bugs.plant import load_edited
from parity.compare import Row
from parity.layers import REGISTRY
from parity.store import Golden

SAMPLES = 4

Found = dict[str, tuple[Row | None, float]]


def speaker() -> tuple[str, bool]:
    """Who speaks live, or why nobody can; and whether anybody does."""
    try:
        return live.live_reference().name, True
    except live.NoLiveReference as reason:
        return str(reason), False


@lru_cache(maxsize=4)
def answers(layer: str) -> list[Golden]:
    """The reference's answers to inputs like those of a layer's first cases, drawn anew, all of one size."""
    entry = REGISTRY[layer]
    first, *others = entry.cases
    alike = [
        c for c in others if (c.settings, c.dtypes, c.gradients) == (first.settings, first.dtypes, first.gradients)
    ]
    samples = [live.drawn(entry, case, seed=0) for case in [first, *alike][:SAMPLES]]
    return [live.Reference(live.live_reference(), entry, sample).golden(live.JITTERS) for sample in samples]


def hunt_live(layer: str, names: Sequence[str]) -> Found:
    """Judges each mistake at one layer; name -> the comparison that found it, if any, and the seconds it took."""
    ready, found = answers(layer), Found()
    for name in names:
        start = time.perf_counter()
        candidate = load_edited(PORT, catalogue()[name].edits)
        rows = (row for golden in ready for row in live.judge(candidate, golden) if not row.equal)
        found[name] = next(rows, None), time.perf_counter() - start
    return found
