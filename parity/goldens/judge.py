"""The comparison of an implementation's answers with a golden, recorded or made live."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from parity.compare import Problem, ProblemKind, Row, compare, failed, form_problem
from parity.errors import InputChanged, in_words, place_of
from parity.goldens.store import Golden
from parity.implementation import Implementation, contained
from parity.layers import REGISTRY
from parity.layers.spec import Arrays, Settings
from parity.sigma import Rounding
from parity.tolerance import PRECISIONS, computed_in

BOTH = ("float64", "float32")


def cast(arrays: Arrays, dtype: str) -> Arrays:
    """Float arrays in the given precision; a fresh copy of everything, so that nothing can be changed from afar."""
    return {k: np.array(v, dtype if v.dtype.kind == "f" else v.dtype) for k, v in arrays.items()}


def compare_output(
    golden: Golden,
    kind: str,
    precision: str,
    name: str,
    got: Any,
    shape: tuple[int, ...] | None = None,
    dtype: str = "",
) -> Row:
    """Compares one output (or VJP) with a golden's; `shape` and `dtype` as for `parity.compare.compare`."""
    bits, truth = PRECISIONS[precision], golden.truth(kind)[name]
    sigma, others = golden.sigma(kind, name, bits), golden.others(name, bits)
    return compare((golden.layer, golden.case, name), kind, precision, truth, got, sigma, shape, others, dtype)


def run(implementation: Implementation, golden: Golden, dtype: str = "float64") -> Arrays:
    """An implementation's outputs for the inputs of a golden."""
    return implementation.run(golden.layer, cast(golden.inputs, dtype), golden.settings, dtype)


def vjp(implementation: Implementation, golden: Golden, dtype: str = "float64") -> Arrays:
    """An implementation's VJPs for the inputs and cotangents of a golden."""
    inputs, cotangents = cast(golden.inputs, dtype), cast(golden.cotangents, dtype)
    return implementation.vjp(golden.layer, inputs, golden.settings, dtype, cotangents, sorted(golden.vjps))


Answer = Arrays | Problem
METHODS = {"value": "run", "vjp": "vjp"}


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
        refusal: Problem | None = None
        try:
            if why := why_unsupported(self.implementation, golden):
                self.left_out.add(f"{golden.id} ({why})")
                return
        except Exception as error:
            refusal = _raised(error, "`unsupported`")
        for precision in self.precisions:
            kinds = kinds_judged(golden, precision)
            for kind, answer in ((kind, refusal) for kind in kinds) if refusal else self._answers(golden, precision):
                yield from self.rows_of(answer, golden, kind, precision)

    def _dtype(self, precision: str) -> str:
        """The dtype in which the implementation is called."""
        return self.answers_in or computed_in(precision)

    def _answers(self, golden: Golden, precision: str) -> Iterator[tuple[str, Answer]]:
        """Values and VJPs, from one call where the implementation offers that; without VJPs where it has none."""
        kinds = kinds_judged(golden, precision)
        if len(kinds) == 2 and hasattr(self.implementation, "run_and_vjp"):
            with contextlib.suppress(NotImplementedError):  # without VJPs of this layer, its values are judged
                yield from zip(kinds, self._call(golden, self._dtype(precision), "run_and_vjp"), strict=True)
                return
        for kind in kinds:
            try:
                yield kind, self._call(golden, self._dtype(precision), METHODS[kind])[0]
            except NotImplementedError:
                if kind == "vjp":
                    self.without_gradients.add(golden.layer)
                    continue
                text = "raised NotImplementedError; leave a layer out of `layers` until it is there."
                yield "value", Problem(ProblemKind.RAISED, text, "NotImplementedError")

    def _call(self, golden: Golden, dtype: str, method: str) -> tuple[Answer, ...]:
        """The dicts that a method returns, one or two; a problem in their place if it raises or breaks the contract."""
        count = 2 if method == "run_and_vjp" else 1
        if not hasattr(self.implementation, method):
            raise NotImplementedError
        inputs, settings = cast(golden.inputs, dtype), deepcopy(golden.settings)
        pull_back = () if method == "run" else (cast(golden.cotangents, dtype), sorted(golden.vjps))
        try:
            with contained():
                result = getattr(self.implementation, method)(golden.layer, inputs, settings, dtype, *pull_back)
            answers = result if count == 2 else (result,)
            breach = _breach(answers, count, inputs, cast(golden.inputs, dtype))
        except (NotImplementedError, KeyboardInterrupt):
            raise
        except InputChanged as error:
            breach = _changed(str(error))
        except BaseException as error:  # SystemExit, pytest's Skipped and their like are no reason to stop either
            breach = _raised(error)
        if not breach and settings != golden.settings:
            breach = Problem(ProblemKind.CALL, "changed its settings; a layer must leave them as they are.", "settings")
        return (breach,) * count if breach else answers

    def outputs(self, layer: str, inputs: Arrays, settings: Settings) -> Arrays | None:
        """A layer's outputs in float64, with names and shapes as they must be; None where it has no such answer."""
        golden = Golden(layer, "", settings, "live", "seeded", inputs, {}, {}, {}, Rounding())
        with contextlib.suppress(NotImplementedError):
            answer, specs = self._call(golden, "float64", "run")[0], REGISTRY[layer].outputs(settings)
            forms = {name: (spec.shape(settings), spec.kind[0], "float64") for name, spec in specs.items()}
            if isinstance(answer, dict) and not any(form_problem(answer.get(k), *form) for k, form in forms.items()):
                return answer
        return None

    def rows_of(self, answer: Answer, golden: Golden, kind: str, precision: str) -> Iterator[Row]:
        """Rows of an answer that is there already."""
        truth = golden.truth(kind)
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
                yield self._compared(golden, kind, precision, name, answer[name])
        for name in sorted(set(answer) - set(truth)) if isinstance(answer, dict) else ():
            extra = Problem(ProblemKind.EXTRA, "is not an output of this layer.")
            yield failed((golden.layer, golden.case, name), kind, precision, extra)

    def _compared(self, golden: Golden, kind: str, precision: str, name: str, got: Any) -> Row:
        """One comparison; for a value in float32, also as which precision it was seen to compute."""
        shape = _shape(golden, kind, name)

        def at(tolerated: str) -> Row:
            return compare_output(golden, kind, tolerated, name, got, shape, self._dtype(precision))

        row = at(precision)
        if not row.has_precision:
            return row
        recorded = golden.recorded_at("value")
        coarser = (p for p in ("tf32", "bf16") if PRECISIONS[p] in recorded and at(p).equal)
        return replace(row, seen=precision if row.equal else next(coarser, ""))


def _raised(error: BaseException, where: str = "") -> Problem:
    place = place_of(error)
    text = f"{where} raised {in_words(error)}{f' ({place})' if place else ''}".strip()
    return Problem(ProblemKind.RAISED, text, type(error).__name__, place)


def _changed(name: str) -> Problem:
    text = f"changed its input {name} in place; a layer must leave its inputs as they are."
    return Problem(ProblemKind.CALL, text, name)


def is_optional(implementation: Implementation, layer: str, output: str) -> bool:
    """Whether an implementation declares that an output may be missing."""
    patterns = getattr(implementation, "optional_outputs", {}).get(layer, ())
    return any(fnmatchcase(output, pattern) for pattern in patterns)


def why_unsupported(implementation: Implementation, golden: Golden) -> str:
    """Why an implementation declares that it cannot run a case; empty if it can."""
    declared = getattr(implementation, "unsupported", None)
    return str(declared(golden.layer, golden.settings) or "") if declared else ""


def _breach(answers: Any, count: int, inputs: Arrays, before: Arrays) -> Problem | None:
    """How a call breaks the contract, given the inputs after and before it; None if it does not."""
    if not isinstance(answers, tuple) or len(answers) != count:
        return Problem(ProblemKind.CALL, "expected a tuple of outputs and VJPs.", "tuple")
    changed = [name for name in {**before, **inputs} if not _is_same(before.get(name), inputs.get(name))]
    if changed:
        return _changed(changed[0])
    for answer in answers:
        if not isinstance(answer, dict):
            text = f"expected a dict of NumPy arrays, got {type(answer).__name__}."
            return Problem(ProblemKind.CALL, text, "dict")
        for name, value in answer.items():
            if not isinstance(name, str):
                return Problem(ProblemKind.CALL, f"expected names of outputs, got {type(name).__name__}.", "name")
            if isinstance(value, np.ndarray) and any(np.may_share_memory(value, x) for x in inputs.values()):
                text = f"output {name} shares memory with one of the inputs; answer with arrays of your own."
                return Problem(ProblemKind.CALL, text, name)
    return None


def _is_same(before: Any, after: Any) -> bool:
    """Whether an input is what it was; adapters put other things in its place."""
    is_array = type(before) is type(after) is np.ndarray and before.dtype == after.dtype
    return is_array and np.array_equal(before, after, equal_nan=before.dtype.kind == "f")


def _shape(golden: Golden, kind: str, name: str) -> tuple[int, ...]:
    """Of a whole answer, where the golden holds but a sketch."""
    if kind == "vjp":
        return golden.inputs[name].shape
    return REGISTRY[golden.layer].outputs(golden.settings)[name].shape(golden.settings)


def kinds_judged(golden: Golden, precision: str) -> list[str]:
    """`value`, `vjp` or both: what there is, and what sigma is known of at a precision."""
    bits = PRECISIONS[precision]
    return [kind for kind in ("value", "vjp") if golden.truth(kind) and bits in golden.recorded_at(kind)]
