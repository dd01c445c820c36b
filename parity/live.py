"""Reference against candidate on inputs that nobody has recorded: the live comparison behind `parity/test_live.py`.

The reference is the original where it is installed, else the stand-in. A sample is first judged as if the reference
were exact. Only where that says "different" is the reference's own exactness measured (`parity.exactness`; first what
costs little), and the sample judged again: Hypothesis looks for ill-conditioned inputs and finds them. It also finds
branches (a tie, a bin's edge, a kink), reached by one rounding and missed by another; a number that differs there and
at no input beside it stands at a branch, where the answer of either side is right. What the goldens hold of such points
is exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from parity.check import Judge, cast
from parity.compare import ROUNDING64, Row
from parity.exactness import ASIDE, Reference, Sample
from parity.implementation import CannotRun, Implementation, load
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs, generator, shifted
from parity.layers.spec import Case, Layer
from parity.store import Golden

JITTERS = 8
WITHOUT_GRADIENTS = frozenset(
    name for name, layer in REGISTRY.items() if layer.is_live and not any(case.gradients for case in layer.cases)
)
BESIDE = 3  # how many inputs beside a sample are asked before it is called a branch


class NoLiveReference(CannotRun):
    """JAX is not installed, so neither the original nor the stand-in can speak."""


@lru_cache(maxsize=1)
def live_reference() -> Implementation:
    """The original where it can be imported, else the stand-in; one for a whole process, since it compiles."""
    with contextlib.suppress(CannotRun):
        return load("original")
    try:
        return load("standin")
    except CannotRun as error:
        if isinstance(error.__context__, ModuleNotFoundError):
            raise NoLiveReference(f"Nothing can speak live: {error} `pip install 'disco-parity[jax]'` helps.") from None
        raise


def drawn(layer: Layer, case: Case, seed: int) -> Sample:
    """A case's like: inputs from another seed, made awkward in the same way."""
    inputs = case_inputs(layer, case, "live", str(seed))
    return Sample(case, layer.case_settings(case), inputs, f"like {case.name}, seed {seed}")


def judge(candidate: Implementation, golden: Golden) -> list[Row]:
    """Rows of a live comparison; rounding where the reference's gradient cancels to exactly 0 is no gradient."""
    rows = []
    for row in Judge(candidate).rows(golden):
        is_leak = row.kind == "vjp" and "stopped" in row.problem
        if not (is_leak and _largest_gradient(candidate, golden, row.output) <= _rounding(golden)):
            rows.append(row)
    return rows


def _rounding(golden: Golden) -> float:
    return ROUNDING64 * max(float(np.abs(value).max()) for value in golden.cotangents.values())


def _largest_gradient(candidate: Implementation, golden: Golden, name: str) -> float:
    given = cast(golden.inputs, "float64")
    result = candidate.vjp(golden.layer, given, golden.settings, "float64", golden.cotangents, [name])
    return float(np.abs(result[name]).max())


def worst_ratio(rows: Sequence[Row]) -> float:
    """The largest error over budget, finite, for Hypothesis to aim at."""
    return min(max((row.ratio for row in rows), default=0.0), 1e6)


def compare_live(reference: Implementation, candidate: Implementation, layer: Layer, sample: Sample) -> list[Row]:
    """All comparisons of one sample."""
    asked = Reference(reference, layer, sample)
    rows = judge(candidate, asked.unmeasured())
    different = [row for row in rows if not row.equal]
    if not different:
        return rows
    gradients = any(row.kind == "vjp" for row in different)
    untouched = [] if gradients else [row for row in rows if row.kind == "vjp"]
    if all(row.dtype == "float64" for row in different):  # most often this explains them, and nothing is compiled
        nearby = judge(candidate, asked.moved(JITTERS, gradients))
        if all(row.equal for row in nearby):
            return [*nearby, *(row for row in rows if row.dtype != "float64"), *untouched]

    def again(tried: Sample) -> list[Row]:
        return judge(candidate, Reference(reference, layer, tried).measured(JITTERS, gradients))

    return [*_off_branches(layer, sample, again(sample), again), *untouched]


def _off_branches(layer: Layer, sample: Sample, rows: list[Row], again: Callable[[Sample], list[Row]]) -> list[Row]:
    """The rows, with those called equal that differ here but at no input beside."""
    suspects = {_subject(row) for row in rows if not row.equal and not row.is_of_form}
    rng = generator(layer.name, "beside")
    for _ in range(BESIDE):
        if not suspects:
            return rows
        beside = replace(sample, inputs=shifted(sample.inputs, ASIDE, rng))
        suspects -= {_subject(row) for row in again(beside) if not row.equal}
    return [replace(row, equal=True, at_branch=1, problem="") if _subject(row) in suspects else row for row in rows]


def _subject(row: Row) -> tuple[str, str, str]:
    return row.output, row.kind, row.dtype


def check_layer_live(candidate: Implementation, layer: str, examples: int = 3) -> Iterator[Row]:
    """Comparisons of a layer on inputs like its first case's, drawn from the first seeds."""
    entry = REGISTRY[layer]
    for seed in range(examples):
        yield from compare_live(live_reference(), candidate, entry, drawn(entry, entry.cases[0], seed))
