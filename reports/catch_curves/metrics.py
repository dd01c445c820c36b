"""What is measured of a run on Catch: five numbers, of which two decide.

The share of balls missed over the whole run (the area above its curve) grows in proportion to the time that learning
takes, uses the whole curve and is never censored, so it varies less from seed to seed than any time does. Its margin is
what learning 1.2 times as long, or as short, would make of the original's own curves, so that it means the same for
runs of any length. The value loss in the second half of a run hardly varies from seed to seed, and tells where value
targets are wrong although the agent learns all the same. Both are compared as ratios. Beside them stand the steps to a
catch rate of 50% and of 90%, as ratios too, and the catch rate at the end, as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.runs.curves import LAST_EPISODES, Curve


@dataclass(frozen=True)
class Measure:
    """A number taken of each run.

    Attributes:
        name: of it.
        label: for readers.
        is_ratio: whether implementations are compared by ratio (of geometric means) or by difference (of means).
        margin: within which they count as the same: a factor above 1, or a difference.
        is_of_time: whether the factor is one of time, by which the reference's curves are stretched to find the margin.
    """

    name: str
    label: str
    is_ratio: bool
    margin: float
    is_of_time: bool = False

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Values on the scale on which they are compared; a run without a miss counts as one in 10,000 missed."""
        return np.log(np.maximum(values, 1e-4)) if self.is_ratio else values

    def unscaled(self, value: float) -> float:
        """Back from that scale."""
        return math.exp(min(value, 50.0)) if self.is_ratio else value

    def bounds(self, ref: Sequence[Curve]) -> tuple[float, float]:
        """The margin on that scale, low and high."""
        if self.is_of_time:
            return _stretched_missed(ref, 1 / self.margin), _stretched_missed(ref, self.margin)
        bound = math.log(self.margin) if self.is_ratio else self.margin
        return -bound, bound


def _stretched_missed(ref: Sequence[Curve], factor: float) -> float:
    """By how much the log of the balls missed changes if learning takes that many times as long."""
    changes = []
    for curve in ref:
        steps = np.arange(len(curve))
        stretched = np.interp(steps / factor, steps, curve.catch_rates)
        changes.append(math.log((1.0 - float(np.mean(stretched))) / (1.0 - area(curve))))
    return float(np.mean(changes))


MISSED = Measure("missed", "balls missed over the run", True, 1.2, is_of_time=True)
LOSS = Measure("value_loss", "value loss in the second half", True, 1.03)
DECIDING = (MISSED, LOSS)
MEASURES = (
    *DECIDING,
    Measure("time_50", "steps to 50%", True, 1.2),
    Measure("time_90", "steps to 90%", True, 1.2),
    Measure("final", "catch rate at the end", False, 0.05),
)


def time_to(curve: Curve, bar: float) -> float:
    """The first step, from 1, at which the last 100 episodes reach a catch rate; infinite if none does."""
    reached = (curve.catch_rates >= bar) & (curve.episodes >= LAST_EPISODES)
    return float(np.argmax(reached)) + 1.0 if reached.any() else math.inf


def area(curve: Curve) -> float:
    """The mean catch rate over the run, from 0 to 1: the area under the curve."""
    return float(np.nanmean(curve.catch_rates))


def late_loss(curve: Curve) -> float:
    """The mean value loss in the second half of a run; NaN where none was logged.

    In the first half the few steps in which a beginner's loss falls outweigh all others, and they vary with the seed.
    """
    losses = [loss for loss in curve.value_losses[len(curve) // 2 :] if loss is not None]
    return float(np.mean(losses)) if losses else math.nan


def measured(curves: Sequence[Curve]) -> dict[str, np.ndarray]:
    """Measure -> [n], for each run, NaN where there is none; the area under the curve beside them."""
    areas = np.array([area(curve) for curve in curves])
    return {
        "missed": 1.0 - areas,
        "value_loss": np.array([late_loss(curve) for curve in curves]),
        "time_50": np.array([time_to(curve, 0.5) for curve in curves]),
        "time_90": np.array([time_to(curve, 0.9) for curve in curves]),
        "final": np.array([curve.catch_rates[-1] for curve in curves]),
        "area": areas,
    }
