"""Judges an implementation on the goldens, case by case."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from parity.compare import HALF_ULP32, ROUNDING64, Row, budget, compare, failed
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.layers.spec import Arrays
from parity.store import FixtureError, Golden, Store

DISCO103 = "disco103"


class WeightsMissing(Exception):
    """A case needs Disco103's weights, and they are not on this machine."""


@lru_cache(maxsize=1)
def disco103() -> Arrays:
    """The real weights, by the original's names; found by `reference.weights` and verified there."""
    weights = importlib.import_module("reference.weights")
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
        without_gradients: layers without a `vjp` (or whose `vjp` raised NotImplementedError): only values are judged.
    """

    implementation: Implementation
    without_gradients: set[str] = field(default_factory=set)

    def rows(self, golden: Golden) -> Iterator[Row]:
        """Value rows in each recorded precision, then VJP rows."""
        both = golden.vjps and "float64" in golden.outputs and hasattr(self.implementation, "run_and_vjp")
        if both:
            yield from self._values_and_gradients(golden)
        for dtype in golden.outputs:
            if not (both and dtype == "float64"):
                yield from self._values(golden, dtype)
        if golden.vjps and not both:
            yield from self._gradients(golden)

    def _call(self, golden: Golden, dtype: str, method: Callable[..., Any], *more: object) -> Arrays | str:
        """What the method gives, or what is wrong with it in words."""
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

    def _values_and_gradients(self, golden: Golden) -> Iterator[Row]:
        """Both in float64 from one call, where an implementation offers that."""
        cotangents, wrt = cast(golden.cotangents, "float64"), sorted(golden.vjps)

        def both(*asked: Any) -> Arrays:
            values, vjps = self.implementation.run_and_vjp(*asked)  # type: ignore[attr-defined]
            return {**{f"value:{k}": v for k, v in values.items()}, **{f"vjp:{k}": v for k, v in vjps.items()}}

        result = self._call(golden, "float64", both, cotangents, wrt)
        for kind, rows in (("value", self._value_rows), ("vjp", self._vjp_rows)):
            own = result if isinstance(result, str) else _of_kind(result, kind)
            yield from rows(golden, "float64", own)

    def _values(self, golden: Golden, dtype: str) -> Iterator[Row]:
        result: Arrays | str
        try:
            result = self._call(golden, dtype, self.implementation.run)
        except NotImplementedError:
            result = "raised NotImplementedError; leave a layer out of `layers` until it is there."
        yield from self._value_rows(golden, dtype, result)

    def _value_rows(self, golden: Golden, dtype: str, result: Arrays | str) -> Iterator[Row]:
        specs = REGISTRY[golden.layer].outputs(golden.settings)
        shapes = {name: spec.shape(golden.settings) for name, spec in specs.items()}
        yield from self._rows(golden, "value", dtype, golden.outputs["float64"], result, shapes)

    def _gradients(self, golden: Golden) -> Iterator[Row]:
        cotangents, wrt = cast(golden.cotangents, "float64"), sorted(golden.vjps)
        method = getattr(self.implementation, "vjp", _no_gradients)
        try:
            result = self._call(golden, "float64", method, cotangents, wrt)
        except NotImplementedError:
            self.without_gradients.add(golden.layer)
            return
        yield from self._vjp_rows(golden, "float64", result)

    def _vjp_rows(self, golden: Golden, dtype: str, result: Arrays | str) -> Iterator[Row]:
        shapes = {name: golden.inputs[name].shape for name in golden.vjps}
        yield from self._rows(golden, "vjp", dtype, golden.vjps, result, shapes)

    def _rows(
        self,
        golden: Golden,
        kind: str,
        dtype: str,
        truth: Arrays,
        result: Arrays | str,
        shapes: dict[str, tuple[int, ...]],
    ) -> Iterator[Row]:
        for name in truth:
            where = (golden.layer, golden.case, name)
            if isinstance(result, str):
                yield failed(where, kind, dtype, result)
            elif name not in result:
                yield failed(where, kind, dtype, f"is missing; the layer gave {sorted(result)[:8]}.")
            else:
                sides = golden.sides.get(kind, {}).get(name) if dtype == "float64" else None
                accuracy = golden.accuracy[kind][name]
                rounding = rounding_of(golden, kind) if dtype == "float64" else rounding_of_log(golden, name)
                share = REGISTRY[golden.layer].tolerance_of(golden.case)
                yield compare(
                    where, kind, dtype, truth[name], result[name], accuracy, sides, shapes[name], rounding, share
                )
        for name in sorted(set(result) - set(truth)) if isinstance(result, dict) else ():
            yield failed((golden.layer, golden.case, name), kind, dtype, "is not an output of this layer.")


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


def check_layer(store: Store, implementation: Implementation, layer: str, outcome: Outcome) -> None:
    """Judges every case of a layer, and adds to the outcome."""
    if layer not in implementation.layers:
        outcome.not_provided.append(layer)
        return
    judge = Judge(implementation)
    for case in store.cases(layer):
        try:
            golden = load(store, layer, case)
        except WeightsMissing as reason:
            outcome.skipped[f"{layer}[{case}]"] = str(reason)
            continue
        if not planted_error_is_found(golden):
            raise FixtureError(f"{golden.id}: a planted error passes for equal; the comparison proves nothing.")
        outcome.expected += rows_expected(golden)
        outcome.rows += judge.rows(golden)
    outcome.without_gradients |= judge.without_gradients


def rounding_of(golden: Golden, kind: str) -> float:
    """What rounding alone leaves where numbers of the size of the layer's largest value (or gradient) cancel."""
    return ROUNDING64 * max((a.scale for a in golden.accuracy[kind].values()), default=0.0)


def rounding_of_log(golden: Golden, name: str) -> float:
    """What float32 rounding leaves of a mean of numbers of the size of the case's largest log; 0 for other outputs."""
    if not name.startswith("log/"):
        return 0.0
    return HALF_ULP32 * max(a.scale for key, a in golden.accuracy["value"].items() if key.startswith("log/"))


def rows_expected(golden: Golden) -> int:
    """How many comparisons a golden must lead to."""
    return len(golden.outputs) * len(golden.outputs["float64"]) + len(golden.vjps)


def planted_error_is_found(golden: Golden) -> bool:
    """Proves that the comparator can say no: every output and VJP of a golden, moved by three times its budget.

    Returns False if any of these passes for equal.
    """
    for kind, truth in (("value", golden.outputs["float64"]), ("vjp", golden.vjps)):
        for name, ref in truth.items():
            accuracy = golden.accuracy[kind][name]
            wrong = ref.copy()
            if ref.dtype.kind == "f":
                allowed = budget(accuracy, "float64", rounding_of(golden, kind))
                step = 3.0 * max(allowed, np.spacing(accuracy.scale))
                wrong.reshape(-1)[:1] += step
            else:
                wrong.reshape(-1)[:1] ^= True
            where = (golden.layer, golden.case, name)
            if wrong.size and compare(where, kind, "float64", ref, wrong, accuracy).equal:
                return False
    return True
