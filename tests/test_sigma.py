"""Sigma: what is made of answers under random roundings, and how it is stored."""

import numpy as np
import pytest

from parity.sigma import LARGEST, SMALLEST, decode, encode, measure
from parity.tolerance import C

STILL = np.array([1.0, 0.0, -2.0])


def measured(still, *noisy, kind="value"):
    """What `measure` makes of one output: without noise, then (p, array) each."""
    bits, arrays = [0, *(p for p, _ in noisy)], {"out": np.stack([still, *(x for _, x in noisy)])}
    return measure(bits, *((arrays, {}) if kind == "value" else ({}, arrays)))


def sigma_of(still, *noisy, kind="value"):
    return measured(still, *noisy, kind=kind).sigmas[kind]["out"]


# Measuring


@pytest.mark.parametrize("kind", ["value", "vjp"])
def test_sigma_is_the_root_mean_square_of_what_noise_moves_a_number_by(kind):
    moved = [(24, STILL + [3e-6, 0.0, 1.0]), (24, STILL + [-4e-6, 0.0, 1.0])]
    (bits, sigma), *more = sigma_of(STILL, *moved, kind=kind).items()
    assert (bits, more) == (24, [])
    assert sigma == pytest.approx([np.sqrt(12.5) * 1e-6, 0.0, 1.0], rel=1e-6)


def test_each_precision_is_measured_on_its_own():
    found = sigma_of(STILL, (24, STILL + 1e-6), (11, STILL + 1e-3), (8, STILL + 1e-2))
    assert {p: round(float(np.log10(sigma[0]))) for p, sigma in found.items()} == {24: -6, 11: -3, 8: -2}


def test_sigma_is_infinite_where_noise_leaves_the_finite_numbers():
    for gone in (np.inf, -np.inf, np.nan):
        sigma = sigma_of(STILL, (24, STILL), (24, np.array([gone, 0.0, -2.0])))[24]
        assert sigma[0] == np.inf
        assert np.isfinite(sigma[1:]).all()


def test_what_is_not_finite_without_noise_has_no_sigma():
    still = np.array([np.inf, np.nan, -np.inf])
    for noisy in (still, np.array([1.0, 2.0, 3.0])):
        assert np.isin(sigma_of(still, (24, noisy))[24], (0.0, SMALLEST[24])).all()


def test_float64_counts_half_because_its_noise_is_twice_as_large():
    several = [(53, STILL + sign * 4e-15) for sign in (-1.0, 1.0)]
    assert sigma_of(STILL, *several)[53] == pytest.approx([2e-15] * 3, rel=0.2)


@pytest.mark.parametrize("bits", [53, 24])
def test_what_the_noise_itself_gives_is_always_equal(bits):
    """However few samples take a branch."""
    several = [(bits, STILL + [0.0, 5.0 * (sample == 3), 0.0]) for sample in range(32)]
    assert sigma_of(STILL, *several)[bits][1] * C >= 5.0


def test_what_is_above_the_largest_number_of_a_precision_may_be_infinite_there():
    still = np.array([1e200, 1.0, -1e39])
    sigma = sigma_of(still, (53, still), (24, still))
    assert np.isinf(sigma[24]).tolist() == [True, False, True]
    assert np.isfinite(sigma[53]).all()
    assert LARGEST[24] == np.finfo(np.float32).max and LARGEST[53] == np.finfo(np.float64).max


def test_what_is_below_the_smallest_normal_number_may_become_0():
    still = np.array([1e-45, 0.0, 1.0])
    sigma = sigma_of(still, (24, still), (8, still))
    assert sigma[24].tolist() == [SMALLEST[24], 0.0, SMALLEST[24]]
    assert SMALLEST[24] == np.finfo(np.float32).tiny
    assert sigma_of(still, (53, still))[53].max() == np.finfo(np.float64).tiny


def test_a_zero_that_noise_does_not_move_is_held_to_0():
    assert sigma_of(np.zeros(2), (24, np.zeros(2)))[24].tolist() == [0.0, 0.0]
    assert sigma_of(np.zeros(2), (24, np.array([0.0, 1e-60])))[24].tolist() == [0.0, SMALLEST[24]]


def test_integers_have_the_other_answers_that_noise_gives_in_place_of_sigma():
    still = np.array([1, 2])
    noisy = [(24, still), (24, np.array([1, 3])), (24, np.array([1, 3])), (24, np.array([0, 2])), (53, still)]
    found = measured(still, *noisy)
    assert found.sigmas == {"value": {}, "vjp": {}}
    assert {p: sorted(others.tolist()) for p, others in found.alternatives["out"].items()} == {24: [[0, 2], [1, 3]]}


def test_integers_that_noise_does_not_change_have_no_other_answer():
    still = np.array([True, False])
    assert measured(still, (24, still), (8, still)).alternatives == {}


# Storing


def spread(count=4001):
    """Numbers over all that float64 holds."""
    return np.exp2(np.random.default_rng(0).uniform(-1074, 1023, count))


def test_what_is_stored_is_never_smaller_and_at_most_19_percent_larger():
    sigma = np.concatenate([spread(), [5e-324, np.finfo(np.float64).tiny, 1.0, 2.0**1023, 0.1]])
    codes = encode(sigma)
    growth = decode(codes) / sigma
    assert codes.dtype == np.uint16
    assert growth.min() >= 1.0 - 1e-12
    assert growth.max() <= 1.19


def test_a_larger_sigma_is_never_stored_as_a_smaller_one():
    assert (np.diff(encode(np.sort(spread())).astype(int)) >= 0).all()


@pytest.mark.parametrize("exact", [0.0, np.inf, 1.0, 2.0**-53, 2.0**-126, 2.0**-1022])
def test_powers_of_two_zero_and_infinity_are_stored_exactly(exact):
    sigma = np.full((2, 3), exact)
    assert np.array_equal(decode(encode(sigma)), sigma)


def test_nothing_but_0_is_stored_as_0():
    assert (decode(encode(spread())) > 0.0).all()
    assert encode(np.array([0.0])).tolist() == [0]
