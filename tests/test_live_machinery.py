"""Live comparison: what it forgives, what it never does, and what it leaves behind of a failure."""

import os
import subprocess
import sys
from dataclasses import replace

import hypothesis
import numpy as np
import pytest

from parity import metamorphic, repro, shrink, strategies
from parity.exactness import Reference
from parity.implementation import load
from parity.layers import REGISTRY
from parity.live import JITTERS, check_layer_live, compare_live, drawn, judge, live_reference
from tests import toy

RETRACE = REGISTRY["values/retrace"]
A2 = next(case for case in REGISTRY["disco/agent_loss_no_meta"].cases if case.name == "A2")


@pytest.fixture(scope="module")
def standin():
    return load("standin")


def changed(layer, change):
    """The port with one layer's outputs changed by a function of (outputs, inputs)."""
    port = load("port")

    class Changed:
        name, description, layers = "changed", "", {layer}

        def run(self, name, inputs, settings, dtype):
            return change(port.run(name, inputs, settings, dtype), inputs)

        def vjp(self, *asked):
            return port.vjp(*asked)

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


def test_an_error_of_a_few_units_of_1e_minus_12_is_found(standin):
    def shift(out, _):
        return {"q_target": out["q_target"] + np.asarray(3e-12 * np.abs(out["q_target"]).max(), out["q_target"].dtype)}

    off = changed("values/retrace", shift)
    assert {row.dtype for row in different(live(standin, off, "values/retrace"))} == {"float64"}


def test_a_wrong_epsilon_is_found_on_inputs_where_it_is_all_there_is(standin):
    zero = np.zeros((5, 3))
    off = changed("moving_average/normalize", lambda out, _: {"out": out["out"] * (1 + 1e-9)})
    rows = live(standin, off, "moving_average/normalize", "small_variance")
    assert different(rows)
    assert not different(live(standin, load("port"), "moving_average/normalize", "small_variance", values=zero))


def test_a_number_that_differs_only_at_a_kink_is_forgiven(standin):
    x = drawn(REGISTRY["transforms/sign"], REGISTRY["transforms/sign"].cases[0], 0).inputs["x"]
    x.reshape(-1)[0] = 0.0
    at_zero = changed("transforms/sign", lambda out, given: {"out": np.where(given["x"] == 0, 1, out["out"])})
    rows = live(standin, at_zero, "transforms/sign", x=x)
    assert not different(rows)
    assert sum(row.at_branch for row in rows) > 0


def test_a_nan_at_a_kink_is_never_forgiven(standin):
    x = drawn(REGISTRY["transforms/sign"], REGISTRY["transforms/sign"].cases[0], 0).inputs["x"]
    x.reshape(-1)[0] = 0.0
    at_zero = changed("transforms/sign", lambda out, given: {"out": np.where(given["x"] == 0, np.nan, out["out"])})
    assert any("NaN" in row.problem for row in different(live(standin, at_zero, "transforms/sign", x=x)))


def test_a_float32_overflow_of_the_reference_is_nothing_to_hold_to(standin):
    logits = np.tile(np.array([0.0, 100.0, 0.0]), (5, 3, 1))
    entry = "ops/importance_weight"
    actions = np.ones((5, 3), np.int32)
    rows = live(standin, load("port"), entry, pi_logits=logits, mu_logits=-logits, actions=actions)
    assert not different(rows)
    assert any(np.isinf(row.budget) for row in rows)


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


def test_values_on_a_bin_s_edge_under_a_saturated_softmax_are_forgiven(standin):
    layer, sample = REGISTRY["disco/agent_loss_no_meta"], drawn(REGISTRY["disco/agent_loss_no_meta"], A2, 421)
    inputs = strategies.edged(sample.inputs, [(14, 56), (0, 33), (35, 32)], layer)
    # On which side of the edge the port itself comes out is up to the processor; one of the moved ones is across it.
    ports = [load("port"), *(given_moved(layer.name, "meta_out/q_td", units) for units in (-16, 16))]
    rows = [compare_live(standin, port, layer, replace(sample, inputs=inputs)) for port in ports]
    assert different(rows[0]) == []
    assert {row.output for of in rows for row in different(of)} <= {"log/td"}  # the mean of what was moved
    assert any(row.at_branch for of in rows for row in of)


def test_checking_a_layer_by_name_uses_the_live_reference():
    assert not different(check_layer_live(load("port"), "ops/two_hot"))


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
    inputs = drawn(entry, entry.cases[0], 0).inputs
    every = [(which, edge) for which in range(4) for edge in range(len(strategies.EDGES))]
    made = strategies.edged(inputs, every, entry)
    kept = [name for name in inputs if np.array_equal(made[name], inputs[name])]
    assert kept == [name for name in inputs if name.startswith("state/")]


def test_a_failure_shrinks_to_the_sizes_and_values_that_show_it(standin, tmp_path):
    candidate = toy.implementation  # Retrace, one step too late: nothing of it shows before T = 3

    def fails(sample):
        return bool(different(compare_live(standin, candidate, RETRACE, sample)))

    found = drawn(RETRACE, next(c for c in RETRACE.cases if c.name == "plain"), 7)
    assert fails(found)
    smallest = shrink.shrink(RETRACE, found, fails, seconds=300)
    assert (smallest.settings["T"], smallest.settings["B"], smallest.settings["A"]) == (3, 1, 2)
    assert not smallest.inputs["rewards"].any() or not smallest.inputs["target_values"].any()

    golden = Reference(standin, RETRACE, smallest).measured(JITTERS)
    row = different(judge(candidate, golden))[0]
    path = repro.write(golden, row, "tests.toy:implementation", tmp_path)
    assert_shows_it_without_jax_or_the_harness(path, tmp_path)


class Steep:
    """A reference for Retrace that moves a million times as far as its rewards, and the precisions it was asked in."""

    name, description, layers = "steep", "", {RETRACE.name}

    def __init__(self, at):
        self.at, self.asked_in = at, []

    def run(self, layer, inputs, settings, dtype):
        self.asked_in.append(dtype)
        rewards = inputs["rewards"]
        return {"q_target": self.at.astype(dtype) + 1e6 * (rewards - self.at.astype(dtype))}


@pytest.mark.parametrize(
    ("share", "is_equal", "asked_in"), [(1e-14, True, 1), (1e-11, True, 1), (1e-7, False, 2)], ids=str
)
def test_what_inputs_a_unit_away_explain_needs_no_other_program(share, is_equal, asked_in):
    sample = drawn(RETRACE, RETRACE.cases[0], 0)
    sample = replace(sample, case=replace(sample.case, dtypes=("float64",), gradients=False))
    reference = Steep(sample.inputs["rewards"])
    candidate = changed(RETRACE.name, lambda out, given: {"q_target": given["rewards"] * (1 + share)})
    rows = compare_live(reference, candidate, RETRACE, sample)
    assert [row.equal for row in rows] == [is_equal]
    assert len(set(reference.asked_in)) == asked_in


def test_inputs_a_unit_away_alone_allow_no_more_than_all_that_is_measured(standin):
    asked = Reference(standin, RETRACE, drawn(RETRACE, RETRACE.cases[0], 0))
    near, whole = asked.moved(JITTERS), asked.measured(JITTERS)
    for kind, found in near.accuracy.items():
        for name, accuracy in found.items():
            assert accuracy.sensitivity64 <= whole.accuracy[kind][name].sensitivity64
    assert near.accuracy["value"]["q_target"].sensitivity64 > 0


BLOCK = "import sys\nfor name in ('jax', 'parity', 'reference', 'hypothesis'):\n    sys.modules[name] = None\n"


def assert_shows_it_without_jax_or_the_harness(path, folder):
    (folder / "sitecustomize.py").write_text(BLOCK)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), root))}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1, done.stderr
    assert "output q_target of values/retrace" in done.stdout
    assert "largest difference" in done.stdout


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
def test_each_relation_holds_and_can_fail(name):
    entry, chosen = RETRACE, relation(name)
    assert chosen.applies(entry, dict(entry.settings))
    assert not chosen.check(load("port"), entry, dict(entry.settings))
    assert "q_target differs by" in chosen.check(changed(entry.name, WRONG[name]), entry, dict(entry.settings))


def test_the_meta_network_is_among_the_layers_whose_actions_may_be_permuted():
    names = [layer.name for layer in REGISTRY.values() if relation("actions_permuted").applies(layer, layer.settings)]
    assert "meta/whole" in names and "values/retrace" in names


def test_a_gradient_that_vanishes_only_where_rounding_meets_a_kink_is_forgiven(standin):
    zero = np.zeros((5, 3, 601))  # the mean of the bins is 0 or 1e-17, as the sum is taken
    assert not different(live(standin, load("port"), "values/from_logits", "K601", net_out=zero))
