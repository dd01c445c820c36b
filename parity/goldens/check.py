"""A check of an implementation on the recorded goldens, case by case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from parity import weights
from parity.command_line import ExitCode
from parity.compare import ProblemKind, Row
from parity.errors import FixtureError, WeightsMissing
from parity.goldens.judge import BOTH, Judge, compare_output, kinds_judged
from parity.goldens.store import Golden, Store
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.layers.spec import Arrays
from parity.tolerance import PRECISIONS, computed_in, scale_of, tolerance

__all__ = ["BOTH", "Judge", "Outcome", "asked_precisions", "check_layer", "disco103", "kinds_judged", "load"]
__all__ += ["injected_error_is_found", "relative_tolerances", "rows_expected", "verdict", "with_disco103"]


def asked_precisions(option: str | None) -> tuple[str, ...]:
    """The precisions that are judged: the one that the option names, else float64 and float32."""
    return (option,) if option else BOTH


DISCO103 = "disco103"


@lru_cache(maxsize=1)
def disco103() -> Arrays:
    """The real weights, by the original's names; found by `parity.weights` and verified there."""
    try:
        return weights.load_weights(download=False)
    except weights.WeightsMissingError as error:
        raise WeightsMissing(str(error)) from None
    except weights.WeightsError as error:
        raise FixtureError(f"Disco103's weights cannot be used: {error}") from None


def with_disco103(inputs: Arrays) -> Arrays:
    """Puts the real weights in the place of `meta_params/*`."""
    return {**inputs, **{f"meta_params/{name}": value.astype(np.float64) for name, value in disco103().items()}}


def load(store: Store, layer: str, case: str) -> Golden:
    """Reads a case; makes its inputs again where they are not stored."""
    entry = store.entry(layer, case)
    if entry["stored"]:
        return store.load(layer, case)
    spec = next((c for c in REGISTRY[layer].cases if c.name == case), None) if layer in REGISTRY else None
    if spec is None:
        raise FixtureError(f"{layer}[{case}] is in the fixtures, but no longer in the registry; record again.")
    inputs = case_inputs(REGISTRY[layer], spec)
    if entry["meta_params"] == DISCO103:
        inputs = with_disco103(inputs)
    return store.load(layer, case, inputs)


@dataclass
class Outcome:
    """What a check of some layers came to.

    Attributes:
        rows: every comparison made.
        skipped: case -> why it could not run.
        not_provided: layers that the implementation leaves out, and cases and outputs that it declares to be missing.
        without_gradients: layers of which only values were judged.
        tolerances: of all elements in float64, relative to the scale of their outputs.
    """

    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    not_provided: list[str] = field(default_factory=list)
    without_gradients: set[str] = field(default_factory=set)
    tolerances: list[np.ndarray] = field(default_factory=list)

    @property
    def median_tolerance(self) -> float | None:
        """The median of the tolerances; None where nothing was compared in float64."""
        return float(np.median(np.concatenate(self.tolerances))) if self.tolerances else None

    @property
    def different(self) -> list[Row]:
        """The comparisons that failed."""
        return [row for row in self.rows if not row.equal]


def check_layer(
    store: Store, implementation: Implementation, layer: str, outcome: Outcome, precisions: tuple[str, ...] = BOTH
) -> None:
    """Judges every case of a layer, and adds to the outcome."""
    if layer not in implementation.layers:
        outcome.not_provided.append(layer)
        return
    judge = Judge(implementation, precisions)
    for case in store.cases(layer):
        try:
            golden = load(store, layer, case)
        except WeightsMissing as reason:
            outcome.skipped[f"{layer}[{case}]"] = str(reason)
            continue
        if not injected_error_is_found(golden, precisions):
            raise FixtureError(f"{golden.id}: an injected error passes for equal; the comparison proves nothing.")
        outcome.rows += judge.rows(golden)
        if "float64" in precisions:
            outcome.tolerances += relative_tolerances(golden)
    outcome.without_gradients |= judge.without_gradients
    outcome.not_provided += sorted(judge.left_out)


def verdict(different: Iterable[Row]) -> ExitCode:
    """The exit code for comparisons that failed: a layer that raised or broke the contract was not compared."""
    broken = (ProblemKind.RAISED, ProblemKind.CALL)
    is_compared = [row.problem is None or row.problem.kind not in broken for row in different]
    return ExitCode.DIFFERENT if any(is_compared) else ExitCode.COULD_NOT_RUN if is_compared else ExitCode.EQUAL


def rows_expected(golden: Golden, precisions: tuple[str, ...] = BOTH) -> int:
    """How many comparisons a golden must lead to."""
    return sum(len(golden.truth(kind)) for precision in precisions for kind in kinds_judged(golden, precision))


def relative_tolerances(golden: Golden, precision: str = "float64") -> Iterator[np.ndarray]:
    """What the rule allows each number of a golden, relative to the scale of its output; flat arrays."""
    bits = PRECISIONS[precision]
    for kind in kinds_judged(golden, precision):
        for name, truth in golden.truth(kind).items():
            scale = scale_of(truth)
            if truth.dtype.kind == "f" and scale:
                yield (tolerance(golden.sigma(kind, name, bits), scale, bits) / scale).reshape(-1)


def injected_error_is_found(golden: Golden, precisions: tuple[str, ...] = BOTH) -> bool:
    """Proves that the comparator can say no: every output and VJP, off by three times its tolerance in one element.

    Returns False if any of these passes for equal.
    """
    for precision in precisions:
        for kind in kinds_judged(golden, precision):
            for name in golden.truth(kind):
                wrong = _with_injected_error(golden, kind, name, precision)
                if wrong is not None and compare_output(golden, kind, precision, name, wrong).equal:
                    return False
    return True


def _with_injected_error(golden: Golden, kind: str, name: str, precision: str) -> np.ndarray | None:
    """The truth with an error in the element that is held most tightly; None where nothing is held."""
    ref, bits = golden.truth(kind)[name], PRECISIONS[precision]
    if ref.dtype.kind != "f":
        wrong, others = ref.copy(), golden.others(name, bits)
        is_free = np.zeros(ref.size, bool) if others is None else (others != ref).any(axis=0).reshape(-1)
        wrong.reshape(-1)[np.flatnonzero(~is_free)[:1]] ^= True
        return None if is_free.all() else wrong
    wrong = ref.astype(computed_in(precision))
    allowed = tolerance(golden.sigma(kind, name, bits), scale_of(ref), bits)
    allowed = np.where(np.isfinite(ref), allowed, np.inf).reshape(-1)
    if np.isposinf(allowed).all():
        return None
    at = int(np.argmin(allowed))
    wrong.reshape(-1)[at] += max(3.0 * allowed[at], np.finfo(wrong.dtype).tiny)
    return wrong
