"""What an error looks like when nobody knows its cause: a few cheap questions, each answered only where it is plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from parity.compare import Row
from parity.goldens.judge import run, vjp
from parity.goldens.store import Golden
from parity.implementation import Implementation
from parity.layers.spec import Arrays
from parity.tolerance import PRECISIONS, floor

Question = Callable[[np.ndarray, np.ndarray], str]


def near(scale: float) -> float:
    """How close two numbers of a scale are for a pattern to hold: as close as float32 would bring them."""
    return floor(scale, PRECISIONS["float32"])


def _same(a: np.ndarray, b: np.ndarray, scale: float) -> bool:
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= near(scale)))


def factor(ref: np.ndarray, got: np.ndarray) -> str:
    """A constant factor, the sign among them."""
    norm = float((ref * ref).sum())
    ratio = float((ref * got).sum()) / norm if norm else 0.0
    if ref.size < 2 or not ratio or not _same(ratio * ref, got, float(np.abs(got).max())):
        return ""
    is_sign = abs(ratio + 1) < near(1.0)
    return "The sign is reversed." if is_sign else f"It is {ratio:.6g} times the right answer throughout."


def offset(ref: np.ndarray, got: np.ndarray) -> str:
    """A constant added."""
    gap = float(np.median(got - ref))
    return f"It is the right answer plus {gap:.6g} throughout." if _same(ref + gap, got, np.abs(ref).max()) else ""


def shift(ref: np.ndarray, got: np.ndarray) -> str:
    """One step too early or too late, or the wrong way round in time."""
    if ref.ndim == 0 or len(ref) < 3:
        return ""
    scale = float(np.abs(ref).max())
    if _same(ref[1:], got[:-1], scale):
        return "It is shifted along the first axis: step t holds what belongs to step t+1."
    if _same(ref[:-1], got[1:], scale):
        return "It is shifted along the first axis: step t holds what belongs to step t-1."
    return "It runs the wrong way round along the first axis." if _same(ref[::-1], got, scale) else ""


def order(ref: np.ndarray, got: np.ndarray) -> str:
    """The right numbers in another order."""
    if ref.size < 3:
        return ""
    is_permuted = _same(np.sort(ref.reshape(-1)), np.sort(got.reshape(-1)), float(np.abs(ref).max()))
    return "The numbers are right, but stand in another order." if is_permuted else ""


def single(ref: np.ndarray, got: np.ndarray) -> str:
    """The size of float32 rounding."""
    if np.abs(got - ref).max() > near(float(np.abs(ref).max())):
        return ""
    if np.array_equal(got, got.astype(np.float32).astype(np.float64)):
        return "Every number is a float32: it was computed or rounded in single precision."
    return "The error is of the size of float32 rounding: a constant or a step inside may be float32."


def edges(ref: np.ndarray, got: np.ndarray) -> str:
    """Wrong at one end of the first axis only."""
    if ref.ndim == 0 or len(ref) < 2:
        return ""
    wrong = np.flatnonzero((np.abs(got - ref) > near(np.abs(ref).max())).reshape(len(ref), -1).any(axis=1))
    named = {0: "first", len(ref) - 1: "last"}
    if len(wrong) == 1 and int(wrong[0]) in named:
        return f"Only the {named[int(wrong[0])]} step of the first axis is wrong."
    return ""


QUESTIONS: tuple[Question, ...] = (factor, offset, shift, order, single, edges)


def at_flags(ref: np.ndarray, got: np.ndarray, inputs: Arrays) -> list[str]:
    """Wrong only where a flag among the inputs (a terminal, a continuation) is set, or only where it is not."""
    wrong = np.abs(got - ref) > near(float(np.abs(ref).max()))
    sentences = []
    for name, flag in inputs.items():
        is_flag = flag.ndim > 0 and bool(np.isin(flag, (0, 1)).all()) and 0 < flag.mean() < 1
        if not is_flag or ref.shape[: flag.ndim] != flag.shape:
            continue
        steps = wrong.reshape(*flag.shape, -1).any(axis=-1)
        for value in (True, False):
            if steps.any() and not steps[flag.astype(bool) != value].any():
                sentences.append(f"It is wrong only where {name} is {value}.")
    return sentences


def describe(ref: np.ndarray, got: np.ndarray, inputs: Arrays) -> list[str]:
    """Sentences about the difference of two arrays of the same shape, all finite."""
    share = float(np.mean(np.abs(got - ref) > near(float(np.abs(ref).max()))))
    answers = [question(ref, got) for question in QUESTIONS]
    return [f"{share:.0%} of the elements are off.", *(a for a in answers if a), *at_flags(ref, got, inputs)]


def patterns(goldens: Sequence[Golden], candidate: Implementation, worst: Row) -> list[str]:
    """What the worst difference of a layer looks like."""
    size = f"The largest error is {worst.max_abs:.3g}, {worst.max_rel:.3g} of the output's scale."
    if worst.dtype == "float32":
        return [size, "In float64 it is right: it is only less exact in float32 than the original."]
    if worst.problem and worst.kind == "value":
        return [worst.problem.text]
    golden = next(golden for golden in goldens if golden.case == worst.case)
    if worst.kind == "vjp":
        note = "The values are right; the gradient is not: look for a gradient stopped, or not stopped."
        ref, got = golden.vjps[worst.output], vjp(candidate, golden)[worst.output]
        head = [note] if worst.problem else [size, note]
    else:
        ref, got, head = golden.outputs[worst.output], run(candidate, golden)[worst.output], [size]
    comparable = got.shape == ref.shape and ref.dtype.kind == "f" and np.isfinite(ref).all() and np.isfinite(got).all()
    return [*head, *describe(ref, got, golden.inputs)] if comparable and ref.size else head
