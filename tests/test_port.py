"""The port as a library: sizes, names, errors that are sentences, and that nothing it is given is changed."""

import dataclasses
import inspect

import numpy as np
import pytest
import torch

import port
from parity.layers import REGISTRY
from port import agent, moving_average
from port.networks import param_names
from port.value_fns import value_utils
from port.weights import agent_params_to_original, to_original

SMALL_META = port.MetaNetConfig(
    prediction_size=7,
    hidden_size=8,
    embedding_size=(4, 1),
    policy_channels=(4, 2),
    policy_target_channels=(4,),
    meta_rnn=port.MetaRnnConfig((4, 2), (5,), (4, 1), 6),
)
CONFIG = port.AgentConfig(
    learning_rate=1e-2,
    rule=port.DiscoConfig(num_bins=11, max_abs_value=4.0),
    meta_net=SMALL_META,
    net=port.AgentNetConfig(dense=(10, 9), head_mlp_hiddens=(6,), lstm_size=5),
)
OBS, A = (4, 3), 3


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make(dtype=torch.float64):
    agent = port.Agent(CONFIG, OBS, A)
    meta = port.init_meta_params(SMALL_META, generator(1), dtype)
    return agent, agent.initial_learner_state(generator(), dtype), meta


def rollout(T=4, B=3, dtype=torch.float64, seed=2):
    g = generator(seed)
    return port.Rollout(
        observations=torch.randn((T + 1, B, *OBS), generator=g, dtype=dtype),
        actions=torch.randint(0, A, (T + 1, B), generator=g),
        rewards=torch.randn((T + 1, B), generator=g, dtype=dtype),
        discounts=torch.rand((T + 1, B), generator=g) > 0.2,
        agent_outs={"logits": torch.randn((T + 1, B, A), generator=g, dtype=dtype)},
    )


def tensors(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if dataclasses.is_dataclass(tree):
        tree = [getattr(tree, f.name) for f in dataclasses.fields(tree)]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [x for part in tree for x in tensors(part)] if isinstance(tree, (list, tuple)) else []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learner_step_keeps_the_dtype_everywhere(dtype):
    agent, state, meta = make(dtype)
    state, logs = agent.learner_step(rollout(dtype=dtype), state, meta)
    floats = [x for x in tensors((state, logs)) if x.is_floating_point()]
    assert len(floats) > 100
    assert {x.dtype for x in floats} == {dtype}


def test_a_learner_step_leaves_its_inputs_alone_and_carries_no_graph():
    agent, state, meta = make()
    given = rollout()
    before = [x.clone() for x in tensors((state, meta, given))]
    new, logs = agent.learner_step(given, state, meta)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors((state, meta, given)), strict=True))
    assert not any(x.requires_grad for x in tensors((new, logs)))
    assert int(new.opt_state.count) == 1


def test_learning_does_not_depend_on_the_default_dtype():
    agent, state, meta = make()
    given = rollout()
    plain, _ = agent.learner_step(given, state, meta)
    torch.set_default_dtype(torch.float64)
    try:
        other, _ = agent.learner_step(given, state, meta)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(tensors(plain), tensors(other), strict=True))


def test_observations_may_be_a_dict_taken_in_sorted_order():
    agent, state, meta = make()
    given = rollout()
    first, second = given.observations[..., :2, :], given.observations[..., 2:, :]
    split = dataclasses.replace(given, observations={"b": second, "a": first})
    whole, _ = agent.learner_step(given, state, meta)
    parts, _ = agent.learner_step(split, state, meta)
    assert all(torch.equal(a, b) for a, b in zip(tensors(whole), tensors(parts), strict=True))


def test_disco103_sizes_follow_from_the_configuration():
    shapes = param_names.meta_shapes(port.MetaNetConfig())
    assert len(shapes) == 42
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 754_778
    assert shapes["trajectory_lstm/w"] == (283, 1024)


def test_weights_go_out_and_come_back_under_the_originals_names(tmp_path):
    _, _, meta = make(torch.float32)
    port.save_npz(tmp_path / "rule.npz", meta, SMALL_META)
    with np.load(tmp_path / "rule.npz") as file:
        assert file["lstm/~/meta_lstm/~unroll/mlp_1/~/linear_0/w"].shape == (7, 4)
        assert file["lstm/sequential/conv1_d/w"].shape == (1, 18, 4)
    back = port.load_npz(tmp_path / "rule.npz", SMALL_META)
    assert back.keys() == meta.keys()
    assert all(torch.equal(back[name], meta[name]) for name in meta)


def test_agent_parameters_go_out_and_come_back(tmp_path):
    _, state, _ = make()
    port.save_agent_params(tmp_path / "agent.npz", state.params, CONFIG)
    back = port.load_agent_params(tmp_path / "agent.npz", CONFIG, OBS, A, torch.float64)
    assert all(torch.equal(back[name], state.params[name]) for name in state.params)
    assert "mlp/~_head_pass/torso_head_1/~/linear_0/w" in agent_params_to_original(state.params, CONFIG)


def test_weights_of_another_size_are_refused_by_name(tmp_path):
    _, _, meta = make(torch.float32)
    arrays = to_original(meta, SMALL_META)
    name = "lstm/linear_2/w"
    with pytest.raises(ValueError, match=r"lstm/linear_2/w.*\(8, 7\).*\(8, 9\)"):
        port.load_npz({**arrays, name: np.zeros((8, 9), np.float32)}, SMALL_META)
    with pytest.raises(ValueError, match="lacks lstm/linear_2/w"):
        port.load_npz({k: v for k, v in arrays.items() if k != name}, SMALL_META)
    with pytest.raises(ValueError, match="also has extra"):
        port.load_npz({**arrays, "extra": np.zeros(1, np.float32)}, SMALL_META)


def test_a_pickled_or_truncated_file_is_refused(tmp_path):
    path = tmp_path / "bad.npz"
    np.savez(path, **{"lstm/linear/w": np.array([{"a": 1}], dtype=object)})
    with pytest.raises(ValueError, match="pickled"):
        port.load_npz(path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="cut short"):
        port.load_npz(path)
    with pytest.raises(FileNotFoundError, match="no weights file"):
        port.load_npz(tmp_path / "absent.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": torch.full((5, 3), 3)}, "outside 0 to 2"),
        ({"actions": torch.zeros((5, 3))}, "give integers"),
        ({"actions": torch.zeros((4, 3), dtype=torch.long)}, "actions is"),
        ({"rewards": torch.zeros((1, 3))}, "at least 2 steps"),
        ({"discounts": torch.ones((5, 2))}, "discounts is"),
        ({"agent_outs": {}}, "lack logits"),
        ({"agent_outs": {"logits": torch.zeros((5, 3, 4))}}, "logits are .* 3 actions"),
        ({"observations": torch.zeros((5, 3, 11))}, "sees 12 numbers"),
    ],
)
def test_a_rollout_that_does_not_fit_gets_a_sentence(change, message):
    agent, state, meta = make()
    with pytest.raises((ValueError, KeyError), match=message):
        agent.learner_step(dataclasses.replace(rollout(), **change), state, meta)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: port.DiscoConfig(num_bins=1), "at least 2"),
        (lambda: port.DiscoConfig(max_abs_value=-1.0), "must be positive"),
        (lambda: port.AgentConfig(learning_rate=0.0), "must be positive"),
        (lambda: port.HyperParams(target_params_coeff=1.5), "between 0 and 1"),
        (lambda: port.TransformConfig("rewards", ("sing_log",)), "no transform called 'sing_log'"),
        (lambda: port.Agent(CONFIG, OBS, 0), "at least one action"),
    ],
)
def test_a_configuration_that_makes_no_sense_gets_a_sentence(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("function", "layer", "judged"),
    [
        (value_utils.ValueForm, "values/from_logits", {"categorical", "nonlinear"}),
        (value_utils.ValueSettings, "values/outs", {"decay", "eps"}),
        (moving_average.normalize, "moving_average/normalize", {"eps", "subtract_mean"}),
    ],
)
def test_defaults_are_what_the_goldens_were_recorded_with(function, layer, judged):
    """The adapter always passes these, so that no golden sees a wrong default."""
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    settings = REGISTRY[layer].settings
    assert {name: defaults[name] for name in judged} == {name: settings[name] for name in judged}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_policy_give_the_action_minus_one(bad):
    logits = torch.zeros(2, 3)
    logits[1, 2] = bad
    assert agent.sample_actions(logits, torch.zeros(2, 3)).tolist() == [0, -1]
