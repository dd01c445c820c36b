"""The comparison: what it calls equal, what it does not, and what it says."""

import numpy as np
import pytest

from parity.compare import compare
from parity.store import Accuracy, sketch

WHERE = ("layer", "case", "out")
EXACT = Accuracy(scale=2.0, sensitivity64=0.0, distance32=1e-7)
REF = np.array([[1.0, -2.0], [0.5, 0.0]])


def judge(got, kind="value", dtype="float64", ref=REF, accuracy=EXACT, sides=None, shape=None):
    return compare(WHERE, kind, dtype, ref, got, accuracy, sides, shape)


def with_error(error, index=(1, 0)):
    got = REF.copy()
    got[index] += error
    return got


def test_the_same_numbers_are_equal():
    row = judge(REF.copy())
    assert row.equal
    assert row.ratio == 0.0


def test_float64_budget_is_1e_12_of_the_scale():
    assert judge(with_error(1.9e-12)).equal
    assert not judge(with_error(2.1e-12)).equal


def test_a_measured_sensitivity_widens_the_float64_budget_and_is_reported():
    row = judge(with_error(4e-10), accuracy=Accuracy(2.0, 5e-10))
    assert row.equal
    assert row.ill_conditioned
    assert not judge(with_error(6e-10), accuracy=Accuracy(2.0, 5e-10)).equal


def test_float32_may_be_twice_as_far_from_the_truth_as_the_original():
    accuracy = Accuracy(2.0, 0.0, distance32=1e-5)
    assert judge(with_error(1.9e-5).astype(np.float32), dtype="float32", accuracy=accuracy).equal
    assert not judge(with_error(2.1e-5).astype(np.float32), dtype="float32", accuracy=accuracy).equal


def test_float32_is_never_asked_for_more_than_rounding():
    accuracy = Accuracy(2.0, 0.0, distance32=0.0)
    assert judge(with_error(1e-7).astype(np.float32), dtype="float32", accuracy=accuracy).equal
    assert not judge(with_error(1e-6).astype(np.float32), dtype="float32", accuracy=accuracy).equal


def test_a_difference_is_described_in_full():
    row = judge(with_error(1e-6))
    assert row.index == (1, 0)
    assert (row.ref, row.got) == (0.5, 0.5 + 1e-6)
    assert row.max_abs == pytest.approx(1e-6)
    assert row.max_rel == pytest.approx(5e-7)
    assert row.max_ulp == pytest.approx(1e-6 / np.spacing(0.5))
    assert row.ratio == pytest.approx(5e5)
    for part in ("layer[case]", "out", "DIFFERENT", "[1, 0]", "0.500001", "ULP", "budget"):
        assert part in row.sentence()


@pytest.mark.parametrize(
    ("got", "part"),
    [
        (REF[:1], "shape [2, 2], got [1, 2]"),
        (REF.astype(np.float32), "dtype float64, got float32"),
        ([1.0], "NumPy array, got list"),
        (np.where(REF == 0.5, np.nan, REF), "NaN at [1, 0] is not in the reference"),
        (np.where(REF == 0.5, np.inf, REF), "+infinity at [1, 0]"),
        (REF.astype(np.int64), "dtype float64, got int64"),
    ],
)
def test_structure_is_checked_before_numbers(got, part):
    row = judge(got)
    assert not row.equal
    assert part in row.problem


def test_an_infinity_of_the_reference_must_be_there_with_its_sign():
    ref = np.array([np.inf, 1.0])
    accuracy = Accuracy(1.0, 0.0)
    assert judge(ref.copy(), ref=ref, accuracy=accuracy).equal
    assert "missing" in judge(np.array([5.0, 1.0]), ref=ref, accuracy=accuracy).problem
    assert "missing" in judge(np.array([-np.inf, 1.0]), ref=ref, accuracy=accuracy).problem


def test_a_stopped_gradient_must_be_exactly_zero():
    zero = np.zeros(3)
    accuracy = Accuracy(0.0, 0.0)
    assert judge(zero.copy(), "vjp", ref=zero, accuracy=accuracy).equal
    assert "stopped" in judge(np.array([0.0, 1e-300, 0.0]), "vjp", ref=zero, accuracy=accuracy).problem


def test_a_gradient_that_flows_in_the_reference_must_flow():
    assert "is zero here" in judge(np.zeros((2, 2)), "vjp").problem


def test_integers_and_bools_are_compared_exactly():
    accuracy = Accuracy(3.0, 0.0)
    ref = np.array([1, 3])
    assert judge(np.array([1, 3], np.int64), ref=ref, accuracy=accuracy).equal
    assert "expected 3, got 2" in judge(np.array([1, 2]), ref=ref, accuracy=accuracy).problem
    assert not judge(np.array([True, False]), ref=np.array([True, True]), accuracy=accuracy).equal


def test_at_a_branch_either_side_is_right_and_nothing_between():
    sides = [REF - [[0.0, 0.0], [0.5, 0.0]], REF + [[0.0, 0.0], [0.5, 0.0]]]
    for right in (0.0, -0.5, 0.5):
        row = judge(with_error(right), sides=sides)
        assert row.equal
        assert row.at_branch == 1
    assert not judge(with_error(0.25), sides=sides).equal
    assert not judge(with_error(0.5, index=(0, 0)), sides=sides).equal


def test_a_large_array_is_compared_by_its_sketch_and_one_wrong_element_shows():
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((300, 200))
    ref = sketch(whole)
    accuracy = Accuracy(float(np.abs(ref).max()), 0.0)
    assert judge(whole.copy(), ref=ref, accuracy=accuracy, shape=whole.shape).equal
    wrong = whole.copy()
    wrong[123, 45] += 1e-9
    row = judge(wrong, ref=ref, accuracy=accuracy, shape=whole.shape)
    assert not row.equal
    assert row.max_abs == pytest.approx(1e-9, rel=1e-3)
    assert "shape" in judge(whole.T.copy(), ref=ref, accuracy=accuracy, shape=whole.shape).problem


def test_rows_go_to_json_with_the_promised_fields():
    row = judge(np.full((2, 2), np.nan)).as_json()
    promised = {"layer", "case", "output", "kind", "dtype", "max_abs", "max_rel", "budget", "ratio", "equal"}
    assert promised <= set(row)
    assert row["ratio"] is None
    assert row["equal"] is False
