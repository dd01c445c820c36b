"""Verdicts on synthetic curves: equal, slower, never learning, too few; and the figures behind them."""

import math

import numpy as np
import pytest
from scipy import stats

from parity.runs.curves import Curve
from reports.catch_curves import metrics, power, statistics
from reports.catch_curves.metrics import MEASURES, MISSED
from reports.catch_curves.statistics import judge

STEPS, EPISODES = 400, 7


def learning_curve(seed, stretch=1.0, spread=0.08, top=0.99, bottom=0.15, loss=0.7):
    """A curve that goes from bottom to top around step 140 times the stretch; seeds differ in when."""
    rng = np.random.default_rng(seed)
    middle = 140.0 * stretch * math.exp(spread * rng.normal())
    steps = np.arange(1, STEPS + 1)
    rate = bottom + (top - bottom) / (1.0 + np.exp(-(steps - middle) / (0.12 * middle)))
    caught = rng.random((STEPS, EPISODES)) < rate[:, None]
    losses = [None if loss is None else loss * math.exp(0.01 * rng.normal())] * STEPS
    return Curve.of(zip((58 * steps).tolist(), caught.tolist(), losses, strict=True))


def curves_of(first, count, **how):
    return [learning_curve(1000 * first + i, **how) for i in range(count)]


REF = curves_of(1, 10)


def test_the_same_learner_is_equivalent():
    verdict = judge(curves_of(2, 10), REF)
    assert verdict.state == "equivalent", verdict.words
    assert "90% interval" in verdict.words and "TOST p =" in verdict.words and "10 seeds against 10" in verdict.words


def test_a_rule_that_logs_no_value_loss_is_judged_by_its_catches():
    verdict = judge(curves_of(2, 10, loss=None), curves_of(1, 10, loss=None))
    assert verdict.state == "equivalent" and "value_loss" not in verdict.comparisons


@pytest.mark.parametrize("count", [4, 10])
def test_a_learner_with_wrong_value_targets_is_different_although_it_catches_as_well(count):
    """As with Retrace shifted by a step: the agent learns all the same, and the value loss is 8% higher."""
    verdict = judge(curves_of(14, count, loss=0.7 * 1.08), REF[:5])
    assert verdict.comparisons["missed"].state != "different"
    assert verdict.state == "different" and "the value loss in the second half differs" in verdict.words


@pytest.mark.parametrize("count", [5, 10])
def test_a_learner_that_takes_a_quarter_longer_is_different(count):
    verdict = judge(curves_of(3, count, stretch=1.25), REF)
    assert verdict.state == "different"
    assert verdict.words.startswith("different: it learns slower")
    missed = verdict.comparisons["missed"]
    assert missed.p_equivalent > 0.5 and 1.1 < missed.effect < 1.4


def test_a_faster_learner_is_different_too():
    assert judge(curves_of(4, 10, stretch=0.75), REF).words.startswith("different: it learns faster")


def test_a_learner_that_never_learns_is_different_and_its_times_are_censored():
    verdict = judge(curves_of(5, 5, top=0.15), REF)
    assert verdict.state == "different"
    time_50 = verdict.comparisons["time_50"]
    assert (time_50.censored, time_50.censored_ref, time_50.got) == (5, 0, None)
    assert time_50.p_different < 0.01


def test_a_learner_that_forgets_at_the_end_is_different():
    def forgetful(curve, seed):
        rng = np.random.default_rng(seed)
        tail = rng.random((20, EPISODES)) < 0.5
        caught = (*curve.caught[:-20], *(tuple(row) for row in tail.tolist()))
        return Curve(curve.frames, caught, curve.value_losses)

    verdict = judge([forgetful(curve, i) for i, curve in enumerate(curves_of(6, 10))], REF)
    assert verdict.comparisons["missed"].state == "equivalent"
    assert verdict.state == "different" and "catch rate at the end" in verdict.words


def test_too_few_seeds_are_undecided_and_the_number_that_would_do_is_told():
    verdict = judge(curves_of(7, 3, spread=0.3), curves_of(8, 3, spread=0.3))
    assert verdict.state == "undecided"
    needed = verdict.comparisons["missed"].seeds_needed
    assert needed > 3 and f"{needed} on each side would do" in verdict.words


def test_two_seeds_decide_nothing():
    verdict = judge(curves_of(9, 2), REF)
    assert verdict.state == "undecided" and "at least 3" in verdict.words


def test_lives_without_spread_are_compared_as_they_are():
    same = [learning_curve(1)] * 4
    assert judge(same, same).state == "equivalent"
    assert judge([learning_curve(1, stretch=1.5)] * 4, same).state == "different"


def test_a_slower_learner_is_called_equivalent_no_more_often_than_alpha_at_the_margin():
    states = [judge(curves_of(20 + i, 10, stretch=MISSED.margin), REF).state for i in range(20)]
    assert states.count("equivalent") <= 3  # of 20 at 5%: more than 3 has a chance of 1.6%


def test_the_power_of_tost_is_what_simulation_finds():
    rng, spread, bound = np.random.default_rng(0), 0.1, 0.12
    for n, n_ref, effect in ((10, 5, 0.0), (5, 10, 0.05), (10, 10, 0.12)):
        x = rng.normal(effect, spread, (4000, n))
        y = rng.normal(0.0, spread, (4000, n_ref))
        p = np.maximum(
            stats.ttest_ind(x, y - bound, axis=1, alternative="greater").pvalue,
            stats.ttest_ind(x, y + bound, axis=1, alternative="less").pvalue,
        )
        told = power.tost(spread, n, n_ref, -bound, bound, effect)
        assert abs((p < 0.05).mean() - told) < 0.03, (n, n_ref, effect)


def test_seeds_needed_are_the_fewest_that_have_the_power():
    n = power.seeds_needed(0.1, -0.12, 0.12)
    assert power.tost(0.1, n, n, -0.12, 0.12) >= 0.8 > power.tost(0.1, n - 1, n - 1, -0.12, 0.12)
    assert power.seeds_needed(10.0, -0.01, 0.01) is None


def test_what_is_detectable_is_found_with_the_power_told():
    effect = power.detectable(0.1, 10, 5)
    assert power.difference(0.1, 10, 5, effect) == pytest.approx(0.8, abs=1e-6)


def test_powers_are_numbers_whatever_the_spread():
    for spread in (0.0, 1e-6, 0.01, 0.03, 1.0, 100.0):
        for n in (3, 10, 20):
            told = [power.tost(spread, n, 5, -0.18, 0.16, effect) for effect in (0.0, 1.0, -0.18)]
            told.append(power.difference(spread, n, 5, 0.22))
            assert all(0.0 <= chance <= 1.0 for chance in told), (spread, n, told)


def test_the_margin_of_the_balls_missed_is_what_taking_longer_makes_of_the_originals_curves():
    for steps in (STEPS, 180):
        ref = [curve.first(steps) for curve in REF]
        longer = [curve.first(steps) for curve in curves_of(1, 10, stretch=MISSED.margin)]
        missed, missed_longer = (np.log(metrics.measured(group)["missed"]).mean() for group in (ref, longer))
        assert MISSED.bounds(ref)[1] == pytest.approx(missed_longer - missed, abs=0.03)
    assert MISSED.bounds(ref)[0] < 0


def test_time_to_a_catch_rate_waits_for_a_hundred_episodes():
    caught = [[True] * 7] + [[False] * 7] * 20 + [[True] * 7] * 19
    lucky = Curve.of((i, row, None) for i, row in enumerate(caught))
    assert lucky.catch_rates[0] == 1.0
    assert metrics.time_to(lucky, 0.5) == 29.0  # 21 steps, then 50 catches among the last 100 episodes
    assert metrics.time_to(lucky, 1.1) == math.inf


def test_a_band_holds_the_mean_and_narrows_with_seeds():
    rates = np.array([curve.catch_rates for curve in curves_of(11, 20)])
    (few_low, few_high), (low, high) = statistics.band(rates[:4]), statistics.band(rates)
    assert (low <= rates.mean(axis=0) + 1e-12).all() and (rates.mean(axis=0) <= high + 1e-12).all()
    assert (high - low).mean() < (few_high - few_low).mean()


def test_figures_are_the_same_to_the_last_bit_every_time():
    first, again = (judge(curves_of(12, 5), REF[:5]) for _ in range(2))
    assert first == again
    assert set(first.comparisons) == {measure.name for measure in MEASURES}
