"""The comparison: what the rule calls equal, what it does not, and what is said of it."""

from dataclasses import replace

import numpy as np
import pytest

from parity.compare import NO_NUMBERS, NUM_BINS, Problem, ProblemKind, Row, compare
from parity.goldens import check
from parity.goldens.check import Judge, injected_error_is_found, kinds_judged, rows_expected
from parity.sigma import Rounding
from parity.sketch import sketch
from parity.tolerance import PRECISIONS, RECORDED, C, K, computed_in
from tests import made

WHERE = ("layer", "case", "out")
REF = np.array([[1.0, -2.0], [0.5, 0.0]])  # scale 2; an error at the 0 is held in its precision without a rounding
AT = (1, 1)
EVERY = list(PRECISIONS)


def judge(got, kind="value", precision="float64", ref=REF, sigma=0.0, **more):
    return compare(WHERE, kind, precision, ref, got, np.broadcast_to(sigma, ref.shape), **more)


def with_error(error, index=AT, ref=REF, precision="float64"):
    got = ref.astype(computed_in(precision))
    got[index] += error
    return got


def test_the_same_numbers_are_equal():
    row = judge(REF.copy())
    assert row.equal
    assert (row.ratio, row.sigmas, row.elements) == (0.0, 0.0, 4)


# The rule


@pytest.mark.parametrize("precision", EVERY)
@pytest.mark.parametrize("units", [0.0, 0.3, 1e4], ids=["floor_alone", "both", "mostly_sigma"])
def test_the_tolerance_is_c_sigma_and_k_roundings_of_the_scale(precision, units):
    rounding = 2.0 ** -PRECISIONS[precision]
    allowed = C * units * rounding + K * rounding * 2.0
    row = judge(with_error(0.999 * allowed, precision=precision), precision=precision, sigma=units * rounding)
    assert row.equal
    assert row.tolerance == pytest.approx(allowed)
    row = judge(with_error(1.001 * allowed, precision=precision), precision=precision, sigma=units * rounding)
    assert not row.equal
    assert row.ratio == pytest.approx(1.001)


@pytest.mark.parametrize("precision", EVERY)
def test_what_a_precision_is_allowed_is_red_in_a_finer_one(precision):
    finer = [p for p in EVERY if PRECISIONS[p] > PRECISIONS[precision]]
    error = 0.9 * K * 2.0 ** -PRECISIONS[precision] * 2.0
    assert judge(with_error(error, precision=precision), precision=precision).equal
    assert not any(judge(with_error(error, precision=p), precision=p).equal for p in finer)


def test_an_error_that_is_allowed_at_one_element_is_red_at_another():
    sigma = np.array([[0.0, 0.0], [0.0, 1e-6]])
    assert judge(with_error(7e-6), sigma=sigma).equal
    for index in ((0, 0), (0, 1), (1, 0)):
        row = judge(with_error(7e-6, index), sigma=sigma)
        assert not row.equal
        assert row.index == index


def test_the_worst_element_is_the_one_that_takes_most_of_its_tolerance():
    sigma = np.array([[1.0, 0.0], [0.0, 0.0]])
    got = REF + [[0.5, 0.0], [0.0, 1e-9]]
    row = judge(got, sigma=sigma)
    assert (row.index, row.max_abs, row.equal) == ((1, 1), 1e-9, False)


@pytest.mark.parametrize("kind", ["value", "vjp"])
def test_where_scale_and_sigma_are_0_nothing_is_allowed(kind):
    zero = np.zeros(3)
    assert judge(zero.copy(), kind, ref=zero).equal
    for smallest in (1e-300, 5e-324):
        assert not judge(np.array([0.0, smallest, 0.0]), kind, ref=zero).equal


def test_a_stopped_gradient_is_said_to_be_one():
    zero = np.zeros(3)
    row = judge(np.array([0.0, 1e-300, 0.0]), "vjp", ref=zero)
    assert "stopped in the reference" in row.problem.text
    assert row.problem.kind is ProblemKind.ZEROS


def test_a_gradient_that_cancels_in_the_reference_may_be_off_by_its_tolerance():
    zero = np.zeros(3)
    assert judge(np.full(3, 7e-17), "vjp", ref=zero, sigma=1e-17).equal
    assert not judge(np.full(3, 9e-17), "vjp", ref=zero, sigma=1e-17).equal


def test_a_gradient_that_flows_in_the_reference_must_flow():
    assert "is zero here" in judge(np.zeros((2, 2)), "vjp").problem.text
    assert judge(np.zeros((2, 2)), "vjp", sigma=1.0).equal


def test_an_infinite_sigma_frees_its_element_and_no_other():
    sigma = np.array([[np.inf, 0.0], [0.0, 0.0]])
    for anything in (5.0, np.inf, -np.inf, np.nan):
        assert judge(np.where(REF == 1.0, anything, REF), sigma=sigma).equal
        assert not judge(np.where(REF == 0.5, anything, REF), sigma=sigma).equal
    for missing in (np.nan, np.inf):
        ref = np.where(REF == 0.5, missing, REF)
        assert "at [1, 0] is missing" in judge(REF.copy(), ref=ref, sigma=sigma).problem.text


def test_an_element_that_nothing_is_asked_of_does_not_hide_an_error_elsewhere():
    sigma = np.array([[np.inf, 0.0], [0.0, 0.0]])
    row = judge(np.where(REF == 1.0, np.nan, REF) + np.where(REF == 0.5, 1e-9, 0.0), sigma=sigma)
    assert not row.equal
    assert row.index == (1, 0)


def test_infinities_do_not_count_in_the_scale():
    ref = np.array([np.inf, 1.0])
    assert judge(ref.copy(), ref=ref).scale == 1.0
    assert not judge(np.array([np.inf, 1.0 + 1e-13]), ref=ref).equal


# Integers


def test_integers_and_bools_are_compared_exactly():
    ref = np.array([1, 3])
    assert judge(np.array([1, 3], np.int64), ref=ref).equal
    row = judge(np.array([1, 2]), ref=ref)
    assert "expected 3, got 2" in row.problem.text
    assert (row.index, row.max_abs) == ((1,), 1.0)
    assert not judge(np.array([True, False]), ref=np.array([True, True])).equal


def test_an_integer_may_be_one_that_rounding_gives_at_that_element():
    ref, others = np.array([1, 3, 5]), np.array([[1, 2, 5], [4, 3, 5]])
    for right in ([1, 2, 5], [4, 3, 5], [4, 2, 5]):  # each element is free on its own
        assert judge(np.array(right), ref=ref, alternatives=others).equal
    for wrong in ([2, 3, 5], [1, 4, 5], [1, 3, 4], [1, 3, 2]):
        assert not judge(np.array(wrong), ref=ref, alternatives=others).equal


# Structure


@pytest.mark.parametrize(
    ("got", "kind", "part"),
    [
        (REF[:1], ProblemKind.FORM, "shape [2, 2], got [1, 2]"),
        (REF.astype(np.float32), ProblemKind.FORM, "dtype float64, got float32"),
        ([1.0], ProblemKind.FORM, "plain numpy.ndarray, got list"),
        (np.where(REF == 0.5, np.nan, REF), ProblemKind.NOT_FINITE, "NaN at [1, 0] is not in the reference"),
        (np.where(REF == 0.5, np.inf, REF), ProblemKind.NOT_FINITE, "+infinity at [1, 0]"),
        (np.where(REF == 0.5, -np.inf, REF), ProblemKind.NOT_FINITE, "-infinity at [1, 0]"),
        (REF.astype(np.int64), ProblemKind.FORM, "dtype float64, got int64"),
    ],
)
def test_structure_is_checked_before_numbers(got, kind, part):
    row = judge(got, sigma=1e3)
    assert not row.equal
    assert part in row.problem.text
    assert row.problem.kind is kind


@pytest.mark.parametrize("missing", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_in_the_reference_must_be_there_as_it_is(missing):
    ref = np.array([missing, 1.0])
    assert judge(ref.copy(), ref=ref).equal
    for other in {5.0, np.inf, -np.inf} - {missing}:
        row = judge(np.array([other, 1.0]), ref=ref)
        assert not row.equal
        assert row.problem


@pytest.mark.parametrize("precision", ["float32", "tf32", "fp16", "bf16"])
def test_below_float64_answers_are_float32(precision):
    assert judge(REF.astype(np.float32), precision=precision).equal
    assert "dtype float32, got float64" in judge(REF.copy(), precision=precision).problem.text
    assert judge(REF.copy(), precision=precision, dtype="float64").equal


def test_a_large_array_is_compared_by_its_sketch_and_one_wrong_element_shows():
    whole = np.random.default_rng(0).standard_normal((300, 200))
    ref = sketch(whole)
    assert judge(whole.copy(), ref=ref, shape=whole.shape).equal
    wrong = whole.copy()
    wrong[123, 45] += 1e-9
    row = judge(wrong, ref=ref, shape=whole.shape)
    assert not row.equal
    assert row.max_abs == pytest.approx(1e-9, rel=1e-3)
    assert row.index == ((123 * 200 + 45) % ref.size,)
    assert "shape" in judge(whole.T.copy(), ref=ref, shape=whole.shape).problem.text


def test_an_empty_output_is_equal():
    row = judge(np.zeros((0, 3)), ref=np.zeros((0, 3)))
    assert (row.equal, row.elements) == (True, 0)


# What is said


def test_a_difference_is_described_in_full():
    row = judge(with_error(1e-6, (1, 0)), sigma=1e-8)
    assert (row.layer, row.case, row.output, row.kind, row.dtype) == (*WHERE, "value", "float64")
    assert row.index == (1, 0)
    assert (row.ref, row.got) == (0.5, 0.5 + 1e-6)
    assert row.max_abs == pytest.approx(1e-6)
    assert row.max_rel == pytest.approx(5e-7)
    assert row.max_ulp == pytest.approx(1e-6 / np.spacing(0.5))
    assert row.sigmas == pytest.approx(100.0, rel=1e-4)
    assert row.tolerance == pytest.approx(8e-8, rel=1e-4)
    assert row.ratio == pytest.approx(12.5, rel=1e-4)
    said = ("layer[case] value of out (float64): DIFFERENT", "element [1, 0]: ref 0.5, got 0.500001", "abs 1e-06")
    for part in (*said, "rel 5e-07", "9.01e+09 ULP", "100 sigma", "12.5 of its tolerance 8e-08"):
        assert part in row.sentence()


def test_problems_are_told_apart_by_kind_and_detail_and_never_by_their_words():
    one, reworded = (Problem(ProblemKind.RAISED, text, "ValueError") for text in ("raised ValueError: no", "failed"))
    assert one == reworded
    assert one != Problem(ProblemKind.RAISED, one.text, "KeyError")
    assert one != Problem(ProblemKind.FORM, one.text, "ValueError")


def test_a_problem_is_said_in_place_of_numbers():
    assert judge([1.0]).sentence() == "layer[case] value of out (float64): expected a plain numpy.ndarray, got list."


def test_ulps_are_those_of_the_precision_that_answers():
    error = 2.0**-20
    assert judge(with_error(error, (0, 0))).max_ulp == error / 2.0**-52
    assert judge(with_error(error, (0, 0), precision="bf16"), precision="bf16").max_ulp == error / 2.0**-23


def test_rows_go_to_json_with_the_promised_fields():
    row = judge(np.full((2, 2), np.nan)).as_json()
    promised = {"layer", "case", "output", "kind", "dtype", "max_abs", "max_rel", "max_ulp", "sigmas", "tolerance"}
    assert promised | {"ratio", "equal", "index", "ref", "got", "seen"} <= set(row)
    assert row["ratio"] is None
    assert row["equal"] is False


def test_errors_are_counted_in_quarters_of_a_sigma_where_rounding_moves_anything():
    sigma = np.array([[1e-6, 1e-6], [1e-6, 0.0]])
    row = judge(REF + [[1.1e-6, 0.0], [1e-3, 0.0]], sigma=sigma)
    assert len(row.counts) == NUM_BINS
    assert {i: n for i, n in enumerate(row.counts) if n} == {0: 1, 4: 1, NUM_BINS - 1: 1}


# The judge


def rows_of(golden, implementation, precisions=check.BOTH, **more):
    return list(Judge(implementation, precisions, **more).rows(golden))


def test_values_and_gradients_are_judged_in_both_precisions():
    golden = made.golden(vjp=1.0)
    rows = rows_of(golden, made.Answers(golden.outputs["out"], golden.vjps["x"]))
    assert [(row.dtype, row.kind, row.output) for row in rows] == [
        ("float64", "value", "out"),
        ("float64", "vjp", "x"),
        ("float32", "value", "out"),
        ("float32", "vjp", "x"),
    ]
    assert all(row.equal for row in rows)
    assert len(rows) == rows_expected(golden)


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_below_float32_values_alone_are_judged_by_that_precision(precision):
    golden = made.golden(vjp=1.0)
    error = 0.9 * K * 2.0 ** -PRECISIONS[precision] * np.abs(golden.outputs["out"]).max()
    off = made.Answers(golden.outputs["out"] + error)
    (row,) = rows_of(golden, off, (precision,))
    assert (row.kind, row.dtype, row.equal) == ("value", precision, True)
    assert off.asked_in == ["float32"]
    assert rows_expected(golden, (precision,)) == 1
    assert not rows_of(golden, made.Answers(golden.outputs["out"] + 2 * error), (precision,))[0].equal


def test_an_answer_may_be_asked_for_in_another_dtype_than_the_precisions_own():
    golden = made.golden()
    answers = made.Answers(golden.outputs["out"] + 1e-6)
    (row,) = rows_of(golden, answers, ("float32",), answers_in="float64")
    assert (row.dtype, row.equal, answers.asked_in) == ("float32", True, ["float64"])


def test_what_is_judged_is_what_there_is_and_what_sigma_is_known_of():
    golden = made.golden(vjp=1.0)
    assert kinds_judged(golden, "float32") == ["value", "vjp"]
    assert kinds_judged(golden, "bf16") == ["value"]
    assert kinds_judged(replace(golden, vjps={}), "float64") == ["value"]
    only_double = Rounding({"value": {"out": {53: np.zeros(golden.outputs["out"].shape)}}, "vjp": {}})
    assert kinds_judged(made.golden(rounding=only_double), "float64") == ["value"]
    assert kinds_judged(made.golden(rounding=only_double), "float32") == []


@pytest.mark.parametrize(
    ("like", "seen", "equal"),
    [("float32", "float32", True), ("tf32", "tf32", False), ("bf16", "bf16", False), ("nothing", "", False)],
)
def test_a_float32_value_says_in_which_precision_it_seems_to_be_computed(like, seen, equal):
    golden = made.golden()
    error = 0.5 * K * 2.0 ** -PRECISIONS.get(like, 1) * np.abs(golden.outputs["out"]).max()
    float64, float32 = rows_of(golden, made.Answers(golden.outputs["out"] + error))
    assert (float32.seen, float32.equal) == (seen, equal)
    assert float64.seen == ""


def test_a_value_of_the_wrong_form_is_seen_in_no_precision():
    golden = made.golden()
    rows = rows_of(golden, made.Answers(np.full(golden.outputs["out"].shape, np.nan)))
    assert {row.seen for row in rows} == {""}


class Breaks(made.Answers):
    """An implementation whose `run` breaks the contract in a named way."""

    def __init__(self, how):
        self.how = how

    def run(self, layer, inputs, settings, dtype):
        x = inputs["x"]
        answers = {
            "changes": lambda: {"out": x.__iadd__(1.0) * 1},
            "shares": lambda: {"out": x},
            "returns a list": lambda: [x],
            "leaves out": lambda: {},
            "adds": lambda: {"out": x * 1, "more": x * 1},
            "reshapes": lambda: {"out": x[:1] * 1},
        }
        return answers[self.how]()


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("raises", ProblemKind.RAISED),
        ("changes", ProblemKind.CALL),
        ("shares", ProblemKind.CALL),
        ("returns a list", ProblemKind.CALL),
        ("leaves out", ProblemKind.MISSING),
        ("adds", ProblemKind.EXTRA),
        ("reshapes", ProblemKind.FORM),
    ],
)
def test_an_answer_without_numbers_says_so_by_its_kind(how, kind):
    rows = rows_of(made.golden(), Breaks(how), ("float64",))
    assert [row.problem.kind for row in rows if not row.equal] == [kind]
    assert kind in NO_NUMBERS


@pytest.mark.parametrize("result", [None, {"out": REF}, ({}, {}, {})])
def test_both_at_once_must_be_a_pair(result):
    answers = made.Answers(None)
    answers.run_and_vjp = lambda *_: result
    rows = rows_of(made.golden(vjp=1.0), answers, ("float64",))
    assert [(row.kind, row.problem.kind) for row in rows] == [("value", ProblemKind.CALL), ("vjp", ProblemKind.CALL)]


# Injected errors


@pytest.mark.parametrize("sigma", [0.0, 1.0, 1e8])
@pytest.mark.parametrize("precision", EVERY)
def test_a_injected_error_is_found_in_every_precision(precision, sigma):
    assert injected_error_is_found(made.golden(vjp=1.0, sigma=sigma), (precision,))
    assert injected_error_is_found(made.golden(0.0, vjp=0.0, sigma=0.0), (precision,))


@pytest.mark.parametrize("precision", EVERY)
def test_a_comparator_that_allows_four_times_as_much_is_noticed(precision, monkeypatch):
    def lax(*asked):
        row = compare(*asked)
        return replace(row, equal=row.ratio <= 4.0)

    golden = made.golden(vjp=1.0)
    monkeypatch.setattr("parity.goldens.judge.compare", lax)
    assert not injected_error_is_found(golden, (precision,))


@pytest.mark.parametrize("precision", check.BOTH)
def test_a_injected_error_in_the_gradients_alone_is_noticed(precision, monkeypatch):
    def blind(where, kind, *asked):
        return Row(*where, kind, precision) if kind == "vjp" else compare(where, kind, *asked)

    monkeypatch.setattr("parity.goldens.judge.compare", blind)
    assert injected_error_is_found(made.golden(), (precision,))
    assert not injected_error_is_found(made.golden(vjp=1.0), (precision,))


def with_integers(ref, others=None):
    alternatives = {} if others is None else {"out": dict.fromkeys(RECORDED["value"], np.asarray(others))}
    golden = made.golden(rounding=Rounding(alternatives=alternatives))
    return replace(golden, outputs={"out": np.asarray(ref)})


def test_an_injected_integer_is_found_where_rounding_does_not_free_it(monkeypatch):
    for golden in (with_integers([1, 3]), with_integers([1, 3], [[0, 3]]), with_integers([True, False])):
        assert injected_error_is_found(golden)
    monkeypatch.setattr("parity.goldens.judge.compare", lambda where, kind, precision, *_: Row(*where, kind, precision))
    assert not injected_error_is_found(with_integers([1, 3], [[0, 3]]))
    assert injected_error_is_found(with_integers([1, 3], [[0, 2]]))  # nothing is held, so nothing can be injected


def test_an_output_that_nothing_is_asked_of_needs_no_injected_error():
    assert injected_error_is_found(made.golden(sigma=np.inf))
    assert injected_error_is_found(made.golden(np.nan))
