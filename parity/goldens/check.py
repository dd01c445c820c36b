"""Judges an implementation on the goldens, case by case."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import numpy as np

from parity import weights
from parity.compare import Problem, ProblemKind, Row, compare, failed
from parity.errors import FixtureError, WeightsMissing
from parity.goldens.store import Golden, Store
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.layers.spec import Arrays
from parity.tolerance import PRECISIONS, computed_in, scale_of, tolerance

BOTH = ("float64", "float32")


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


def cast(arrays: Arrays, dtype: str) -> Arrays:
    """Float arrays in the given precision; a fresh copy of everything, so that nothing can be changed from afar."""
    return {k: v.astype(dtype) if v.dtype.kind == "f" else v.copy() for k, v in arrays.items()}


Answer = Arrays | Problem


@dataclass(frozen=True)
class Judge:
    """Compares the answers of an implementation with a golden.

    Attributes:
        implementation: the one under test.
        precisions: whose tolerances are used, each on an answer of its own; below float32 values alone are judged.
        answers_in: the dtype of its answers, where that is not the precision's own.
        without_gradients: layers without a `vjp` (or whose `vjp` raised NotImplementedError): only values are judged.
        left_out: outputs that are missing and cases that cannot run, as the implementation declares.
    """

    implementation: Implementation
    precisions: tuple[str, ...] = BOTH
    answers_in: str = ""
    without_gradients: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)

    def rows(self, golden: Golden) -> Iterator[Row]:
        """Value rows, then VJP rows, in each precision."""
        if why := why_unsupported(self.implementation, golden):
            self.left_out.add(f"{golden.id} ({why})")
            return
        for precision in self.precisions:
            for kind, answer in self._answers(golden, precision):
                yield from self._rows(golden, kind, precision, answer)

    def dtype(self, precision: str) -> str:
        """The dtype in which the implementation is called."""
        return self.answers_in or computed_in(precision)

    def _answers(self, golden: Golden, precision: str) -> Iterator[tuple[str, Answer]]:
        """Values and VJPs, from one call where the implementation offers that; without VJPs where it has none."""
        kinds, dtype = kinds_judged(golden, precision), self.dtype(precision)
        pull_back = cast(golden.cotangents, dtype), sorted(golden.vjps)
        if kinds == ["value", "vjp"] and hasattr(self.implementation, "run_and_vjp"):
            with contextlib.suppress(NotImplementedError):  # without VJPs of this layer, its values are judged
                answers = self._call(golden, dtype, "run_and_vjp", *pull_back)
                yield from zip(kinds, answers, strict=True)
                return
        if "value" in kinds:
            try:
                yield "value", self._call(golden, dtype, "run")[0]
            except NotImplementedError:
                text = "raised NotImplementedError; leave a layer out of `layers` until it is there."
                yield "value", Problem(ProblemKind.CALL, text)
        if "vjp" in kinds:
            try:
                yield "vjp", self._call(golden, dtype, "vjp", *pull_back)[0]
            except NotImplementedError:
                self.without_gradients.add(golden.layer)

    def _call(self, golden: Golden, dtype: str, method: str, *more: object) -> tuple[Answer, ...]:
        """The dicts that a method returns, one or two; a problem in their place if it raises or breaks the contract."""
        count = 2 if method == "run_and_vjp" else 1
        if not hasattr(self.implementation, method):
            raise NotImplementedError
        inputs, before = cast(golden.inputs, dtype), cast(golden.inputs, dtype)
        try:
            result = getattr(self.implementation, method)(golden.layer, inputs, golden.settings, dtype, *more)
        except NotImplementedError:
            raise
        except Exception as error:
            return (Problem(ProblemKind.CALL, f"raised {type(error).__name__}: {error}"),) * count
        answers = result if count == 2 else (result,)
        is_pair = isinstance(answers, tuple) and len(answers) == count
        breach = _breach(answers, inputs, before) if is_pair else "expected a tuple of outputs and VJPs."
        return (Problem(ProblemKind.CALL, breach),) * count if breach else answers

    def _rows(self, golden: Golden, kind: str, precision: str, answer: Answer) -> Iterator[Row]:
        truth, shapes = golden.truth(kind), _shapes(golden, kind)
        for name in truth:
            where = (golden.layer, golden.case, name)
            if isinstance(answer, Problem):
                yield failed(where, kind, precision, answer)
            elif name not in answer and kind == "value" and is_optional(self.implementation, golden.layer, name):
                self.left_out.add(f"{name} of {golden.layer}")
            elif name not in answer:
                text = f"is missing; the layer gave {sorted(answer)[:8]}."
                yield failed(where, kind, precision, Problem(ProblemKind.MISSING, text))
            else:
                yield self._compared(golden, kind, precision, name, answer[name], shapes[name])
        for name in sorted(set(answer) - set(truth)) if isinstance(answer, dict) else ():
            extra = Problem(ProblemKind.EXTRA, "is not an output of this layer.")
            yield failed((golden.layer, golden.case, name), kind, precision, extra)

    def _compared(self, golden: Golden, kind: str, precision: str, name: str, got: Any, shape: tuple[int, ...]) -> Row:
        """One comparison; for a value in float32, also as which precision it was seen to compute."""

        def at(bits_of: str) -> Row:
            bits, where = PRECISIONS[bits_of], (golden.layer, golden.case, name)
            others = golden.others(name, bits)
            truth, sigma = golden.truth(kind)[name], golden.sigma(kind, name, bits)
            return compare(where, kind, bits_of, truth, got, sigma, shape, others, self.dtype(precision))

        row = at(precision)
        if (kind, precision) != ("value", "float32") or row.is_of_form:
            return row
        recorded = golden.recorded_at("value")
        coarser = (p for p in ("tf32", "bf16") if PRECISIONS[p] in recorded and at(p).equal)
        return replace(row, seen=precision if row.equal else next(coarser, ""))


def is_optional(implementation: Implementation, layer: str, output: str) -> bool:
    """Whether an implementation declares that an output may be missing."""
    patterns = getattr(implementation, "optional_outputs", {}).get(layer, ())
    return any(fnmatchcase(output, pattern) for pattern in patterns)


def why_unsupported(implementation: Implementation, golden: Golden) -> str:
    """Why an implementation declares that it cannot run a case; empty if it can."""
    declared = getattr(implementation, "unsupported", None)
    return str(declared(golden.layer, golden.settings) or "") if declared else ""


def _breach(answers: Sequence[Any], inputs: Arrays, before: Arrays) -> str:
    """How a call breaks the contract, given the inputs after and before it; empty if it does not."""
    changed = [name for name in before if not np.array_equal(before[name], inputs[name], equal_nan=True)]
    if changed:
        return f"changed its input {changed[0]} in place; a layer must leave its inputs as they are."
    for answer in answers:
        if not isinstance(answer, dict):
            return f"expected a dict of NumPy arrays, got {type(answer).__name__}."
        for name, value in answer.items():
            if isinstance(value, np.ndarray) and any(np.may_share_memory(value, x) for x in inputs.values()):
                return f"output {name} shares memory with one of the inputs; answer with arrays of your own."
    return ""


def kinds_judged(golden: Golden, precision: str) -> list[str]:
    """`value`, `vjp` or both: what there is, and what sigma is known of at a precision."""
    bits = PRECISIONS[precision]
    return [kind for kind in ("value", "vjp") if golden.truth(kind) and bits in golden.recorded_at(kind)]


def _shapes(golden: Golden, kind: str) -> dict[str, tuple[int, ...]]:
    if kind == "vjp":
        return {name: golden.inputs[name].shape for name in golden.vjps}
    specs = REGISTRY[golden.layer].outputs(golden.settings)
    return {name: spec.shape(golden.settings) for name, spec in specs.items()}


@dataclass
class Outcome:
    """What a check of some layers came to.

    Attributes:
        rows: every comparison made.
        expected: how many comparisons the fixtures ask for, of the cases that could run.
        skipped: case -> why it could not run.
        not_provided: layers that the implementation leaves out, and cases and outputs that it declares to be missing.
        without_gradients: layers of which only values were judged.
    """

    rows: list[Row] = field(default_factory=list)
    expected: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    not_provided: list[str] = field(default_factory=list)
    without_gradients: set[str] = field(default_factory=set)

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
        if not planted_error_is_found(golden, precisions):
            raise FixtureError(f"{golden.id}: a planted error passes for equal; the comparison proves nothing.")
        outcome.expected += rows_expected(golden, precisions)
        outcome.rows += judge.rows(golden)
    outcome.without_gradients |= judge.without_gradients
    outcome.not_provided += sorted(judge.left_out)


def rows_expected(golden: Golden, precisions: tuple[str, ...] = BOTH) -> int:
    """How many comparisons a golden must lead to."""
    return sum(len(golden.truth(kind)) for precision in precisions for kind in kinds_judged(golden, precision))


def planted_error_is_found(golden: Golden, precisions: tuple[str, ...] = BOTH) -> bool:
    """Proves that the comparator can say no: every output and VJP, off by three times its tolerance in one element.

    Returns False if any of these passes for equal.
    """
    for precision in precisions:
        bits = PRECISIONS[precision]
        for kind in kinds_judged(golden, precision):
            for name, ref in golden.truth(kind).items():
                sigma, others = golden.sigma(kind, name, bits), golden.others(name, bits)
                wrong = _with_planted_error(ref, sigma, precision, others)
                where = (golden.layer, golden.case, name)
                if wrong is not None and compare(where, kind, precision, ref, wrong, sigma, None, others).equal:
                    return False
    return True


def _with_planted_error(
    ref: np.ndarray, sigma: np.ndarray, precision: str, others: np.ndarray | None
) -> np.ndarray | None:
    """The truth with an error in the element that is held most tightly; None where nothing is held."""
    if ref.dtype.kind != "f":
        wrong = ref.copy()
        is_free = np.zeros(ref.size, bool) if others is None else (others != ref).any(axis=0).reshape(-1)
        wrong.reshape(-1)[np.flatnonzero(~is_free)[:1]] ^= True
        return None if is_free.all() else wrong
    wrong = ref.astype(computed_in(precision))
    allowed = np.where(np.isfinite(ref), tolerance(sigma, scale_of(ref), PRECISIONS[precision]), np.inf).reshape(-1)
    if np.isposinf(allowed).all():
        return None
    at = int(np.argmin(allowed))
    wrong.reshape(-1)[at] += max(3.0 * allowed[at], np.finfo(wrong.dtype).tiny)
    return wrong
