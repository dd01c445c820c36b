"""The power of the tests at a number of seeds, by noncentral t (statsmodels has it for differences only)."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats
from statsmodels.stats.power import TTestIndPower

ALPHA = 0.05
POWER = 0.8  # for which the number of seeds needed is computed
FEWEST = 3  # seeds on each side
MOST = 1000  # seeds that are still counted
CERTAIN = (-10.0, 15.0)  # noncentralities of t at which a one-sided test never, and always, passes


def tost(spread: float, n: int, n_ref: int, low: float, high: float, effect: float = 0.0) -> float:
    """The chance that TOST finds equivalence, with `spread` the standard deviation within each group."""
    error, freedom = spread * math.sqrt(1 / n + 1 / n_ref), n + n_ref - 2
    if error == 0.0:
        return float(low < effect < high)
    critical = stats.t.ppf(1 - ALPHA, freedom)
    shifts = [np.clip(room / error, *CERTAIN) for room in (high - effect, effect - low)]
    return max(float(sum(stats.nct.sf(critical, freedom, shift) for shift in shifts)) - 1.0, 0.0)


def seeds_needed(spread: float, low: float, high: float, power: float = POWER) -> int | None:
    """Seeds on each side that TOST needs for a power, if both are the same in truth; None above 1,000."""
    return next((n for n in range(FEWEST, MOST + 1) if tost(spread, n, n, low, high) >= power), None)


def difference(spread: float, n: int, n_ref: int, effect: float) -> float:
    """The chance that the two-sided t-test finds a true difference, in its direction."""
    if spread == 0.0:
        return float(effect != 0.0)
    size = min(abs(effect) / spread, CERTAIN[1] / math.sqrt(n * n_ref / (n + n_ref)))
    return float(TTestIndPower().power(size, n, ALPHA / 2, ratio=n_ref / n, alternative="larger"))


def detectable(spread: float, n: int, n_ref: int, power: float = POWER) -> float:
    """The smallest true difference that the two-sided t-test finds with that power."""
    if spread == 0.0:
        return 0.0
    solved = TTestIndPower().solve_power(None, n, ALPHA / 2, power, ratio=n_ref / n, alternative="larger")
    return spread * float(solved)
