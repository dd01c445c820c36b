"""Are two sets of learning curves the same? Seeds are the unit; the tests are scipy's and statsmodels'.

Of each run the numbers of `reports.catch_curves.metrics` are taken.

Equivalence is shown, not assumed: by two one-sided t-tests (TOST, without assuming equal variances) the ratio must be
significantly inside its margin. Else Welch's t-test (for times that some seed never reaches, the log-rank
test) says whether there is a difference. If neither is significant the seeds are too few. The spread of the curves then
gives the number of seeds that would suffice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW, ttest_ind, ttost_ind

from parity.runs.curves import Curve
from reports.catch_curves import power
from reports.catch_curves.metrics import DECIDING, LOSS, MEASURES, MISSED, Measure, measured
from reports.catch_curves.power import ALPHA, FEWEST, MOST

RESAMPLES = 2000
State = Literal["equivalent", "different", "undecided"]


@dataclass(frozen=True)
class Comparison:
    """One measure of a candidate against the reference.

    Attributes:
        measure: its name.
        state: equivalent, different or undecided.
        n: seeds of the candidate.
        n_ref: seeds of the reference.
        got: the candidate's mean (geometric for ratios); None where a run never gets there.
        ref: the reference's.
        effect: their ratio or difference.
        low: lower end of its confidence interval, 90% (that of TOST at 5%).
        high: upper end.
        bootstrap_low: the same by bootstrap.
        bootstrap_high: the same by bootstrap.
        margin_low: within which they count as the same, the lower end.
        margin_high: the upper end.
        p_equivalent: of TOST; small means equivalent.
        p_different: of Welch's t-test, or of the log-rank test; small means different.
        power: of TOST, if both are the same in truth, with this spread and these seeds.
        seeds_needed: on each side, for a power of 80%; None where more than 1,000, or where the spread is unknown.
        detectable: the smallest ratio above 1, or difference, that the t-test finds with a power of 80%.
        censored: runs of the candidate that never get there.
        censored_ref: runs of the reference that never do.
    """

    measure: str
    state: State
    n: int
    n_ref: int
    got: float | None
    ref: float | None
    margin_low: float
    margin_high: float
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    bootstrap_low: float | None = None
    bootstrap_high: float | None = None
    p_equivalent: float | None = None
    p_different: float | None = None
    power: float | None = None
    seeds_needed: int | None = None
    detectable: float | None = None
    censored: int = 0
    censored_ref: int = 0


def pooled(x: np.ndarray, y: np.ndarray) -> float:
    """Standard deviation within two groups."""
    squares = (len(x) - 1) * x.var(ddof=1) + (len(y) - 1) * y.var(ddof=1)
    return float(np.sqrt(squares / (len(x) + len(y) - 2)))


def decide(p_equivalent: float | None, p_different: float | None) -> State:
    """A significant equivalence counts first: a difference that is there but smaller than the margin is none."""
    if p_equivalent is not None and p_equivalent < ALPHA:
        return "equivalent"
    return "different" if p_different is not None and p_different < ALPHA else "undecided"


def compare(measure: Measure, got: np.ndarray, ref: np.ndarray, bounds: tuple[float, float]) -> Comparison:
    """Compares one measure.

    Args:
        measure: which.
        bounds: its margin, on the scale of the comparison.
        got: [n], of the candidate's runs; infinite for a time never reached.
        ref: [n_ref], of the reference's.
    """
    facts: dict[str, Any] = {"measure": measure.name, "n": len(got), "n_ref": len(ref)}
    facts |= {"margin_low": measure.unscaled(bounds[0]), "margin_high": measure.unscaled(bounds[1])}
    facts |= {"censored": int(np.isinf(got).sum()), "censored_ref": int(np.isinf(ref).sum())}
    x, y = measure.scaled(got), measure.scaled(ref)
    for name, values in (("got", x), ("ref", y)):
        facts[name] = measure.unscaled(float(values.mean())) if np.isfinite(values).all() else None
    has_enough = min(len(x), len(y)) >= FEWEST
    if facts["censored"] or facts["censored_ref"]:  # such times have no mean: when does each get there?
        is_all = np.isinf(got).all() and np.isinf(ref).all()
        p = float(stats.logrank(_observed(got), _observed(ref)).pvalue) if has_enough and not is_all else None
        return Comparison(state=decide(None, p), p_different=p, **facts)
    effect = float(x.mean() - y.mean())
    facts["effect"] = measure.unscaled(effect)
    if not has_enough:
        return Comparison(state="undecided", **facts)
    spread = pooled(x, y)
    tests = _tests(x, y, bounds) if spread > 0 else _exact(effect, bounds)
    ends = {name: measure.unscaled(tests.pop(name)) for name in ("low", "high", "bootstrap_low", "bootstrap_high")}
    return Comparison(
        state=decide(tests["p_equivalent"], tests["p_different"]),
        power=power.tost(spread, len(x), len(y), *bounds),
        seeds_needed=power.seeds_needed(spread, *bounds),
        detectable=measure.unscaled(power.detectable(spread, len(x), len(y))),
        **ends,
        **tests,
        **facts,
    )


def _tests(x: np.ndarray, y: np.ndarray, bounds: tuple[float, float]) -> dict[str, float]:
    low, high = CompareMeans(DescrStatsW(x), DescrStatsW(y)).tconfint_diff(2 * ALPHA, usevar="unequal")
    boot = bootstrap_difference(x, y)
    return {
        "p_equivalent": float(ttost_ind(x, y, *bounds, usevar="unequal")[0]),
        "p_different": float(ttest_ind(x, y, usevar="unequal")[1]),
        **{"low": float(low), "high": float(high), "bootstrap_low": boot[0], "bootstrap_high": boot[1]},
    }


def _exact(effect: float, bounds: tuple[float, float]) -> dict[str, float]:
    """Where no run differs from another of its group, there is nothing to test."""
    ends = dict.fromkeys(("low", "high", "bootstrap_low", "bootstrap_high"), effect)
    return {"p_equivalent": float(not bounds[0] < effect < bounds[1]), "p_different": float(effect == 0.0), **ends}


def _observed(times: np.ndarray) -> stats.CensoredData:
    # Whoever has not got there by the end may be put just behind the last who has: only the order counts.
    return stats.CensoredData(uncensored=times[np.isfinite(times)], right=np.full(int(np.isinf(times).sum()), 1e9))


def bootstrap_difference(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The 90% interval of a difference of means, seeds drawn anew in both groups."""
    low, high = _interval((x, y), lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis), 1 - 2 * ALPHA)
    return float(low), float(high)


def band(rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95% band of a mean curve at each step: rates [n, N] to low and high [N]; n is at least 2."""
    return _interval((rates,), np.mean, 0.95)


def _interval(samples: tuple[np.ndarray, ...], statistic: Any, level: float) -> tuple[Any, Any]:
    """By percentiles; seeds stand along the first axis, and whole runs are drawn."""
    interval = stats.bootstrap(
        *(samples, statistic),
        confidence_level=level,
        n_resamples=RESAMPLES,
        batch=100,
        axis=0,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return interval.low, interval.high


@dataclass(frozen=True)
class Verdict:
    """A candidate against the reference with one preset.

    Attributes:
        state: equivalent, different or undecided.
        comparisons: by measure.
        words: one sentence.
    """

    state: State
    comparisons: Mapping[str, Comparison]
    words: str


def judge(got: Sequence[Curve], ref: Sequence[Curve]) -> Verdict:
    """Compares two sets of runs.

    They are different if any measure is, all tests taken together (Holm), and it is not inside its margin; equivalent
    if the deciding measures are.
    """
    mine, theirs = measured(got), measured(ref)
    comparisons = {
        m.name: compare(m, mine[m.name], theirs[m.name], m.bounds(ref))
        for m in MEASURES
        if not np.isnan([*mine[m.name], *theirs[m.name]]).any()
    }
    differing = _differing(comparisons)
    deciding = [comparisons[m.name] for m in DECIDING if m.name in comparisons]
    state: State = "undecided"
    if differing:
        state = "different"
    elif all(c.state == "equivalent" for c in deciding):
        state = "equivalent"
    return Verdict(state, comparisons, in_words(state, deciding, differing))


def _differing(comparisons: Mapping[str, Comparison]) -> list[str]:
    """Measures that differ by the tests of all of them together, and are not equivalent."""
    tested = [c for c in comparisons.values() if c.p_different is not None]
    if not tested:
        return []
    rejected = multipletests([c.p_different for c in tested], ALPHA, method="holm")[0]
    return [c.measure for c, is_so in zip(tested, rejected, strict=True) if is_so and c.state != "equivalent"]


def in_words(state: State, deciding: Sequence[Comparison], differing: Sequence[str] = ()) -> str:
    """The verdict in a sentence."""
    seeds = f"{deciding[0].n} seeds against {deciding[0].n_ref}"
    if deciding[0].p_equivalent is None:
        return f"undecided: {seeds}; at least {FEWEST} on each side are needed"
    spans = "; ".join(_span(c) for c in deciding)
    if state == "equivalent":
        return f"equivalent: {spans}; {seeds}"
    if state == "different":
        labels = {m.name: m.label for m in MEASURES}
        pace = "it learns slower" if (deciding[0].effect or 1.0) > 1 else "it learns faster"
        what = [pace if name == MISSED.name else f"the {labels[name]} differs" for name in differing]
        return f"different: {', '.join(what)}; {spans}; {seeds}"
    needed = [c.seeds_needed for c in deciding if c.state != "equivalent"]
    more = f"{max(n for n in needed if n)}" if all(needed) else f"more than {MOST}"
    return f"undecided: {spans}; {seeds} are too few, {more} on each side would do"


def _span(c: Comparison) -> str:
    """One deciding measure: ratio, interval, margin, test."""
    subject = {MISSED.name: "learning takes", LOSS.name: "the value loss is"}[c.measure]
    return (
        f"{subject} {c.effect:.2f} times the original's (90% interval {c.low:.2f} to {c.high:.2f}, margin "
        f"{c.margin_low:.2f} to {c.margin_high:.2f}, TOST p = {c.p_equivalent:.2g}, power {c.power:.2f})"
    )
