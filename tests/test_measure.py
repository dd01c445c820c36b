"""Recording a case: the truth, sigma of each number, other compilations by the rule, and cases that say nothing."""

import sys
import types
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed; `pip install 'disco-parity[jax]'` brings it")

import jax.numpy as jnp

from parity.goldens.check import injected_error_is_found, kinds_judged
from parity.goldens.store import describe
from parity.implementation import load
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.sigma import CARRIED, NONE, Rounding
from parity.tolerance import RECORDED, Uninformative
from reference.jax_runtime import InterpreterError, JaxImplementation
from reference.monte_carlo import primitives
from reference.record import calibrate
from reference.record.case import AT_FULL_SIZE, check_informative, record, silent
from reference.record.worker import record_layer
from tests import made

NAME = "ops/signed_hyperbolic"
LAYER = REGISTRY[NAME]
PLAIN = LAYER.cases[0]
TWO_HOT = REGISTRY["ops/two_hot"]
BIN_EDGES = next(case for case in TWO_HOT.cases if case.at_branch)


@pytest.fixture(scope="module")
def standin():
    return load("standin")


def recorded(implementation, layer=LAYER, case=PLAIN):
    return record(implementation, layer, case, case_inputs(layer, case), layer.case_settings(case), "generated")


@pytest.fixture(scope="module")
def golden(standin):
    return recorded(standin)


@pytest.fixture(scope="module")
def at_edges(standin):
    return recorded(standin, TWO_HOT, BIN_EDGES)


def changed(standin, change):
    """The stand-in with one layer's output changed."""
    layer = standin.layers[NAME]
    return JaxImplementation("changed", "", {NAME: lambda x, s: change(layer(x, s))})


def test_a_golden_has_the_truth_and_sigma_of_each_number(standin, golden):
    inputs = case_inputs(LAYER, PLAIN)
    right = standin.as_users_compile.run(NAME, inputs, LAYER.case_settings(PLAIN), "float64")
    assert np.array_equal(golden.outputs["out"], right["out"])
    assert (golden.recorded_at("value"), golden.recorded_at("vjp")) == (RECORDED["value"], RECORDED["vjp"])
    for kind, name in (("value", "out"), ("vjp", "x")):
        truth = golden.truth(kind)[name]
        for bits in golden.recorded_at(kind):
            share = golden.sigma(kind, name, bits) / np.abs(truth) * 2.0**bits
            assert ((share > 0.1) & (share < 30.0)).all(), (kind, bits)


def test_the_same_case_is_recorded_as_the_same_bytes(standin, golden):
    assert describe(recorded(standin)) == describe(golden)


# Other compilations


def held(monkeypatch, root, golden, original, **more):
    """What calibration finds of one golden, with somebody in the original's place."""
    module = types.ModuleType("reference.original")
    module.implementation = original
    monkeypatch.setitem(sys.modules, "reference.original", module)
    return calibrate.calibrate(made.write(root, golden), golden.layer, **more).as_json()


def test_other_compilations_of_the_recorded_program_are_equal_by_the_rule(standin, golden, monkeypatch, tmp_path):
    assert injected_error_is_found(golden)
    found = held(monkeypatch, tmp_path, golden, standin)
    ways = {"original as users compile it": ["float32"], "original, eagerly": ["float64"]}
    ways |= dict.fromkeys(("original at optimisation level 0", "stand-in"), ["float64", "float32"])
    assert set(found) == {f"{way}, {p}, {kind}" for way in ways for p in ways[way] for kind in ("value", "vjp")}
    assert {name: numbers["different"] for name, numbers in found.items() if numbers["different"]} == {}
    assert all(numbers["comparisons"] == 1 and sum(numbers["counts"]) > 0 for numbers in found.values())


def test_another_program_is_not_equal_to_what_was_recorded(standin, golden, monkeypatch, tmp_path):
    off = changed(standin, lambda out: {"out": out["out"] * (1 + 1e-4)})
    found = held(monkeypatch, tmp_path, golden, off)
    assert {name: numbers["different"] for name, numbers in found.items()} == {
        name: int(not name.startswith("stand-in")) for name in found
    }


def test_without_gradients_those_of_the_users_program_alone_are_left_out(standin, golden, monkeypatch, tmp_path):
    whole = held(monkeypatch, tmp_path, golden, standin)
    assert set(whole) - set(held(monkeypatch, tmp_path, golden, standin, values_only=True)) == {
        "original as users compile it, float32, vjp"
    }


# Cases


def test_at_full_size_the_smaller_precisions_are_left_out(standin):
    found = recorded(standin, case=replace(PLAIN, stored=False, gradients=False))
    assert found.recorded_at("value") == AT_FULL_SIZE
    assert (found.vjps, found.stored) == ({}, False)
    assert kinds_judged(found, "float32") == ["value"]
    assert kinds_judged(found, "bf16") == []


def test_outputs_that_the_registry_does_not_have_are_refused(standin):
    more = changed(standin, lambda out: {**out, "more": out["out"]})
    with pytest.raises(RuntimeError, match=r"outputs \['more'\] differ from the registry"):
        recorded(more, case=replace(PLAIN, gradients=False))


# Cases that say nothing


def stands_on_edge(golden):
    return np.isin(golden.inputs["value"], (0.0, 1.0, -1.0, 3.0, 4.0, -4.0))


def test_at_a_branch_sigma_is_large_at_the_elements_that_stand_there(at_edges):
    slope, on_edge = at_edges.sigma("vjp", "value", 53), stands_on_edge(at_edges)
    assert 0 < on_edge.sum() < on_edge.size / 2
    assert (slope[on_edge] > 1e-3).any()
    assert (slope[~on_edge] < 1e-13).all()


def test_a_case_at_a_branch_must_be_declared(standin, at_edges):
    assert at_edges.case == BIN_EDGES.name
    with pytest.raises(Uninformative, match=r"ops/two_hot\[bin_edges\]: rounding moves \d of 15 elements of the vjp"):
        recorded(standin, TWO_HOT, replace(BIN_EDGES, at_branch=False))


def test_elements_that_say_nothing_are_counted_by_output(golden, at_edges):
    assert list(silent(golden)) == []
    ((kind, name, count, size),) = silent(at_edges)
    assert (kind, name, size) == ("vjp", "value", 15)
    assert 0 < count <= stands_on_edge(at_edges).sum()


@pytest.mark.parametrize(("count", "is_refused"), [(10, False), (11, True)])
def test_one_percent_of_an_output_may_say_nothing(count, is_refused):
    sigma = np.where(np.arange(1000) < count, 1.0, 0.0)
    rounding = Rounding({"value": {"out": {53: sigma}}, "vjp": {}})
    found = replace(made.golden(), outputs={"out": np.full(1000, 10.0)}, rounding=rounding)
    assert list(silent(found)) == [("value", "out", count, 1000)]
    if is_refused:
        with pytest.raises(Uninformative, match=f"moves {count} of 1000 elements of the value of out"):
            check_informative(found, PLAIN)
    else:
        check_informative(found, PLAIN)
    check_informative(found, replace(PLAIN, at_branch=True))


# Random roundings


def test_a_layer_on_the_host_has_no_roundings(standin):
    assert standin.is_on_host("replay/sample")
    assert standin.rounding("replay/sample", {}, {}, {}, [], [53, 24]) == Rounding()


def test_samples_have_the_noise_that_is_asked_for(standin, golden):
    given = {name: x[None] for name, x in golden.inputs.items()}
    out = standin.samples(NAME, given, golden.settings, {}, [], [NONE, 24, 24, 8])[0]["out"]
    right = standin.run(NAME, golden.inputs, golden.settings, "float64")["out"]
    np.testing.assert_allclose(out[0], right, rtol=1e-15)
    assert len({one.tobytes() for one in out}) == 4


@pytest.mark.parametrize("bits", [53, 24, 8])
def test_perturbed_layers_are_off_by_the_roundings_of_their_samples(standin, golden, bits):
    asked = (NAME, {name: x[None] for name, x in golden.inputs.items()}, golden.settings, "float64")
    first, again = (standin.perturbed([bits] * 4).run(*asked)["out"] for _ in range(2))
    assert np.array_equal(first, again)
    size = 2.0 ** (min(bits, CARRIED) - bits)
    error, sigma = np.abs(first - golden.outputs["out"]) * size, golden.sigma("value", "out", bits)
    assert np.sqrt(np.mean(np.square(error / sigma))) == pytest.approx(1.0, abs=0.7)


def test_a_chain_of_perturbed_calls_takes_samples_and_draws_anew(standin, golden):
    perturbed = standin.perturbed([24] * 3)
    outs = [{name: x[None] for name, x in golden.inputs.items()}]
    for _ in range(2):
        outs.append({"x": perturbed.run(NAME, outs[-1], golden.settings, "float64")["out"]})
    again = perturbed.run(NAME, outs[0], golden.settings, "float64")["out"]
    assert outs[2]["x"].shape == outs[1]["x"].shape == (3, *golden.inputs["x"].shape)
    assert not np.array_equal(again, outs[1]["x"])


def test_perturbed_layers_are_those_of_the_inner_ones(standin):
    perturbed = standin.perturbed([53])
    assert (perturbed.name, perturbed.layers) == (standin.name, standin.layers)


# The interpreter is held to the program that it interprets


def off_by(ufunc):
    """An elementwise operation that is wrong by more than its rounding explains."""
    return lambda *operands: ufunc(*operands) * (1.0 + 1e-12)


def transposed(params, x):
    """A `reshape` in the order of Fortran."""
    return x.transpose(0, *range(x.ndim - 1, 0, -1)).reshape(len(x), *params["new_sizes"])


MISTAKES = {  # what the layer computes; the kind that is wrong, and its output; the table, operation and mistake
    "an elementwise operation": (jnp.exp, "value of out", "ROUNDED", "exp", (off_by(np.exp), 1)),
    "a move of data": (lambda x: jnp.exp(x).reshape(2, 3), "value of out", "EXACT", "reshape", transposed),
    "of an integer": (lambda x: jnp.argmax(x, 0), "value of out", "EXACT", "argmax", lambda params, x: np.argmin(x, 1)),
    "in the gradient alone": (jnp.square, "vjp of x", "ROUNDED", "mul", (off_by(np.multiply), 1)),
}


@pytest.mark.parametrize("bits", [[53, 24], [24]])
@pytest.mark.parametrize(("function", "where", "table", "operation", "wrong"), MISTAKES.values(), ids=list(MISTAKES))
def test_an_interpreter_that_computes_something_else_is_refused(
    monkeypatch, function, where, table, operation, wrong, bits
):
    x = np.array([[0.3, -1.2], [0.7, 2.5], [-0.4, 1.1]])
    layer = JaxImplementation("one", "", {"ops/two_hot": lambda x, s: {"out": function(x["x"])}})
    out = layer.run("ops/two_hot", {"x": x}, {}, "float64")["out"]
    cotangents = {"out": np.ones(out.shape)} if out.dtype.kind == "f" else {}
    asked = ("ops/two_hot", {"x": x}, {}, cotangents, ["x"] if cotangents else [], bits, "some_case")
    layer.rounding(*asked)
    monkeypatch.setitem(getattr(primitives, table), operation, wrong)
    expected = rf"ops/two_hot\[some_case\] {where} .*(worst element| at) \[.* in reference/monte_carlo/ is wrong"
    with pytest.raises(InterpreterError, match=expected):
        layer.rounding(*asked)


def test_a_case_is_not_recorded_by_an_interpreter_that_is_wrong(standin, monkeypatch):
    monkeypatch.setitem(primitives.ROUNDED, "sqrt", (off_by(np.sqrt), 1))
    layer = replace(LAYER, cases=(PLAIN,))
    goldens, (refusal,) = record_layer(standin, layer, {})
    assert goldens == []
    assert refusal.startswith(f"{NAME}[{PLAIN.name}] value of out (float64): DIFFERENT; worst element")
