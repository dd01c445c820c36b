"""Sigma: how far rounding takes a number, from answers under Monte Carlo arithmetic; and how it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

# Noise of 2^-53 is itself rounded away by the float64 that carries it, near powers of two. So sigma_53 is the larger of
# two measurements: with that noise, which finds branches, and with noise of 2^-47, scaled by 2^-6.
CARRIED = 47
SMALLEST = {53: 2.0**-1022, 24: 2.0**-126, 11: 2.0**-126, 8: 2.0**-126}  # normal number; what is smaller may become 0
STEPS_PER_OCTAVE, LOWEST_OCTAVE, INFINITE = 4, -1100, 65535  # how sigma is stored: two bytes on a log scale


def measured_at(bits: Iterable[int]) -> list[int]:
    """The sizes of noise that are needed for sigma at some p."""
    return sorted({*bits, *([CARRIED] if 53 in bits else [])}, reverse=True)


Sigmas = dict[str, dict[int, np.ndarray]]  # output -> p -> an array


@dataclass(frozen=True)
class Rounding:
    """How far rounding takes the numbers of an answer.

    Attributes:
        sigmas: `value` and `vjp` -> sigma of each float output at each p.
        alternatives: for outputs of integers, [N, ...] the other answers that rounding gives, where there are any.
    """

    sigmas: dict[str, Sigmas] = field(default_factory=lambda: {"value": {}, "vjp": {}})
    alternatives: Sigmas = field(default_factory=dict)


def measure(answers: Iterable[tuple[int, dict[str, np.ndarray], dict[str, np.ndarray]]]) -> Rounding:
    """From (p, outputs, VJPs) with random roundings; the first answer is the one without."""
    (_, *still), *noisy = answers
    found = Rounding()
    for place, kind in enumerate(("value", "vjp")):
        for name, ref in still[place].items():
            moved: dict[int, list[np.ndarray]] = {}
            for p, *answer in noisy:
                moved.setdefault(p, []).append(answer[place][name])
            if ref.dtype.kind == "f":
                found.sigmas[kind][name] = _by_precision({p: _sigma(several, ref) for p, several in moved.items()}, ref)
            elif others := {p: _others(moved[p], ref) for p in moved if p != CARRIED and np.any(moved[p] != ref)}:
                found.alternatives[name] = others
    return found


def _by_precision(sigmas: dict[int, np.ndarray], still: np.ndarray) -> dict[int, np.ndarray]:
    carried = sigmas.pop(CARRIED, None)
    if carried is not None:
        sigmas[53] = np.maximum(sigmas[53], carried * 2.0 ** (CARRIED - 53))
    return {
        p: np.where((sigma > 0.0) | (still != 0.0), np.maximum(sigma, SMALLEST[p]), 0.0) for p, sigma in sigmas.items()
    }


def _sigma(moved: list[np.ndarray], still: np.ndarray) -> np.ndarray:
    """Root mean square movement; infinite where noise leaves the finite numbers, 0 where these are left without."""
    with np.errstate(invalid="ignore", over="ignore"):
        squares = [np.where(one == still, 0.0, np.square(one - still)) for one in moved]
        sigma = np.sqrt(np.mean(squares, axis=0))
    return np.where(np.isfinite(still), np.where(np.isfinite(sigma), sigma, np.inf), 0.0)


def _others(moved: list[np.ndarray], still: np.ndarray) -> np.ndarray:
    return np.unique([one for one in moved if np.any(one != still)], axis=0)


def encode(sigma: np.ndarray) -> np.ndarray:
    """Sigma as two bytes: its logarithm in quarters of an octave, rounded up; 0 for 0."""
    with np.errstate(divide="ignore"):
        steps = np.ceil((np.log2(sigma) - LOWEST_OCTAVE) * STEPS_PER_OCTAVE)
    return np.nan_to_num(steps, nan=INFINITE, posinf=INFINITE, neginf=0.0).astype(np.uint16)


def decode(codes: np.ndarray) -> np.ndarray:
    """The inverse of `encode`, at most 19% more than what was encoded."""
    sigma = np.exp2(np.minimum(codes / STEPS_PER_OCTAVE + LOWEST_OCTAVE, 1023.0))
    return np.where(codes == 0, 0.0, np.where(codes == INFINITE, np.inf, sigma))
