"""Reference against candidate on inputs that nobody has recorded: the live comparison behind `parity/test_live.py`.

The reference is the original where it is installed, else the stand-in. Its answer in float64 is the truth, and the rule
is that of the goldens (`parity.tolerance`). Sigma costs another compilation. So a sample is first judged with sigma
taken as 0, which allows less; only where that calls a number different is sigma measured and the sample judged again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from parity.compare import Row
from parity.errors import CannotRun
from parity.goldens.judge import BOTH, Judge, cast
from parity.goldens.store import Golden
from parity.implementation import Implementation, load
from parity.layers import REGISTRY
from parity.layers.draw import case_cotangents, case_inputs
from parity.layers.spec import Arrays, Case, Layer, Settings
from parity.sigma import Rounding
from parity.sketch import reduced
from parity.tolerance import PRECISIONS

LIVE = "live"
WITHOUT_GRADIENTS = frozenset(
    name for name, layer in REGISTRY.items() if layer.is_live and not any(case.gradients for case in layer.cases)
)


class NoLiveReference(CannotRun):
    """JAX is not installed, so neither the original nor the stand-in can run."""


@lru_cache(maxsize=1)
def live_reference() -> Implementation:
    """The original where it can be imported, else the stand-in; one for a whole process, since it compiles."""
    with contextlib.suppress(CannotRun):
        return load("original")
    try:
        return load("standin")
    except CannotRun as error:
        if isinstance(error.__context__, ModuleNotFoundError):
            raise NoLiveReference(f"Nothing can run live: {error} `pip install 'disco-parity[jax]'` helps.") from None
        raise


@dataclass(frozen=True, eq=False)
class Sample:
    """One input of a layer: a case of the registry as template, drawn anew; perhaps with edges, perhaps cut smaller.

    Attributes:
        case: says whether it is judged by gradients too.
        settings: sizes and static numbers.
        inputs: the arrays.
        how: in words, for a failure.
    """

    case: Case
    settings: Settings
    inputs: Arrays
    how: str = ""

    def __repr__(self) -> str:
        return f"<sample {self.how}>"


def drawn(layer: Layer, case: Case, seed: int) -> Sample:
    """A sample that is awkward in the way of a case, from another seed."""
    inputs = case_inputs(layer, case, LIVE, str(seed))
    return Sample(case, layer.case_settings(case), inputs, f"like {case.name}, seed {seed}")


def reference_golden(
    reference: Implementation,
    layer: Layer,
    sample: Sample,
    precisions: Sequence[str] = BOTH,
    gradients: bool = True,
    measured: bool = True,
) -> Golden:
    """The reference's answer on a sample as a golden.

    Args:
        reference: computes it.
        layer: of the registry.
        sample: its input.
        precisions: at which sigma is measured.
        gradients: whether VJPs are wanted, which cost most.
        measured: whether sigma is measured, or taken as 0.
    """
    wrt = layer.differentiable(sample.settings) if gradients and sample.case.gradients else []
    cotangents = case_cotangents(layer, LIVE, sample.settings) if wrt else {}
    call = (layer.name, cast(sample.inputs, "float64"), sample.settings, "float64")
    if wrt and hasattr(reference, "run_and_vjp"):
        values, vjps = reference.run_and_vjp(*call, cotangents, wrt)
    else:
        values, vjps = reference.run(*call), reference.vjp(*call, cotangents, wrt) if wrt else {}
    bits = sorted({PRECISIONS[precision] for precision in precisions}, reverse=True)
    measure = getattr(reference, "rounding", None) if measured else None
    return Golden(
        layer=layer.name,
        case=LIVE,
        settings=sample.settings,
        origin="live",
        meta_params="seeded",
        inputs=sample.inputs,
        cotangents=cotangents,
        outputs={name: reduced(value) for name, value in values.items()},
        vjps={name: reduced(value) for name, value in vjps.items()},
        rounding=measure(layer.name, sample.inputs, sample.settings, cotangents, wrt, bits) if measure else Rounding(),
    )


def worst_ratio(rows: Sequence[Row]) -> float:
    """The largest error over its tolerance, finite, for Hypothesis to aim at."""
    return min(max((row.ratio for row in rows), default=0.0), 1e6)


Ask = Callable[[Sample, bool, bool], Golden]


def asking(reference: Implementation, layer: Layer, precisions: Sequence[str] = BOTH) -> Ask:
    """What gives the reference's golden of a sample, `gradients` and `measured` or not; it computes each once."""

    @cache
    def ask(sample: Sample, gradients: bool, measured: bool) -> Golden:
        return reference_golden(reference, layer, sample, precisions, gradients, measured)

    return ask


def judge_live(candidate: Implementation, ask: Ask, sample: Sample, precisions: tuple[str, ...] = BOTH) -> list[Row]:
    """All comparisons of one sample."""
    judge = Judge(candidate, precisions)
    rows = list(judge.rows(ask(sample, True, False)))
    different = [row for row in rows if not row.equal]
    if not different:
        return rows
    gradients = any(row.kind == "vjp" for row in different)
    again = list(judge.rows(ask(sample, gradients, True)))
    return again if gradients else [*again, *(row for row in rows if row.kind == "vjp")]


def compare_live(
    reference: Implementation,
    candidate: Implementation,
    layer: Layer,
    sample: Sample,
    precisions: tuple[str, ...] = BOTH,
) -> list[Row]:
    """All comparisons of one sample with one candidate."""
    return judge_live(candidate, asking(reference, layer, precisions), sample, precisions)
