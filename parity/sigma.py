"""Sigma: how far rounding takes a number, from answers under Monte Carlo arithmetic; and how it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.tolerance import C

# The least noise that float64 carries is 2^-52: less is rounded away where a mantissa is just above 1. So sigma at
# p = 53 is half of what that noise gives.
CARRIED = 52
NONE = 9999  # bits: no noise
SMALLEST = {53: 2.0**-1022, 24: 2.0**-126, 11: 2.0**-126, 8: 2.0**-126}  # normal number; what is smaller may become 0
LARGEST = {53: 2.0**1023 * (2 - 2.0**-52), **dict.fromkeys((24, 11, 8), 2.0**127 * (2 - 2.0**-23))}  # else infinite
STEPS_PER_OCTAVE, LOWEST_OCTAVE, INFINITE = 4, -1100, 65535  # how sigma is stored: two bytes on a log scale


Arrays = dict[str, np.ndarray]
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


def measure(bits: Sequence[int], values: Arrays, vjps: Arrays) -> Rounding:
    """From answers with random roundings.

    Args:
        bits: [S], p of each sample; the first sample has no noise.
        values: [S, ...], outputs.
        vjps: [S, ...].
    """
    rounding, precisions = Rounding(), list(dict.fromkeys(bits[1:]))
    places = {p: np.flatnonzero(np.array(bits[1:]) == p) + 1 for p in precisions}
    for kind, answers in (("value", values), ("vjp", vjps)):
        for name, several in answers.items():
            by_bits = {p: several[samples] for p, samples in places.items()}
            if several.dtype.kind == "f":
                rounding.sigmas[kind][name] = {p: _sigma(noisy, several[0], p) for p, noisy in by_bits.items()}
            elif others := {
                p: _others(noisy, several[0]) for p, noisy in by_bits.items() if (noisy != several[0]).any()
            }:
                rounding.alternatives[name] = others
    return rounding


def _sigma(noisy: np.ndarray, still: np.ndarray, bits: int) -> np.ndarray:
    """Root mean square change; infinite where noise leaves the finite numbers, 0 where these are left without.

    It is never so small that an answer of the noise itself would be called different, as at a branch that few take.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.where(noisy == still, 0.0, np.abs(noisy - still))
        sigma = np.sqrt(np.mean(np.square(change), axis=0)) * 2.0 ** (min(bits, CARRIED) - bits)
        sigma = np.maximum(sigma, change.max(axis=0) / C)
    sigma = np.where((sigma > 0.0) | (still != 0.0), np.maximum(sigma, SMALLEST[bits]), 0.0)
    is_held = np.isfinite(sigma) & (np.abs(still) <= LARGEST[bits])
    return np.where(np.isfinite(still), np.where(is_held, sigma, np.inf), 0.0)


def _others(noisy: np.ndarray, still: np.ndarray) -> np.ndarray:
    return np.unique([sample for sample in noisy if np.any(sample != still)], axis=0)


def encode(sigma: np.ndarray) -> np.ndarray:
    """Sigma as two bytes: its logarithm in quarters of an octave, rounded up; 0 for 0."""
    with np.errstate(divide="ignore"):
        steps = np.ceil((np.log2(sigma) - LOWEST_OCTAVE) * STEPS_PER_OCTAVE)
    return np.nan_to_num(steps, nan=INFINITE, posinf=INFINITE, neginf=0.0).astype(np.uint16)


def decode(codes: np.ndarray) -> np.ndarray:
    """The inverse of `encode`, at most 19% more than what was encoded."""
    sigma = np.exp2(np.minimum(codes / STEPS_PER_OCTAVE + LOWEST_OCTAVE, 1023.0))
    return np.where(codes == 0, 0.0, np.where(codes == INFINITE, np.inf, sigma))
