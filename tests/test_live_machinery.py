"""Live comparison: what rounding explains, what it never does, and what is left behind of a failure."""

import os
import subprocess
import sys
from dataclasses import replace

import hypothesis
import numpy as np
import pytest

from parity.goldens.check import Judge
from parity.implementation import load
from parity.layers import REGISTRY
from parity.live import metamorphic, repro, shrink, strategies
from parity.live.comparison import compare_live, drawn, live_reference, reference_golden, worst_ratio
from parity.sigma import Rounding
from parity.tolerance import PRECISIONS, C, K
from tests import toy

RETRACE, TWO_HOT, SIGN = (REGISTRY[name] for name in ("values/retrace", "ops/two_hot", "transforms/sign"))
A2 = next(case for case in REGISTRY["disco/agent_loss_no_meta"].cases if case.name == "A2")


@pytest.fixture(scope="module")
def standin():
    return load("standin")


def changed(layer, change, change_vjp=lambda out, inputs: out):
    """The port with one layer's outputs and VJPs changed by functions of (outputs, inputs)."""
    port = load("port")

    class Changed:
        name, description, layers = "changed", "", {layer}

        def run(self, name, inputs, settings, dtype):
            return change(port.run(name, inputs, settings, dtype), inputs)

        def vjp(self, name, inputs, *asked):
            return change_vjp(port.vjp(name, inputs, *asked), inputs)

    return Changed()


def different(rows):
    return [row for row in rows if not row.equal]


def live(standin, candidate, layer, case="plain", seed=0, **inputs):
    entry = REGISTRY[layer]
    sample = drawn(entry, next(c for c in entry.cases if c.name == case), seed)
    return compare_live(standin, candidate, entry, replace(sample, inputs={**sample.inputs, **inputs}))


def test_something_speaks_live_on_this_machine():
    assert live_reference().name in ("original", "standin")


def test_the_port_is_equal_where_it_should_be(standin):
    assert live(standin, load("port"), "values/retrace")
    assert not different(live(standin, load("port"), "values/retrace"))


def test_an_error_of_1e_minus_12_of_the_scale_is_found(standin):
    def shift(out, _):
        return {"q_target": out["q_target"] + np.asarray(1e-12 * np.abs(out["q_target"]).max(), out["q_target"].dtype)}

    off = changed("values/retrace", shift)
    assert {row.dtype for row in different(live(standin, off, "values/retrace"))} == {"float64"}


def test_a_wrong_epsilon_is_found_on_inputs_where_it_is_all_there_is(standin):
    zero = np.zeros((5, 3))
    off = changed("moving_average/normalize", lambda out, _: {"out": out["out"] * (1 + 1e-9)})
    rows = live(standin, off, "moving_average/normalize", "small_variance")
    assert different(rows)
    assert not different(live(standin, load("port"), "moving_average/normalize", "small_variance", values=zero))


def sign_of_a_zero(at_zero):
    """The sign with another answer at 0, and inputs with a 0 among them."""
    x = drawn(SIGN, SIGN.cases[0], 0).inputs["x"]
    x.reshape(-1)[0] = 0.0
    return changed(SIGN.name, lambda out, given: {"out": np.where(given["x"] == 0, at_zero, out["out"])}), x


@pytest.mark.parametrize("at_zero", [1.0, -1.0, np.nan])
def test_a_kink_that_an_input_stands_on_exactly_is_no_matter_of_rounding(standin, at_zero):
    candidate, x = sign_of_a_zero(at_zero)
    assert not different(live(standin, load("port"), SIGN.name, x=x))
    assert {row.dtype for row in different(live(standin, candidate, SIGN.name, x=x))} == {"float64", "float32"}


def given_moved(layer, name, units):
    """The port given one input moved by so many units in the last place of 1."""
    port = load("port")

    def moved(inputs):
        x = inputs[name]
        return {**inputs, name: x + x.dtype.type(units) * np.finfo(x.dtype).eps}

    class Moved:
        def run(self, called, inputs, *asked):
            return port.run(called, moved(inputs), *asked)

        def vjp(self, called, inputs, *asked):
            return port.vjp(called, moved(inputs), *asked)

    Moved.name, Moved.description, Moved.layers = "moved", "", {layer}
    return Moved()


@pytest.mark.parametrize("units", [-1, 1])
def test_which_side_of_a_bin_s_edge_a_value_falls_on_is_a_matter_of_rounding(standin, units):
    rows = live(standin, given_moved(TWO_HOT.name, "value", units), TWO_HOT.name, "bin_edges")
    assert {(row.kind, row.dtype) for row in rows} == {(k, d) for k in ("value", "vjp") for d in ("float64", "float32")}
    assert [row.sentence() for row in different(rows)] == []


def test_beside_the_edges_nothing_more_is_allowed_than_elsewhere(standin):
    def off(out, given):
        factor = np.where(np.round(given["value"]) == given["value"], 1, 1 + 1e-7)
        return {"value": out["value"] * factor.astype(out["value"].dtype)}

    rows = live(standin, changed(TWO_HOT.name, lambda out, _: out, off), TWO_HOT.name, "bin_edges")
    assert {(row.kind, row.dtype) for row in different(rows)} == {("vjp", "float64")}


def test_a_number_that_float32_cannot_hold_is_nothing_to_hold_to(standin):
    logits, actions = np.tile(np.array([0.0, 100.0, 0.0]), (5, 3, 1)), np.ones((5, 3), np.int32)
    given = {"pi_logits": logits, "mu_logits": -logits, "actions": actions}
    assert not different(live(standin, load("port"), "ops/importance_weight", **given))


def test_values_on_a_bin_s_edge_under_a_saturated_softmax_are_a_matter_of_rounding(standin):
    layer, sample = REGISTRY["disco/agent_loss_no_meta"], drawn(REGISTRY["disco/agent_loss_no_meta"], A2, 421)
    sample = strategies.edged(sample, [(14, 56), (0, 33), (35, 32)], layer)
    assert not different(compare_live(standin, load("port"), layer, sample))


def test_a_gradient_that_vanishes_only_where_rounding_meets_a_kink_is_a_matter_of_rounding(standin):
    zero = np.zeros((5, 3, 601))  # the mean of the bins is 0 or 1e-17, as the sum is taken
    assert not different(live(standin, load("port"), "values/from_logits", "K601", net_out=zero))


@pytest.mark.parametrize("layer", list(REGISTRY))
def test_every_layer_has_a_menu_with_its_first_case_and_the_smallest_first(layer):
    entry = REGISTRY[layer]
    cases = strategies.menu(entry)
    assert entry.cases[0] in cases
    volumes = [sum(value.size for value in drawn(entry, case, 3).inputs.values()) for case in (cases[0], cases[-1])]
    assert volumes == sorted(volumes)
    assert len(strategies.menu(entry, most=12)) >= len(cases)


def test_a_strategy_draws_edges_and_says_how():
    shown = []

    @hypothesis.settings(max_examples=30, database=None, deadline=None, derandomize=True)
    @hypothesis.given(strategies.samples(RETRACE))
    def collect(sample):
        shown.append((sample.how, sample.settings["T"], bool(sample.inputs["rewards"].any())))

    collect()
    assert any("edges" in how for how, _, _ in shown) and len({steps for _, steps, _ in shown}) > 1
    assert {alive for _, _, alive in shown} == {True, False}


def test_edges_leave_probabilities_and_states_alone():
    entry = REGISTRY["moving_average/normalize"]
    sample = drawn(entry, entry.cases[0], 0)
    every = [(which, edge) for which in range(4) for edge in range(len(strategies.EDGES["float"]))]
    with_edges = strategies.edged(sample, every, entry)
    kept = [name for name, value in sample.inputs.items() if np.array_equal(with_edges.inputs[name], value)]
    assert kept == [name for name in sample.inputs if name.startswith("state/")]


def test_a_failure_shrinks_to_the_sizes_and_values_that_show_it(standin, tmp_path):
    candidate = toy.implementation  # Retrace, one step too late: nothing of it shows before T = 3

    def fails(sample):
        return bool(different(compare_live(standin, candidate, RETRACE, sample)))

    found = drawn(RETRACE, next(c for c in RETRACE.cases if c.name == "plain"), 7)
    assert fails(found)
    smallest = shrink.shrink(RETRACE, found, fails, seconds=300)
    assert (smallest.settings["T"], smallest.settings["B"], smallest.settings["A"]) == (3, 1, 2)
    assert not smallest.inputs["rewards"].any() or not smallest.inputs["target_values"].any()

    golden = reference_golden(standin, RETRACE, smallest)
    row = different(Judge(candidate).rows(golden))[0]
    path = repro.write(golden, row, "tests.toy:implementation", tmp_path)
    assert_shows_it_without_jax_or_the_harness(path, tmp_path)


# When sigma is measured

SEEDS = REGISTRY["env/batched_seeds"]


class Measured:
    """A reference for one layer with a sigma of its own, and what it was asked."""

    description = ""

    def __init__(self, layer, outputs, rounding=None):
        self.name, self.layers, self.outputs, self.asked = "measured", {layer.name}, outputs, []
        self.found = rounding or Rounding()

    def run(self, layer, inputs, settings, dtype):
        self.asked.append("run")
        return {
            name: value.astype(dtype if value.dtype.kind == "f" else value.dtype)
            for name, value in self.outputs.items()
        }

    def vjp(self, layer, inputs, settings, dtype, cotangents, wrt):
        self.asked.append("vjp")
        return {name: np.zeros(inputs[name].shape, dtype) for name in wrt}

    def rounding(self, layer, inputs, settings, cotangents, wrt, bits):
        self.asked.append(f"rounding at {list(bits)} of {len(wrt)} VJPs")
        return self.found


RETRACE_SHAPE = RETRACE.outputs(RETRACE.settings)["q_target"].shape(RETRACE.settings)
SIGMA = 1e-6


def retraced(error, sigma=SIGMA, precisions=("float64",)):
    """A live comparison of Retrace that is off by so much at its first number, and the reference with that sigma."""
    truth = np.ones(RETRACE_SHAPE)
    at_first = np.zeros(RETRACE_SHAPE)
    at_first.reshape(-1)[0] = 1.0
    with np.errstate(invalid="ignore"):
        sigmas = {PRECISIONS[p]: np.where(at_first, sigma, 0.0) for p in precisions}
        got = truth + np.where(at_first, error, 0.0)
    reference = Measured(RETRACE, {"q_target": truth}, Rounding({"value": {"q_target": sigmas}, "vjp": {}}))
    candidate = Measured(RETRACE, {"q_target": got})
    return reference, compare_live(reference, candidate, RETRACE, drawn(RETRACE, RETRACE.cases[0], 0), precisions)


def test_sigma_is_not_measured_where_the_floor_of_the_tolerance_suffices():
    reference, rows = retraced(0.9 * K * 2.0**-53)
    assert not different(rows)
    assert reference.asked == ["run", "vjp"]


@pytest.mark.parametrize(("error", "is_equal"), [(0.9 * C * SIGMA, True), (1.1 * C * SIGMA, False)])
def test_sigma_is_measured_where_a_number_is_different_without_and_gradients_are_not_asked_again(error, is_equal):
    reference, rows = retraced(error)
    assert [row.equal for row in rows if row.kind == "value"] == [is_equal]
    assert reference.asked == ["run", "vjp", "run", "rounding at [53] of 0 VJPs"]
    assert sum(row.kind == "vjp" for row in rows) == len(RETRACE.differentiable(RETRACE.settings)) > 0


def test_sigma_is_measured_in_the_precisions_that_are_judged():
    reference, rows = retraced(0.5, precisions=("float64", "float32"))
    assert reference.asked[-1] == "rounding at [53, 24] of 0 VJPs"
    assert {row.dtype for row in different(rows)} == {"float64", "float32"}


def test_what_leaves_the_finite_numbers_as_noise_does_is_equal_live_as_well():
    for anything in (np.nan, np.inf):
        assert not different(retraced(anything, sigma=np.inf)[1])


def test_an_integer_that_rounding_gives_is_equal_live_as_well():
    shape = SEEDS.outputs(SEEDS.settings)["seeds"].shape(SEEDS.settings)
    truth, other = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    other[0] = 1
    rounding = Rounding(alternatives={"seeds": {53: other[None], 24: other[None]}})
    sample = drawn(SEEDS, SEEDS.cases[0], 0)
    for got, is_equal in ((truth, True), (other, True), (other + 1, False)):
        reference, candidate = Measured(SEEDS, {"seeds": truth}, rounding), Measured(SEEDS, {"seeds": got})
        rows = compare_live(reference, candidate, SEEDS, sample)
        assert rows
        assert (different(rows) == []) == is_equal


def test_the_search_is_given_a_finite_number():
    _, rows = retraced(np.nan, sigma=0.0)
    assert worst_ratio(rows) == 1e6
    assert worst_ratio([]) == 0.0


BLOCK = "import sys\nfor name in ('jax', 'parity', 'reference', 'hypothesis'):\n    sys.modules[name] = None\n"


def assert_shows_it_without_jax_or_the_harness(path, folder):
    (folder / "sitecustomize.py").write_text(BLOCK)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), root))}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1, done.stderr
    assert "output q_target of values/retrace" in done.stdout
    assert "allowed" in done.stdout
    assert done.stdout.endswith("DIFFERENT\n")


def test_literal_arrays_give_the_same_bits_back():
    awkward = np.array([[0.1, -0.0, np.inf], [np.nan, 5e-324, 1 / 3]])
    for dtype in ("float64", "float32"):
        with np.errstate(under="ignore"):
            array = awkward.astype(dtype)
        back = eval(repro.literal(array), {"np": np})
        assert back.dtype == array.dtype and back.tobytes() == array.tobytes()


def relation(name):
    return next(r for r in metamorphic.RELATIONS if r.name == name)


WRONG = {
    "batch_permuted": lambda out, given: {"q_target": out["q_target"] + np.arange(out["q_target"].shape[1])},
    "batch_split": lambda out, given: {"q_target": out["q_target"] - out["q_target"].mean(axis=1, keepdims=True)},
    "actions_permuted": lambda out, given: {"q_target": out["q_target"] + given["actions"]},
    "step_after_a_terminal": lambda out, given: {"q_target": out["q_target"] + given["rewards"][-1]},
}


@pytest.mark.parametrize("name", list(WRONG))
def test_each_relation_holds_and_can_fail(standin, name):
    chosen = relation(name)
    case = chosen.template(RETRACE)
    golden = reference_golden(standin, RETRACE, drawn(RETRACE, case, 0), ("float64",), gradients=False)
    assert golden.sigma("value", "q_target", 53).any()
    assert not chosen.check(load("port"), RETRACE, golden)
    said = chosen.check(changed(RETRACE.name, WRONG[name]), RETRACE, golden)
    assert "values/retrace[live] value of q_target (float64): DIFFERENT" in said


def test_a_relation_is_checked_on_a_case_that_shows_it():
    assert relation("step_after_a_terminal").template(RETRACE).name == "terminal_last"
    assert relation("batch_permuted").template(RETRACE) == RETRACE.cases[0]
    assert relation("step_after_a_terminal").template(TWO_HOT) is None


def test_the_meta_network_is_among_the_layers_whose_actions_may_be_permuted():
    names = [layer.name for layer in REGISTRY.values() if relation("actions_permuted").applies(layer, layer.settings)]
    assert "meta/whole" in names and "values/retrace" in names
