"""The live tier: mutants against a running reference, on generated inputs.

The reference compiles for seconds where a copy of the port answers in milliseconds. All mutants of a layer are
therefore compared together, and the reference computes each answer once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from parity.compare import Row
from parity.errors import CannotRun
from parity.layers import REGISTRY
from parity.layers.spec import Layer
from parity.live import comparison
from parity.mutants import PORT, catalogue
from parity.mutants.mutate import Edit, load_edited

SAMPLES = 4

Kills = dict[str, tuple[Row | None, float]]


def active_reference() -> tuple[str, bool]:
    """The name of the live reference, or why there is none; and whether there is one."""
    try:
        return comparison.live_reference().name, True
    except comparison.NoLiveReference as reason:
        return str(reason), False


def samples(layer: Layer) -> list[comparison.Sample]:
    """Inputs like those of a layer's first cases, drawn anew; all of one size, since the reference compiles for it."""
    first, *others = layer.cases
    alike = [c for c in others if (c.settings, c.gradients) == (first.settings, first.gradients)]
    return [comparison.drawn(layer, case, seed=0) for case in [first, *alike][:SAMPLES]]


def kill_live(layer: str, cases: Mapping[str, str]) -> Kills:
    """Tries to kill mutants at one layer.

    Args:
        layer: its name.
        cases: mutant -> the stored case that killed it; inputs like it are tried where the first samples kill nothing.

    Returns:
        Mutant -> the comparison that killed it, if any, and the seconds it took.
    """
    entry, kills = REGISTRY[layer], Kills()
    ask = comparison.asking(comparison.live_reference(), entry)
    tried, named = samples(entry), {case.name: case for case in entry.cases}

    def first_difference(edits: Sequence[Edit], inputs: Sequence[comparison.Sample]) -> Row | None:
        candidate = load_edited(PORT, edits)
        rows = (row for sample in inputs for row in comparison.judge_live(candidate, ask, sample))
        return next((row for row in rows if not row.equal), None)

    without = first_difference((), tried)
    if without:
        raise CannotRun(f"The unchanged port differs live, so a kill would prove nothing: {without.sentence()}")
    for name, case in cases.items():
        start, edits = time.perf_counter(), catalogue()[name].edits
        row = first_difference(edits, tried)
        if row is None and case in named:
            row = first_difference(edits, [comparison.drawn(entry, named[case], seed=0)])
        kills[name] = row, time.perf_counter() - start
    return kills
