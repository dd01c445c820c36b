"""Whether two arrays are equal, and a full account of how they are not.

Structure comes first (shape, dtype, NaN and infinity patterns, blocks of zeros), then numbers. In float64 an element
may differ by 1e-12 of the output's scale, or by the original's own measured sensitivity where that is larger; in
float32 an output may be at most twice as far from the float64 truth as the original itself was measured to be.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parity.store import Accuracy, sketch

TOLERANCE64 = 1e-12
FACTOR32 = 2.0
HALF_ULP32 = 2.0**-24
ROUNDING64 = 1e-15
OF_ZEROS = "the gradient is"
FLOAT32_TO_FLOAT64 = 2.0**-29  # ratio of the units in the last place


@dataclass(frozen=True)
class Row:
    """The comparison of one output (or VJP) of one case."""

    layer: str
    case: str
    output: str
    kind: str
    dtype: str
    max_abs: float
    max_rel: float
    max_ulp: float
    scale: float
    budget: float
    ratio: float
    equal: bool
    index: tuple[int, ...]
    ref: float | None
    got: float | None
    at_branch: int = 0
    ill_conditioned: bool = False
    problem: str = ""

    @property
    def is_of_form(self) -> bool:
        """Whether names, types, shapes, NaN or infinities are wrong, rather than a number or a block of zeros."""
        return bool(self.problem) and not self.problem.startswith(OF_ZEROS)

    def as_json(self) -> dict[str, Any]:
        """The row for machines; infinities become null."""
        values = asdict(self) | {"index": list(self.index)}
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in values.items()}

    def sentence(self) -> str:
        """Says what was compared and how far apart it is."""
        what = f"{self.layer}[{self.case}] {self.kind} of {self.output} ({self.dtype})"
        if self.problem:
            return f"{what}: {self.problem}"
        verdict = "equal" if self.equal else "DIFFERENT"
        return (
            f"{what}: {verdict}; worst element {list(self.index)}: ref {self.ref!r}, got {self.got!r}; "
            f"abs {self.max_abs:.3g}, rel {self.max_rel:.3g}, {self.max_ulp:.3g} ULP; "
            f"{self.ratio:.3g} of its budget {self.budget:.3g}"
        )


def budget(accuracy: Accuracy, dtype: str, rounding: float = 0.0, tolerance64: float = TOLERANCE64) -> float:
    """The largest allowed absolute error of an output.

    `rounding` is what rounding alone leaves where large numbers cancel. The policy target does not change when all its
    logits move together, so the gradient of their common bias is zero but for rounding, in the original as well; and
    the KL of two nearly equal policies is a small sum of differences of log-probabilities near 1. In float32 it is
    given for logs only: the mean of signed numbers is as uncertain as they are, however small it is itself, and how
    close one summation order comes to the truth on a few inputs is luck.
    """
    if dtype == "float64":
        return max(tolerance64 * accuracy.scale, sensitivity(accuracy), rounding)
    assert accuracy.distance32 is not None, "no float32 distance was recorded"
    return FACTOR32 * max(accuracy.distance32, HALF_ULP32 * accuracy.scale, rounding)


def sensitivity(accuracy: Accuracy) -> float:
    """How far the original's own float64 answer may be from exact, as measured on it.

    Either what it moves by when its inputs do, or what its roundings add up to: its float32 error, scaled to float64,
    once for the original and once for the candidate. That is larger where small inputs pass through large
    intermediate numbers, as in the KL of two nearly equal policies.
    """
    return max(accuracy.sensitivity64, 2.0 * FLOAT32_TO_FLOAT64 * (accuracy.distance32 or 0.0))


def form_problem(got: Any, shape: tuple[int, ...], kind: str, dtype: str) -> str:
    """Returns what is wrong with the type, shape or dtype of an array, or an empty string."""
    if not isinstance(got, np.ndarray):
        return f"expected a NumPy array, got {type(got).__name__}."
    if got.shape != shape:
        return f"expected shape {list(shape)}, got {list(got.shape)}."
    expected = {"f": dtype, "i": "an integer", "b": "bool"}[kind]
    fits = got.dtype == np.dtype(dtype) if kind == "f" else got.dtype.kind in ("iu" if kind == "i" else "b")
    return "" if fits else f"expected dtype {expected}, got {got.dtype}."


def pattern_problem(ref: np.ndarray, got: np.ndarray, kind: str, allowed: float) -> str:
    """Returns which NaN, infinity or block of zeros is out of place, or an empty string."""
    for name, pattern in (("NaN", np.isnan), ("+infinity", np.isposinf), ("-infinity", np.isneginf)):
        expected, present = pattern(ref), pattern(got)
        if not np.array_equal(expected, present):
            where = np.argwhere(expected != present)[0].tolist()
            return f"{name} at {where} is {'missing' if expected[tuple(where)] else 'not in the reference'}."
    if kind == "vjp" and not ref.any() and np.abs(got).max(initial=0.0) > allowed:
        return f"{OF_ZEROS} stopped in the reference (all zero), but reaches {np.abs(got).max():.3g} here."
    if kind == "vjp" and not got.any() and np.abs(ref).max(initial=0.0) > allowed:
        return f"{OF_ZEROS} zero here, but reaches {np.abs(ref).max():.3g} in the reference."
    return ""


def errors(ref: np.ndarray, got: np.ndarray, sides: list[np.ndarray], allowed: float) -> tuple[np.ndarray, np.ndarray]:
    """Absolute errors, and which elements stand at a branch.

    At a branch (where the original's own answer jumps when its inputs move by one unit in the last place) the
    answer on either side is right, and the error is the distance to the nearest.
    """
    with np.errstate(invalid="ignore"):
        error = np.where(np.isfinite(ref), np.abs(got.astype(np.float64) - ref), 0.0)
    at_branch = np.zeros(ref.shape, bool)
    for side in sides:
        at_branch |= np.abs(side - ref) > allowed
    for side in sides:
        error = np.where(at_branch, np.minimum(error, np.abs(got - side)), error)
    return error, at_branch


def compare(
    where: tuple[str, str, str],
    kind: str,
    dtype: str,
    ref: np.ndarray,
    got: Any,
    accuracy: Accuracy,
    sides: list[np.ndarray] | None = None,
    shape: tuple[int, ...] | None = None,
    rounding: float = 0.0,
    tolerance64: float = TOLERANCE64,
) -> Row:
    """Compares one output with the float64 truth (or an integer one with what it must be exactly).

    Args:
        where: layer, case and output, for the report.
        kind: `value` or `vjp`.
        dtype: the precision the candidate computed in.
        ref: the truth, or its sketch.
        got: what the candidate gave, whole.
        accuracy: the original's own measured accuracy.
        sides: the original's answers on either side of a branch.
        shape: the shape that `got` must have, where `ref` is only a sketch of it.
        rounding: what rounding alone leaves where large numbers cancel (see `budget`).
        tolerance64: share of the output's scale that is allowed in float64.
    """
    problem = form_problem(got, ref.shape if shape is None else shape, ref.dtype.kind, dtype)
    if problem:
        return failed(where, kind, dtype, problem, accuracy.scale)
    if ref.dtype.kind != "f":
        return _exact(where, kind, dtype, ref, got)
    got = got if got.shape == ref.shape else sketch(got)
    allowed = budget(accuracy, dtype, rounding, tolerance64)
    if np.isposinf(allowed):  # the original itself overflows in float32, where the truth does not: nothing to hold to
        return Row(*where, kind, dtype, 0.0, 0.0, 0.0, accuracy.scale, allowed, 0.0, True, (), None, None)
    problem = pattern_problem(ref, got, kind, allowed)
    if problem:
        return failed(where, kind, dtype, problem, accuracy.scale)
    error, at_branch = errors(ref, got, sides or [], allowed)
    if error.size == 0:
        return Row(*where, kind, dtype, 0.0, 0.0, 0.0, accuracy.scale, allowed, 0.0, True, (), None, None)
    index = np.unravel_index(int(np.argmax(error)), error.shape)
    worst, reference, given = float(error[index]), float(ref[index]), float(got[index])
    return Row(
        *where,
        kind=kind,
        dtype=dtype,
        max_abs=worst,
        max_rel=worst / accuracy.scale if accuracy.scale else worst,
        max_ulp=worst / float(np.spacing(np.abs(ref[index]).astype(dtype))),
        scale=accuracy.scale,
        budget=allowed,
        ratio=_ratio(worst, allowed),
        equal=worst <= allowed,
        index=tuple(int(i) for i in index),
        ref=reference,
        got=given,
        at_branch=int(at_branch.sum()),
        ill_conditioned=dtype == "float64" and tolerance64 * accuracy.scale < worst <= allowed,
    )


def failed(where: tuple[str, str, str], kind: str, dtype: str, problem: str, scale: float = 0.0) -> Row:
    """The row of an output that cannot be compared in numbers."""
    return Row(*where, kind, dtype, np.inf, np.inf, np.inf, scale, 0.0, np.inf, False, (), None, None, problem=problem)


def _ratio(error: float, allowed: float) -> float:
    if error == 0.0:
        return 0.0
    return error / allowed if allowed else np.inf


def _exact(where: tuple[str, str, str], kind: str, dtype: str, ref: np.ndarray, got: np.ndarray) -> Row:
    differs = np.asarray(ref != got)
    if not differs.any():
        return Row(*where, kind, dtype, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, True, (), None, None)
    index = tuple(np.argwhere(differs)[0].tolist())
    values = float(ref[index]), float(got[index])
    gap = abs(values[0] - values[1])
    problem = f"must be exactly equal; at {list(index)} expected {ref[index]}, got {got[index]}."
    return Row(*where, kind, dtype, gap, gap, np.inf, 1.0, 0.0, np.inf, False, index, *values, problem=problem)
