"""Adapters written with the helpers of `parity.adapters`, as a newcomer writes them, in PyTorch and in JAX."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from parity.adapters import jax as for_jax
from parity.adapters import shared
from parity.adapters import torch as for_torch
from parity.compare import ProblemKind
from parity.goldens.check import Outcome, check_layer, load, rows_expected
from parity.goldens.store import Store
from parity.mutants.mutate import load_edited
from tests.helpers import ROOT

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.fixture(scope="module")
def store():
    return Store()


def retrace(x, settings, where):
    """Retrace in either framework: `where` gives `stop`, `minimum`, `take` and `stack`."""
    discounts, steps = settings["discount"] * x.continues, len(x.rewards)
    q = where.take(x.target_q_values, x.actions)
    weights = settings["lambda"] * where.minimum(x.rho)
    target = x.rewards[-1] + discounts[-1] * x.target_values[-1]
    targets = [target]
    for t in range(steps - 2, -1, -1):
        correction = weights[t + 1] * (target - q[t + 1])
        target = x.rewards[t] + discounts[t] * (x.target_values[t + 1] + correction)
        targets.append(target)
    return where.stop(where.stack(targets[::-1]))


IN_TORCH = SimpleNamespace(
    stop=lambda x: x.detach(),
    minimum=lambda x: x.clamp(max=1.0),
    take=lambda q, a: q.gather(2, a.long().unsqueeze(-1)).squeeze(-1),
    stack=torch.stack,
)
IN_JAX = SimpleNamespace(
    stop=jax.lax.stop_gradient,
    minimum=lambda x: jnp.minimum(x, 1.0),
    take=lambda q, a: jnp.take_along_axis(q[: len(a)], a[..., None], 2)[..., 0],
    stack=jnp.stack,
)


def newcomer(framework):
    """Two layers; the same in both frameworks but for what the frameworks call things."""
    np_, where, helpers = (torch, IN_TORCH, for_torch) if framework == "torch" else (jnp, IN_JAX, for_jax)
    adapter = helpers.Adapter("newcomer", "two layers")

    @adapter.layer("values/retrace")
    def _(x, settings):
        return retrace(x, settings, where)

    @adapter.layer("ops/signed_hyperbolic")
    def _(x, settings):
        return np_.sign(x.x) * (np_.sqrt(abs(x.x) + 1) - 1) + 1e-3 * x.x

    return adapter


def checked(store, adapter, *layers):
    outcome = Outcome()
    for layer in layers or adapter.layers:
        check_layer(store, adapter, layer, outcome)
    assert len(outcome.rows) >= 1
    return outcome


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_newcomers_layers_are_equal_in_values_and_gradients(framework, store):
    outcome = checked(store, newcomer(framework))
    assert [row.sentence() for row in outcome.different] == []
    recorded = [load(store, layer, case) for layer in newcomer(framework).layers for case in store.cases(layer)]
    assert len(outcome.rows) == sum(map(rows_expected, recorded)) and not outcome.without_gradients
    assert {(row.kind, row.dtype) for row in outcome.rows} == {
        (kind, dtype) for kind in ("value", "vjp") for dtype in ("float64", "float32")
    }


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_mistake_is_different(framework, store):
    adapter = newcomer(framework)
    right = adapter.layers["ops/signed_hyperbolic"]
    adapter.layers["ops/signed_hyperbolic"] = lambda x, s: right(x, s) + 1e-6 * x.x
    different = checked(store, adapter, "ops/signed_hyperbolic").different
    assert {(row.kind, row.dtype) for row in different} >= {("value", "float64"), ("vjp", "float64")}


@pytest.mark.parametrize(("framework", "stop"), [("torch", torch.Tensor.detach), ("jax", jax.lax.stop_gradient)])
def test_a_detached_input_is_a_stopped_gradient(framework, stop, store):
    adapter = newcomer(framework)
    right = adapter.layers["ops/signed_hyperbolic"]
    adapter.layers["ops/signed_hyperbolic"] = lambda x, s: right(x | {"x": stop(x.x)}, s)
    different = checked(store, adapter, "ops/signed_hyperbolic").different
    assert different and {row.kind for row in different} == {"vjp"}
    assert {row.problem.kind for row in different} == {ProblemKind.ZEROS}


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_layer_declared_without_gradients_is_judged_by_its_values(framework, store):
    adapter = newcomer(framework)
    adapter.layer("ops/signed_hyperbolic", gradients=False)(adapter.layers["ops/signed_hyperbolic"])
    outcome = checked(store, adapter, "ops/signed_hyperbolic")
    assert outcome.without_gradients == {"ops/signed_hyperbolic"} and not outcome.different
    assert {row.kind for row in outcome.rows} == {"value"}


def test_what_is_declared_to_be_missing_is_listed_and_not_failed(store):
    adapter = for_torch.Adapter("partial")

    @adapter.layer(
        "values/estimate_q", optional=("q_*", "*adv"), unsupported=lambda s: "two actions" if s["A"] == 2 else ""
    )
    def _(x, settings):
        return {"value_target": retrace(x, settings, IN_TORCH), "td": retrace(x, settings, IN_TORCH)}

    outcome = checked(store, adapter)
    assert {row.output for row in outcome.rows if row.kind == "value"} == {"value_target", "td"}
    left_out = {f"{name} of values/estimate_q" for name in ("adv", "q_target", "q_td", "qv_adv")}
    assert set(outcome.not_provided) == left_out | {"values/estimate_q[A2] (two actions)"}
    assert "A2" not in {row.case for row in outcome.rows}
    assert outcome.without_gradients == {"values/estimate_q"}  # which need every output


def test_an_output_that_is_missing_and_not_declared_is_different(store):
    adapter = for_torch.Adapter("partial")
    adapter.layer("values/estimate_q", optional=("q_*",))(lambda x, s: {"td": x.rewards})
    problems = {row.output: row.problem.kind for row in checked(store, adapter).different if row.problem}
    assert problems["adv"] is ProblemKind.MISSING and "q_target" not in problems


SEEN = """
import json, sys
import numpy as np
from parity.adapters.{framework} import Adapter

adapter, seen = Adapter("a", device={device!r}), []

@adapter.layer("ops/signed_hyperbolic")
def _(x, settings):
    seen.append([str(x.dtype), str(x.device), str(x.x.dtype)])
    return x.x * 2

outs, grads = adapter.run_and_vjp(
    "ops/signed_hyperbolic", {{"x": np.ones(3)}}, {{}}, sys.argv[1], {{"out": np.ones(3)}}, ["x"]
)
answers = [outs["out"], grads["x"]]
assert [type(x) for x in answers] == [np.ndarray] * 2 and answers[0].tolist() == [2.0] * 3
print(json.dumps([seen[0], [str(x.dtype) for x in answers]]))
"""


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("framework", "device", "name"), [("torch", "cpu", "cpu"), ("jax", "cpu:1", "TFRT_CPU_1")], ids=["torch", "jax"]
)
def test_device_and_dtype_are_as_asked_for(framework, device, name, dtype):
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    program = SEEN.format(framework=framework, device=device)
    command = [sys.executable, "-c", program, dtype]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    (of_call, of_device, of_input), answers = json.loads(done.stdout)
    assert {part.removeprefix("torch.") for part in (of_call, of_input)} == {dtype}
    assert of_device == name and answers == [dtype, dtype]


def test_tensors_are_made_on_the_device_of_the_adapter():
    adapter, devices = for_torch.Adapter("a", device="meta"), []
    adapter.layer("ops/signed_hyperbolic")(lambda x, s: devices.append(x.x.device) or torch.ones(3))
    adapter.run("ops/signed_hyperbolic", {"x": np.ones(3)}, {}, "float64")
    assert devices == [torch.device("meta")]


class Average(NamedTuple):
    moment1: object
    moment2: object


@dataclasses.dataclass
class State:
    average: Average
    params: dict
    step: int = 7


def test_records_are_made_of_named_tensors_and_flattened_again():
    flat = {"s/average/moment1": 1, "s/average/moment2": 2, "s/params/mlp/w": 3, "other": 4}
    x = shared.Tensors(flat)
    state = x.record(State, "s", average=Average)
    assert state == State(Average(1, 2), {"mlp/w": 3}, 7)
    assert x.record(State, "s", step=8) == State({"moment1": 1, "moment2": 2}, {"mlp/w": 3}, 8)
    tree = {"s": state, "nothing": None, "several": [5]}
    assert shared.flatten(tree) == {
        **{name: y for name, y in flat.items() if name != "other"},
        "s/step": 7,
        "several/0": 5,
    }


def test_an_input_that_is_not_there_gets_a_sentence():
    with pytest.raises(AttributeError, match="The layer has no input 'reward'; it has actions, rewards"):
        _ = shared.Tensors({"rewards": 1, "actions": 2}).reward


def test_names_are_this_implementations_inside_and_the_registrys_outside():
    adapter = for_torch.Adapter("a", names=lambda s: [("first/w", "one.weight"), ("opt", "optimiser")])

    @adapter.layer("optim/target_average")
    def _(x, settings):
        assert set(x) == {"target/one.weight", "online/one.weight", "target/first/b", "online/first/b"}
        return {"target": x.under("online")}

    inputs = {f"{tree}/first/{kind}": np.full(2, i) for i, tree in enumerate(("target", "online")) for kind in "wb"}
    outs = adapter.run("optim/target_average", inputs, {}, "float64")
    assert {name: value.tolist() for name, value in outs.items()} == {
        "target/first/w": [1, 1],
        "target/first/b": [1, 1],
    }
    assert list(adapter.inside(shared.Tensors({"opt/mu/first/w": 1}), {})) == ["optimiser/mu/one.weight"]


def test_a_parameter_of_the_original_may_have_several_names():
    adapter = for_torch.Adapter("a", names=lambda s: [("first/w", "one"), ("first/w", "two")])
    assert adapter.inside(shared.Tensors({"p/first/w": 1, "p/x": 2}), {}) == {"p/one": 1, "p/two": 1, "p/x": 2}


def test_a_copy_of_the_port_makes_records_of_its_own_classes(store):
    copy = load_edited("port.adapter:implementation", ())
    importlib.import_module("port.adapter")  # what `sys.modules` has is another copy
    outcome = checked(store, copy, "agent/actor_critic_step")
    assert [row.sentence() for row in outcome.different] == []


PARAMS = {
    "mlp/linear_0/w": np.arange(6.0).reshape(3, 2),
    "mlp/linear_0/b": np.arange(2.0),
    "mlp/linear_1/w": np.ones((2, 4)),
    "mlp/linear_1/b": np.zeros(4),
}


def test_grafted_parameters_are_those_of_the_original_and_get_gradients():
    params = {name: torch.tensor(value, requires_grad=True) for name, value in PARAMS.items()}
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 4))
    x = torch.ones(5, 3, dtype=torch.float64)
    out = for_torch.graft(net, {"": "mlp/linear_{i}"}, params)(x)
    hidden = torch.tanh(x @ params["mlp/linear_0/w"] + params["mlp/linear_0/b"])
    torch.testing.assert_close(out, hidden @ params["mlp/linear_1/w"] + params["mlp/linear_1/b"])
    out.sum().backward()
    assert all(value.grad is not None for value in params.values())


def test_single_parameters_are_grafted_as_they_are_or_transposed():
    params = {name: torch.tensor(value) for name, value in PARAMS.items()}
    net = torch.nn.ModuleDict({"cell": torch.nn.ParameterDict({"kernel": torch.ones(3, 2), "back": torch.ones(4, 2)})})
    grafted = for_torch.graft(net, {"cell.kernel": "mlp/linear_0/w", "cell.back": "mlp/linear_1/w.T"}, params)
    assert grafted["cell"]["kernel"] is params["mlp/linear_0/w"]
    assert grafted["cell"]["back"].tolist() == [[1.0, 1.0]] * 4
    with pytest.raises(ValueError, match=r"kernel is \[3, 2\], the original's \[2, 3\]"):
        for_torch.graft(net, {"cell.kernel": "mlp/linear_0/w.T"}, params)


def test_a_graft_that_does_not_fit_gets_a_sentence():
    params = {name: torch.tensor(value) for name, value in PARAMS.items()}
    with pytest.raises(KeyError, match="There is no parameter 'mlp/linear/w'; near it: mlp/linear_"):
        for_torch.graft(torch.nn.Linear(3, 2), {"": "mlp/linear"}, params)
    with pytest.raises(ValueError, match=r"weight is \[2, 5\], the original's \[2, 3\]"):
        for_torch.graft(torch.nn.Linear(5, 2), {"": "mlp/linear_0"}, params)


def test_a_tree_of_jax_gets_the_originals_parameters():
    class Dense(NamedTuple):
        weight: object
        bias: object

    tree = {"layers": [Dense(jnp.zeros((2, 3)), jnp.zeros(2))], "scale": jnp.ones(())}
    table = {"layers/0/weight": "mlp/linear_0/w.T", "layers/0/bias": "mlp/linear_0/b"}
    grafted = for_jax.graft(tree, table, PARAMS)
    assert grafted["layers"][0].weight.tolist() == PARAMS["mlp/linear_0/w"].T.tolist()
    assert grafted["layers"][0].bias.tolist() == [0.0, 1.0] and grafted["scale"] == 1.0
    with pytest.raises(ValueError, match=r"layers/0/weight is \[2, 3\], the original's mlp/linear_0/w is \[3, 2\]"):
        for_jax.graft(tree, {"layers/0/weight": "mlp/linear_0/w"}, PARAMS)
    with pytest.raises(KeyError, match="near it: layers/0/weight"):
        for_jax.graft(tree, {"layers/0/weights": "mlp/linear_0/w.T"}, PARAMS)
