"""Whether two arrays are equal by the rule of `parity.tolerance`, and a full account of how they are not.

Structure comes first (type, shape, dtype, NaN and infinity patterns, blocks of zeros), then numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np

from parity.sigma import SMALLEST
from parity.sketch import sketch
from parity.tolerance import PRECISIONS, computed_in, excess, scale_of, tolerance, uninformative

BINS_PER_SIGMA, NUM_BINS = 4, 33  # of the distribution of errors in sigmas


class ProblemKind(StrEnum):
    """Why an output cannot be compared in numbers."""

    NONE = ""  # it can
    RAISED = "raised"  # the layer raised an error
    CALL = "call"  # the layer broke the contract
    MISSING = "missing"  # the layer did not return it
    EXTRA = "extra"  # the layer has no such output
    FORM = "form"  # type, shape or dtype
    NOT_FINITE = "not finite"  # NaN or infinity on one side only
    ZEROS = "zeros"  # a gradient that is all zero on one side only
    INTEGER = "integer"  # integers and bools must be exactly equal


NO_NUMBERS = frozenset((ProblemKind.RAISED, ProblemKind.CALL, ProblemKind.MISSING, ProblemKind.EXTRA, ProblemKind.FORM))
JSON_TYPES: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "float | None": (float, int, type(None)),
}


@dataclass(frozen=True)
class Problem:
    """What is wrong with the structure of an output.

    Attributes:
        kind: what programs go by.
        text: a sentence for people, by which nothing is decided.
        detail: tells problems of one kind apart, e.g. the shape that came.
        place: file and line of the adapter, where it raised.
    """

    kind: ProblemKind
    text: str = field(compare=False)
    detail: str = ""
    place: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Row:
    """The comparison of one output (or VJP) of one case.

    Attributes:
        layer: where it was found, as are `case`, `output` and `kind` (`value` or `vjp`).
        dtype: the precision whose tolerance was used.
        max_abs: error of the worst element: the one that takes most of its tolerance.
        max_rel: that error relative to the output's scale.
        max_ulp: the same in units in the last place of the number.
        sigmas: the C that the worst element would need.
        scale: largest finite magnitude of the output.
        tolerance: what the rule allows the worst element.
        ratio: error of the worst element over its tolerance.
        equal: whether all elements are within their tolerance.
        index: of the worst element; `ref` and `got` are the numbers there.
        elements: how many numbers were compared.
        silent: how many of them say nothing, because rounding moves them by more than 1e-3 of the scale in float64.
        problem: what is wrong with the structure; None where numbers were compared.
        counts: how many elements are how many sigmas off, in bins; only those of which rounding moves something.
        seen: of a value in float32, the finest precision by whose tolerance it is equal; empty if there is none.
    """

    layer: str
    case: str
    output: str
    kind: str
    dtype: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    sigmas: float = 0.0
    scale: float = 0.0
    tolerance: float = 0.0
    ratio: float = 0.0
    equal: bool = True
    index: tuple[int, ...] = ()
    ref: float | None = None
    got: float | None = None
    elements: int = 0
    silent: int = 0
    problem: Problem | None = None
    counts: tuple[int, ...] = field(default=(), repr=False)
    seen: str = ""

    @property
    def has_precision(self) -> bool:
        """Whether it shows the precision in which a layer computes: a value in float32, with numbers to compare."""
        has_numbers = self.problem is None or self.problem.kind is ProblemKind.ZEROS
        return (self.kind, self.dtype) == ("value", "float32") and has_numbers

    def as_json(self) -> dict[str, Any]:
        """The row for machines; infinities become null."""
        problem = self.problem or Problem(ProblemKind.NONE, "")
        values = asdict(self) | {"index": list(self.index), "problem": problem.text}
        values |= {"problem_kind": problem.kind, "problem_detail": problem.detail, "place": problem.place}
        del values["counts"]
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Row:
        """The row that `as_json` gave, without its counts; KeyError, TypeError or ValueError where it gave no such."""
        row: dict[str, Any] = {}
        for each in fields(cls):
            if each.type in JSON_TYPES:
                value = values[each.name]
                row[each.name] = np.inf if value is None and each.type == "float" else value
                if not isinstance(row[each.name], JSON_TYPES[each.type]):
                    raise TypeError(f"{each.name} is {value!r}")
        kind, *texts = (str(values[key]) for key in ("problem_kind", "problem", "problem_detail", "place"))
        problem = Problem(ProblemKind(kind), *texts) if kind else None
        return cls(**row, index=tuple(int(i) for i in values["index"]), problem=problem)

    def sentence(self) -> str:
        """Says what was compared and how far apart it is."""
        what = f"{self.layer}[{self.case}] {self.kind} of {self.output} ({self.dtype})"
        if self.problem:
            return f"{what}: {self.problem}"
        verdict = "equal" if self.equal else "DIFFERENT"
        return (
            f"{what}: {verdict}; worst element {list(self.index)}: ref {self.ref!r}, got {self.got!r}; "
            f"abs {self.max_abs:.3g}, rel {self.max_rel:.3g}, {self.max_ulp:.3g} ULP, {self.sigmas:.3g} sigma; "
            f"{self.ratio:.3g} of its tolerance {self.tolerance:.3g}"
        )


def form_problem(got: Any, shape: tuple[int, ...], kind: str, dtype: str) -> Problem | None:
    """What is wrong with the type, shape or dtype, if anything; `kind` is `f`, `i` or `b` as in NumPy."""
    if type(got) is not np.ndarray:  # a subclass may compare in its own way: what is masked is never unequal
        name = type(got).__name__
        return Problem(ProblemKind.FORM, f"expected a plain numpy.ndarray, got {name}.", name)
    if got.shape != shape:
        return Problem(ProblemKind.FORM, f"expected shape {list(shape)}, got {list(got.shape)}.", str(got.shape))
    expected = {"f": dtype, "i": "an integer", "b": "bool"}[kind]
    fits = got.dtype == np.dtype(dtype) if kind == "f" else got.dtype.kind in ("iu" if kind == "i" else "b")
    return None if fits else Problem(ProblemKind.FORM, f"expected dtype {expected}, got {got.dtype}.", str(got.dtype))


def pattern_problem(ref: np.ndarray, got: np.ndarray, kind: str, allowed: np.ndarray) -> Problem | None:
    """Which NaN, infinity or block of zeros is out of place, if any."""
    is_free = np.isposinf(allowed)  # the noise itself leaves the finite numbers there
    for name, pattern in (("NaN", np.isnan), ("+infinity", np.isposinf), ("-infinity", np.isneginf)):
        wrong = (pattern(ref) != pattern(got)) & ~is_free
        if wrong.any():
            where = np.argwhere(wrong)[0].tolist()
            verdict = "missing" if pattern(ref)[tuple(where)] else "not in the reference"
            return Problem(ProblemKind.NOT_FINITE, f"{name} at {where} is {verdict}.")
    if kind == "vjp":
        for nil, other, cause, text in (
            (
                ref,
                got,
                "gradient not stopped",
                "the gradient is stopped in the reference (all zero), but reaches {:.3g} here.",
            ),
            (got, ref, "gradient is zero", "the gradient is zero here, but reaches {:.3g} in the reference."),
        ):
            if not nil.any() and (np.abs(other) > allowed).any():
                return Problem(ProblemKind.ZEROS, text.format(np.abs(other).max()), cause)
    return None


def compare(
    where: tuple[str, str, str],
    kind: str,
    precision: str,
    ref: np.ndarray,
    got: Any,
    sigma: np.ndarray,
    shape: tuple[int, ...] | None = None,
    alternatives: np.ndarray | None = None,
    dtype: str = "",
) -> Row:
    """Compares one output with the float64 truth; an integer one with what it must be exactly.

    Args:
        where: layer, case and output, for the report.
        kind: `value` or `vjp`.
        precision: whose tolerance is used; one of `PRECISIONS`.
        ref: the truth, or its sketch.
        got: the candidate's answer, whole.
        sigma: of each element of `ref`, at this precision.
        shape: the shape that `got` must have, where `ref` is only a sketch of it.
        alternatives: [N, ...], other integers that rounding gives, for an output of integers.
        dtype: that `got` must have, where it is not the precision's own.
    """
    expected = ref.shape if shape is None else shape
    problem = form_problem(got, expected, ref.dtype.kind, dtype or computed_in(precision))
    if problem:
        return failed(where, kind, precision, problem)
    if ref.dtype.kind != "f":
        return _exact(where, kind, precision, ref, got, alternatives)
    got = np.asarray(got if got.shape == ref.shape else sketch(got), np.float64)
    scale, bits = scale_of(ref), PRECISIONS[precision]
    allowed = tolerance(sigma, scale, bits)
    problem = pattern_problem(ref, got, kind, allowed)
    if problem:
        return failed(where, kind, precision, problem, scale)
    if ref.size == 0:
        return Row(*where, kind, precision, scale=scale)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.where(np.isfinite(ref) & ~np.isposinf(allowed), np.abs(got - ref), 0.0)
        ratio = np.where(error == 0.0, 0.0, error / allowed)
        index = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        worst, reference = float(error[index]), float(ref[index])
        unit = float(np.spacing(np.abs(ref[index]).astype(computed_in(precision))))
    return Row(
        *where,
        kind=kind,
        dtype=precision,
        max_abs=worst,
        max_rel=worst / scale if scale else worst,
        max_ulp=worst / unit,
        sigmas=float(excess(error, sigma, scale, bits).max()),
        scale=scale,
        tolerance=float(allowed[index]),
        ratio=float(ratio[index]),
        equal=bool(ratio[index] <= 1.0),
        index=tuple(int(i) for i in index),
        ref=reference,
        got=float(got[index]),
        elements=ref.size,
        silent=int(uninformative(ref, sigma).sum()) if precision == "float64" else 0,
        counts=_counts(error, sigma, bits),
    )


def _counts(error: np.ndarray, sigma: np.ndarray, bits: int) -> tuple[int, ...]:
    """Elements by their error in sigmas, in bins of a quarter; the last bin is open."""
    moves = np.isfinite(sigma) & (sigma > 2.0 * SMALLEST[bits])  # less is no rounding, only the end of the numbers
    with np.errstate(over="ignore"):
        bins = np.minimum(error[moves] / sigma[moves] * BINS_PER_SIGMA, NUM_BINS - 1).astype(int)
    return tuple(np.bincount(bins, minlength=NUM_BINS).tolist())


def failed(where: tuple[str, str, str], kind: str, precision: str, problem: Problem, scale: float = 0.0) -> Row:
    """The row of an output that cannot be compared in numbers."""
    inf = np.inf
    return Row(*where, kind, precision, inf, inf, inf, inf, scale, ratio=inf, equal=False, problem=problem)


def _exact(
    where: tuple[str, str, str], kind: str, precision: str, ref: np.ndarray, got: np.ndarray, others: np.ndarray | None
) -> Row:
    differs = np.asarray(ref != got)
    if others is not None:
        differs &= np.all(others != got, axis=0)
    if not differs.any():
        return Row(*where, kind, precision, scale=1.0, elements=ref.size)
    index = tuple(np.argwhere(differs)[0].tolist())
    text = f"must be exactly equal; at {list(index)} expected {ref[index]}, got {got[index]}."
    row = failed(where, kind, precision, Problem(ProblemKind.INTEGER, text), 1.0)
    gap = abs(float(ref[index]) - float(got[index]))
    return replace(row, max_abs=gap, max_rel=gap, index=index, ref=float(ref[index]), got=float(got[index]))
