"""What is written here from the original's evaluation notebook, beside the cells of the notebook itself.

A notebook is not installed with its package. Where DISCO_RL_CHECKOUT names a checkout of the original, its cells run.
"""

import ast
import collections
import json
import os
import pathlib

import numpy as np
import pytest

from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from port.config import eval_agent_config
from port.evaluate.eval_loop import EvalConfig
from port.meta_train import MetaTrainConfig

CHECKOUT = os.environ.get("DISCO_RL_CHECKOUT", "")
NOTEBOOK = pathlib.Path(CHECKOUT) / "colabs" / "eval.ipynb"
pytestmark = pytest.mark.skipif(
    not (CHECKOUT and NOTEBOOK.is_file()), reason="DISCO_RL_CHECKOUT names no checkout of the original"
)


def cell(holding, notebook=NOTEBOOK):
    """The only code cell with a text in it."""
    cells = ["".join(c["source"]) for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    (found,) = (text for text in cells if holding in text)
    return found


@pytest.fixture(scope="module")
def names():
    """What the notebook's own cells define."""
    pytest.importorskip("disco_rl", reason="the original is not installed; `make original` brings it")
    import jax
    import jax.numpy as jnp
    import rlax
    from disco_rl import types, utils

    namespace = {
        "collections": collections,
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "rlax": rlax,
        "types": types,
        "utils": utils,
    }
    for holding in ("class SimpleReplayBuffer", "def accumulate_rewards"):
        exec(cell(holding), namespace)
    return namespace


def cases(layer):
    return [pytest.param(case, id=case.name) for case in REGISTRY[layer].cases]


@pytest.mark.parametrize("case", cases("replay/sample"))
def test_the_replay_buffer_is_the_notebooks(names, case):
    from reference.original.notebook import replay_sample

    layer = REGISTRY["replay/sample"]
    inputs, settings = case_inputs(layer, case), layer.case_settings(case)
    ref = names["SimpleReplayBuffer"](settings["capacity"], int(inputs["seed"]))
    sampled, sizes = [], []
    for added in inputs["trajectories"]:
        ref.add({"x": added[None].astype(np.float32)})  # with the notebook's axis of devices
        sampled.append(np.asarray(ref.sample(settings["G"])["x"])[0])
        sizes.append(len(ref))
    got = replay_sample(inputs, settings)
    assert np.array_equal(np.stack(sampled), got["sampled"])
    assert sizes == got["size"].tolist()


@pytest.mark.parametrize("case", cases("eval/accumulate_returns"))
def test_accumulated_returns_are_the_notebooks(names, case):
    from reference.original.notebook import accumulate_returns

    layer = REGISTRY["eval/accumulate_returns"]
    inputs = {name: value.astype(np.float32) for name, value in case_inputs(layer, case).items()}
    so_far, returns = names["accumulate_rewards"](inputs["so_far"], (inputs["rewards"], inputs["discounts"]))
    got = accumulate_returns(inputs, layer.case_settings(case))
    assert np.array_equal(so_far, got["so_far"]) and np.array_equal(returns, got["returns"])


def literals(source):
    """Names and attributes that a text sets to literal values, and keyword arguments that are literals."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        pairs = []
        if isinstance(node, ast.Assign):
            pairs = [(ast.unparse(node.targets[0]).split(".")[-1], node.value)]
        elif isinstance(node, ast.keyword):
            pairs = [(node.arg, node.value)]
        for name, value in pairs:
            try:
                found[name] = ast.literal_eval(value)
            except ValueError:
                continue
    return found


def test_the_settings_are_the_notebooks():
    loop, config = literals(cell("# @title Training loop")), EvalConfig()
    assert loop["num_steps"] == config.num_steps
    assert loop["batch_size"] == config.batch_size
    assert loop["rollout_len"] == config.rollout_length
    assert loop["replay_ratio"] == config.replay_ratio
    assert loop["capacity"] == config.capacity
    assert loop["seed"] == config.replay_seed
    assert "rng_key = jax.random.PRNGKey(0)" in cell("# @title Training loop") and config.seed == 0
    assert "min_buffer_size = batch_size" in cell("# @title Training loop")
    agent, ours = literals(cell("# @title Instantiate a simple MLP agent.")), eval_agent_config()
    assert agent["learning_rate"] == ours.learning_rate
    assert agent["dense"] == ours.net.dense
    assert agent["head_w_init_std"] == ours.net.head_w_init_std
    assert agent["head_mlp_hiddens"] == ours.net.head_mlp_hiddens
    assert agent["lstm_size"] == ours.net.lstm_size


def test_the_settings_of_meta_training_are_the_notebooks():
    notebook = NOTEBOOK.with_name("meta_train.ipynb")
    loop, config = literals(cell("# @title Meta training config", notebook)), MetaTrainConfig()
    assert loop["num_steps"] == config.num_meta_updates
    assert loop["num_agents"] == len(config.boards)
    assert loop["rollout_len"] == config.rollout_length
    assert loop["num_inner_steps"] == config.num_inner_steps
    assert loop["batch_size_per_device"] == config.batch_size
    assert "meta_opt = optax.adam(learning_rate=5e-4)" in cell("# @title Meta training config", notebook)
    assert config.meta_learning_rate == 5e-4
    value = config.value_fn
    for name in ("dense", "head_w_init_std", "max_abs_update", "discount_factor", "td_lambda", "outer_value_cost"):
        assert loop[name] == getattr(value, name), name
    assert "learning_rate=1e-3," in cell("# @title Meta training config", notebook) and value.learning_rate == 1e-3
    agent = literals(cell("# @title Configure a simple MLP agent.", notebook))
    assert agent["learning_rate"] == config.agent.learning_rate
    for name in ("dense", "head_w_init_std", "head_mlp_hiddens", "lstm_size"):
        assert agent[name] == getattr(config.agent.net, name), name
    assert all(board == "5x5" for board in config.boards) and "rows=5, columns=5" in cell("def get_env", notebook)
