"""Judges an implementation on the goldens, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from parity import weights
from parity.compare import Row, compare, failed
from parity.errors import FixtureError, WeightsMissing
from parity.goldens.store import Golden, Store
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.layers.spec import Arrays
from parity.tolerance import PRECISIONS, computed_in, scale_of, tolerance

BOTH = ("float64", "float32")


def asked_precisions(asked: str | None) -> tuple[str, ...]:
    """The precisions that are judged: the one asked for, else float64 and float32."""
    return (asked,) if asked else BOTH


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


def _no_gradients(*_: object) -> Arrays:
    """Stands in for a `vjp` that an adapter does not have."""
    raise NotImplementedError


@dataclass(frozen=True)
class Judge:
    """Compares what an implementation gives with a golden.

    Attributes:
        implementation: what is judged.
        precisions: whose tolerances are used, each on an answer of its own; below float32 values alone are judged.
        answers_in: the dtype of its answers, where that is not the precision's own.
        without_gradients: layers without a `vjp` (or whose `vjp` raised NotImplementedError): only values are judged.
    """

    implementation: Implementation
    precisions: tuple[str, ...] = BOTH
    answers_in: str = ""
    without_gradients: set[str] = field(default_factory=set)

    def rows(self, golden: Golden) -> Iterator[Row]:
        """Value rows, then VJP rows, in each precision."""
        for precision in self.precisions:
            kinds = kinds_judged(golden, precision)
            if kinds == ["value", "vjp"] and hasattr(self.implementation, "run_and_vjp"):
                yield from self._values_and_gradients(golden, precision)
                continue
            if "value" in kinds:
                yield from self._values(golden, precision)
            if "vjp" in kinds:
                yield from self._gradients(golden, precision)

    def dtype(self, precision: str) -> str:
        """What it is asked in."""
        return self.answers_in or computed_in(precision)

    def _call(self, golden: Golden, precision: str, method: Callable[..., Any], *more: object) -> Arrays | str:
        """What the method gives, or what is wrong with it in words."""
        dtype = self.dtype(precision)
        inputs = cast(golden.inputs, dtype)
        before = cast(golden.inputs, dtype)
        try:
            result = method(golden.layer, inputs, golden.settings, dtype, *more)
        except NotImplementedError:
            raise
        except Exception as error:
            return f"raised {type(error).__name__}: {error}"
        changed = [name for name in before if not np.array_equal(before[name], inputs[name], equal_nan=True)]
        if changed:
            return f"changed its input {changed[0]} in place; a layer must leave its inputs as they are."
        if not isinstance(result, dict):
            return f"expected a dict of NumPy arrays, got {type(result).__name__}."
        for name, value in result.items():
            if isinstance(value, np.ndarray) and any(np.may_share_memory(value, x) for x in inputs.values()):
                return f"output {name} shares memory with one of the inputs; answer with arrays of your own."
        return result

    def _asked(self, golden: Golden, precision: str) -> tuple[Arrays, list[str]]:
        return cast(golden.cotangents, self.dtype(precision)), sorted(golden.vjps)

    def _values_and_gradients(self, golden: Golden, precision: str) -> Iterator[Row]:
        """Both from one call, where an implementation offers that."""

        def both(*asked: Any) -> Arrays:
            values, vjps = self.implementation.run_and_vjp(*asked)  # type: ignore[attr-defined]
            return {**{f"value:{k}": v for k, v in values.items()}, **{f"vjp:{k}": v for k, v in vjps.items()}}

        result = self._call(golden, precision, both, *self._asked(golden, precision))
        for kind in ("value", "vjp"):
            own = result if isinstance(result, str) else _of_kind(result, kind)
            yield from self._rows(golden, kind, precision, own)

    def _values(self, golden: Golden, precision: str) -> Iterator[Row]:
        result: Arrays | str
        try:
            result = self._call(golden, precision, self.implementation.run)
        except NotImplementedError:
            result = "raised NotImplementedError; leave a layer out of `layers` until it is there."
        yield from self._rows(golden, "value", precision, result)

    def _gradients(self, golden: Golden, precision: str) -> Iterator[Row]:
        method = getattr(self.implementation, "vjp", _no_gradients)
        try:
            result = self._call(golden, precision, method, *self._asked(golden, precision))
        except NotImplementedError:
            self.without_gradients.add(golden.layer)
            return
        yield from self._rows(golden, "vjp", precision, result)

    def _rows(self, golden: Golden, kind: str, precision: str, result: Arrays | str) -> Iterator[Row]:
        truth, shapes = golden.truth(kind), _shapes(golden, kind)
        for name in truth:
            where = (golden.layer, golden.case, name)
            if isinstance(result, str):
                yield failed(where, kind, precision, result)
            elif name not in result:
                yield failed(where, kind, precision, f"is missing; the layer gave {sorted(result)[:8]}.")
            else:
                yield self._compared(golden, kind, precision, name, result[name], shapes[name])
        for name in sorted(set(result) - set(truth)) if isinstance(result, dict) else ():
            yield failed((golden.layer, golden.case, name), kind, precision, "is not an output of this layer.")

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


def kinds_judged(golden: Golden, precision: str) -> list[str]:
    """`value`, `vjp` or both: what there is, and what sigma is known of at a precision."""
    bits = PRECISIONS[precision]
    return [kind for kind in ("value", "vjp") if golden.truth(kind) and bits in golden.recorded_at(kind)]


def _shapes(golden: Golden, kind: str) -> dict[str, tuple[int, ...]]:
    if kind == "vjp":
        return {name: golden.inputs[name].shape for name in golden.vjps}
    specs = REGISTRY[golden.layer].outputs(golden.settings)
    return {name: spec.shape(golden.settings) for name, spec in specs.items()}


def _of_kind(arrays: Arrays, kind: str) -> Arrays:
    return {name.removeprefix(f"{kind}:"): value for name, value in arrays.items() if name.startswith(f"{kind}:")}


@dataclass
class Outcome:
    """What a check of some layers came to.

    Attributes:
        rows: every comparison made.
        expected: how many comparisons the fixtures ask for, of the cases that could run.
        skipped: case -> why it could not run.
        not_provided: layers that the implementation leaves out.
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


def rows_expected(golden: Golden, precisions: tuple[str, ...] = BOTH) -> int:
    """How many comparisons a golden must lead to."""
    return sum(len(golden.truth(kind)) for precision in precisions for kind in kinds_judged(golden, precision))


def planted_error_is_found(golden: Golden, precisions: tuple[str, ...] = BOTH) -> bool:
    """Proves that the comparator can say no: every output and VJP, off by three times its tolerance in one element.

    Returns False if any of these passes for equal.
    """
    asked = ((precision, kind) for precision in precisions for kind in kinds_judged(golden, precision))
    for precision, kind in asked:
        for name, ref in golden.truth(kind).items():
            sigma = golden.sigma(kind, name, PRECISIONS[precision])
            others = golden.others(name, PRECISIONS[precision])
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
