"""What counts as equal. This is the only tolerance in the project.

Two right implementations differ by rounding, and by nothing else. So the tolerance of a number is how far rounding may
take that number:

    |got - truth| <= C * sigma_p + K * 2^-p * scale        element by element

- truth: the original's answer in float64, compiled as its users compile it.
- p: bits of precision of the candidate's arithmetic (`PRECISIONS`).
- sigma_p: root mean square movement of this number when every rounding of the original is replaced by a random one of
  size 2^-p. It is measured by Monte Carlo arithmetic (`reference/monte_carlo/`; Parker 1997).
- scale: the largest finite magnitude of the output that the number belongs to.

The constants are derived, not fitted to a candidate:

- C. A run compares about N = 1e7 elements. Truth and candidate each carry an error of about one sigma, so their
  difference has a standard deviation of sqrt(2) sigma. The expected extreme of N such differences is 7.5 sigma
  (5.3 * sqrt(2)). C = 8 is the next whole number.
- K. Noise on the original's own formula cannot see the rounding of another formula for the same number: a sum that is
  split otherwise, a factor taken out. Such a formula adds some roundings of the size of its largest term, which is
  about the output's scale. 64 roundings of one sign are K = 64; in float64 that is 7e-15 of the scale.

What the original itself needs of C, compiled in other ways, stands in `fixtures/calibration.json`.
"""

from __future__ import annotations

import numpy as np

C = 8.0
K = 64.0
PRECISIONS = {"float64": 53, "float32": 24, "tf32": 11, "fp16": 11, "bf16": 8}
RECORDED = {"value": (53, 24, 11, 8), "vjp": (53, 24)}  # the p at which sigma is recorded
SAMPLES = 32  # of Monte Carlo arithmetic, at least

UNINFORMATIVE = 1e-3  # of the scale: where sigma is larger in float64, the element says nothing
MOST_UNINFORMATIVE = 0.01  # of the elements of an output, in a case that is not at a branch


def computed_in(precision: str) -> str:
    """The dtype in which a candidate answers: float64, or float32 for everything below."""
    return "float64" if precision == "float64" else "float32"


def scale_of(truth: np.ndarray) -> float:
    """The largest finite magnitude of an output; 0 where there is none."""
    if truth.dtype.kind != "f":
        return 1.0
    return float(np.abs(truth[np.isfinite(truth)]).max(initial=0.0))


def floor(scale: float, bits: int) -> float:
    """The part of the tolerance that is the same for all elements of an output."""
    return K * 2.0**-bits * scale


def tolerance(sigma: np.ndarray, scale: float, bits: int) -> np.ndarray:
    """How far each element may be from the truth."""
    return C * sigma + floor(scale, bits)


def excess(error: np.ndarray, sigma: np.ndarray, scale: float, bits: int) -> np.ndarray:
    """Errors in sigmas: the C that each element would need. It is infinite where sigma is 0 and the floor is passed."""
    beyond = np.maximum(error - floor(scale, bits), 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(beyond == 0.0, 0.0, beyond / sigma)


class Uninformative(Exception):
    """A case says too little: rounding alone moves many of its numbers by more than a thousandth of their scale."""


def is_zero_but_for_rounding(truth: np.ndarray, sigma: np.ndarray) -> bool:
    """Whether every number of an output is 0 up to rounding, such as a gradient that cancels."""
    return bool((np.abs(truth) <= C * sigma).all())


def uninformative(truth: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """The elements that say nothing, given sigma in float64; an output that must be 0 says that."""
    if truth.dtype.kind != "f" or is_zero_but_for_rounding(truth, sigma):
        return np.zeros(truth.shape, bool)
    return sigma > UNINFORMATIVE * scale_of(truth)
