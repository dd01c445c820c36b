"""The original's networks as layers: blocks, agent network, meta-network and, by stopping inside it, its parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from disco_rl import types
from disco_rl.networks import action_models, meta_nets, nets
from disco_rl.update_rules import disco
from dm_env import specs as dm_specs

from parity.layers.metanet import EXPERIENCE
from reference.flat_dict import Settings, Tensors, flattened, nested, under


def apply(fn: Callable[..., Any], params: Any, *args: Any) -> Any:
    """Runs a Haiku function on given parameters."""
    return hk.without_apply_rng(hk.transform(fn)).apply(params, *args)


def mlp(x: Tensors, s: Settings) -> Tensors:
    """Haiku's MLP."""
    return {"out": apply(lambda v: hk.nets.MLP(s["sizes"])(v), nested("params", x), x["x"])}


def conv_block(x: Tensors, s: Settings) -> Tensors:
    """One block of the policy nets."""
    params = {"conv1_d": {"w": x["w"], "b": x["b"]}}
    return {"out": apply(lambda v: meta_nets._conv1d_block(v, s["E"]), params, x["x"])}


def lstm_step(x: Tensors, s: Settings) -> Tensors:
    """Haiku's LSTM."""
    params = {"lstm/linear": {"w": x["w"], "b": x["b"]}}
    state = hk.LSTMState(x["hidden"], x["cell"])
    _, new = apply(lambda v, c: hk.LSTM(s["H"])(v, c), params, x["x"], state)
    return {"hidden": new.hidden, "cell": new.cell}


def unroll(x: Tensors, s: Settings) -> Tensors:
    """The reset-and-reverse unroll as the meta-network calls it."""

    def run(xs: jax.Array, resets: jax.Array) -> jax.Array:
        core = hk.ResetCore(hk.LSTM(s["H"]))
        state = core.initial_state(batch_size=xs.shape[1])
        return hk.dynamic_unroll(core, (xs, resets), state, reverse=True)[0]

    return {"hidden": apply(run, {"lstm/linear": {"w": x["w"], "b": x["b"]}}, x["xs"], x["is_terminal"])}


def action_spec(s: Settings) -> dm_specs.BoundedArray:
    """The spec of A actions."""
    return dm_specs.BoundedArray((), np.int32, 0, s["A"] - 1)


def _model_spec(s: Settings) -> dict[str, types.ArraySpec]:
    sizes = {"z": s["P"], "aux_pi": s["A"], "q": s["K"]}
    return {name: types.ArraySpec((size,), jnp.float32) for name, size in sizes.items()}


def action_model(x: Tensors, s: Settings) -> Tensors:
    """The action-conditional model on a torso's output."""
    hiddens = tuple(s["head_mlp_hiddens"])
    model = action_models.get_action_model("lstm", action_spec(s), _model_spec(s), hiddens, s["lstm_size"])
    params = {name.removeprefix("mlp/"): value for name, value in nested("params", x).items()}
    return apply(lambda v: model.model_step(model.root_embedding(v)), params, x["torso"])


def _network_arguments(s: Settings) -> dict[str, Any]:
    flat = {name: types.ArraySpec((s[letter],), jnp.float32) for name, letter in (("logits", "A"), ("y", "P"))}
    return {
        "action_spec": action_spec(s),
        "out_spec": flat,
        "model_out_spec": _model_spec(s),
        "dense": tuple(s["dense"]),
        "head_w_init_std": s.get("head_w_init_std"),
        "model_arch_name": "lstm",
        "model_kwargs": {"head_mlp_hiddens": tuple(s["head_mlp_hiddens"]), "lstm_size": s["lstm_size"]},
    }


def agent_network(s: Settings) -> types.PolicyNetwork:
    """The agent's network."""
    return nets.get_network("mlp", **_network_arguments(s))


def agent(x: Tensors, s: Settings) -> Tensors:
    """The agent's network over a rollout."""
    resets = jnp.zeros(x["observations"].shape[:2], bool)
    out, _ = agent_network(s).unroll(nested("params", x), {}, x["observations"], resets)
    return out


@contextlib.contextmanager
def given_noise(noise: Tensors) -> Iterator[None]:
    """Within it, initialisers draw `noise[parameter]`, uniform in [0, 1), instead of random bits."""
    current: list[str] = []

    def creator(next_creator: Any, shape: Any, dtype: Any, init: Any, context: Any) -> Any:
        current[:] = [context.full_name]
        return next_creator(shape, dtype, init)

    def uniform(key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0) -> jax.Array:
        return minval + noise[current[0]].astype(dtype) * (maxval - minval)

    # `truncated_normal` is jitted under its own name; what it wraps is called here, so that the patch is seen.
    plain = jax._src.random._truncated_normal.__wrapped__

    def truncated(key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = float) -> jax.Array:
        return plain(key, lower, upper, tuple(shape), dtype)

    with (
        mock.patch.object(jax._src.random, "uniform", uniform),
        mock.patch.object(jax.random, "truncated_normal", truncated),
        hk.custom_creator(creator),
    ):
        yield


def _init(call: Callable[[], Any], x: Tensors) -> Tensors:
    """Initial parameters of what `call` builds, from given noise."""

    def with_noise() -> None:
        with given_noise(under("noise", x)):
            call()

    params, _ = hk.transform_with_state(with_noise).init(jax.random.PRNGKey(0))
    return flattened("params", params)


def agent_init(x: Tensors, s: Settings) -> Tensors:
    """Initial agent parameters."""
    return _init(lambda: nets.MLP(**_network_arguments(s))(jnp.zeros((1, *s["obs"])), None), x)


def meta_init(x: Tensors, s: Settings) -> Tensors:
    """Initial meta-parameters."""
    sizes, dtypes = {**s, "T": 1, "B": 1, "A": 2}, {"float": float, "int": jnp.int32, "bool": bool}
    zeros = {name: jnp.zeros(spec.shape(sizes), dtypes[spec.kind]) for name, spec in EXPERIENCE.items()}
    return _init(lambda: meta_nets.LSTM(**meta_settings(s), name="lstm")(experience(zeros), None), x)


def meta_settings(s: Settings) -> dict[str, Any]:
    """Arguments of the original's meta-network for our settings."""
    return {
        "prediction_size": s["P"],
        "hidden_size": s["H"],
        "embedding_size": tuple(s["embedding_size"]),
        "policy_channels": tuple(s["policy_channels"]),
        "policy_target_channels": tuple(s["policy_target_channels"]),
        **{k: s.get(k, 0.3) for k in ("output_stddev", "aux_stddev", "policy_target_stddev", "state_stddev")},
        "meta_rnn_kwargs": {
            "policy_channels": tuple(s["meta_policy_channels"]),
            "embedding_size": tuple(s["meta_embedding_size"]),
            "pred_embedding_size": tuple(s["meta_pred_embedding_size"]),
            "hidden_size": s["M"],
        },
        "input_option": disco.get_input_option(),
    }


def experience(x: Tensors) -> types.UpdateRuleInputs:
    """The meta-network's input from named arrays."""
    scalars = ("v_scalar", "adv", "normalized_adv", "q", "qv_adv", "normalized_qv_adv")
    return types.UpdateRuleInputs(
        observations=None,
        actions=x["actions"],
        rewards=x["rewards"],
        is_terminal=x["is_terminal"],
        agent_out=under("agent_out", x),
        behaviour_agent_out=under("behaviour_out", x),
        extra_from_rule={**{name: x[name] for name in scalars}, "target_out": under("target_out", x)},
    )


class _Reached(Exception):
    """Carries a value out of the original's own call."""


def _stop_with(value: Any) -> Any:
    raise _Reached(value)


def _run_meta_net(x: Tensors, s: Settings, inputs: types.UpdateRuleInputs, **replaced: Any) -> Any:
    """Calls the original's meta-network with some of its module's functions replaced.

    Returns (outputs, state), or the value of a `_Reached` that a replacement raised. So the original's own code runs a
    part of the network on chosen inputs.
    """

    def call(inputs: types.UpdateRuleInputs) -> Any:
        try:
            return meta_nets.LSTM(**meta_settings(s), name="lstm")(inputs, None)
        except _Reached as reached:
            return reached.args[0]

    hidden, cell = (x.get(f"rnn/{part}", jnp.zeros(s["M"])) for part in ("hidden", "cell"))
    state = {"lstm": {"meta_rnn_state": hk.LSTMState(hidden, cell)}}
    with contextlib.ExitStack() as stack:
        for name, value in replaced.items():
            owner = meta_nets.MetaLSTM if name == "unroll" else meta_nets.hk if name == "dynamic_unroll" else meta_nets
            stack.enter_context(mock.patch.object(owner, name, value))
        return hk.transform_with_state(call).apply(nested("meta_params", x), state, None, inputs)


def _only_shapes(x: Tensors, s: Settings) -> types.UpdateRuleInputs:
    """An input of which only the sizes and the terminals matter."""
    steps, batch = x["x"].shape[:2]
    actions = x["policy_emb"].shape[2] if "policy_emb" in x else 2
    ends = x.get("is_terminal", jnp.zeros((steps, batch), bool))
    logits = {"logits": jnp.zeros((steps + 1, batch, actions))}
    return types.UpdateRuleInputs(observations=None, actions=None, rewards=None, is_terminal=ends, agent_out=logits)


def meta_inputs(x: Tensors, s: Settings) -> Tensors:
    """The meta-network up to its input vector."""
    original = meta_nets._construct_input
    tap = lambda *args, **kwargs: _stop_with(original(*args, **kwargs))  # noqa: E731
    (vector, embedding), _ = _run_meta_net(x, s, experience(x), _construct_input=tap)
    return {"x": vector, "policy_emb": embedding}


def trajectory_rnn(x: Tensors, s: Settings) -> Tensors:
    """The meta-network from its input vector to the gate."""
    inputs = lambda *args, **kwargs: (x["x"], None)  # noqa: E731
    tap = lambda x, y, initializer: _stop_with(x)  # noqa: E731
    out, _ = _run_meta_net(x, s, _only_shapes(x, s), _construct_input=inputs, _multiplicative_interaction=tap)
    return {"x": out}


def gate(x: Tensors, s: Settings) -> Tensors:
    """The gate alone."""
    original = meta_nets._multiplicative_interaction
    inputs = lambda *args, **kwargs: (x["x"], None)  # noqa: E731
    tap = lambda **kwargs: _stop_with(original(**kwargs))  # noqa: E731
    replaced = {"_construct_input": inputs, "dynamic_unroll": inputs, "_multiplicative_interaction": tap}
    out, _ = _run_meta_net(x, s, _only_shapes(x, s), **replaced)
    return {"x": out}


def meta_heads(x: Tensors, s: Settings) -> Tensors:
    """From the gate's output to the targets."""
    inputs = lambda *args, **kwargs: (x["x"], x["policy_emb"])  # noqa: E731

    def without_gate(**kwargs: Any) -> jax.Array:
        hk.Linear(1)  # takes the name that the gate's layer has, so that the heads keep theirs
        return x["x"]

    def same_state(core: Any, inputs: Any, meta_out: Any, state: Any, axis_name: Any) -> Any:
        return state

    replaced = {"_construct_input": inputs, "dynamic_unroll": inputs, "_multiplicative_interaction": without_gate}
    out, _ = _run_meta_net(x, s, _only_shapes(x, s), **replaced, unroll=same_state)
    return out


def meta_rnn(x: Tensors, s: Settings) -> Tensors:
    """The meta-RNN's step on given targets."""
    settings = meta_settings(s)
    targets = {name: x[f"meta_out/{name}"] for name in ("y", "meta_input_emb")}

    def run(inputs: types.UpdateRuleInputs) -> hk.LSTMState:
        core = meta_nets.MetaLSTM(**settings["meta_rnn_kwargs"], input_option=settings["input_option"])
        return core.unroll(inputs, targets, hk.LSTMState(x["rnn/hidden"], x["rnn/cell"]), None)

    params = {name.removeprefix("lstm/~/"): value for name, value in nested("meta_params", x).items()}
    state = apply(run, params, experience(x))
    return {"rnn/hidden": state.hidden, "rnn/cell": state.cell}


def meta_whole(x: Tensors, s: Settings) -> Tensors:
    """The whole meta-network."""
    out, state = _run_meta_net(x, s, experience(x))
    rnn = state["lstm"]["meta_rnn_state"]
    return {**out, "rnn/hidden": rnn.hidden, "rnn/cell": rnn.cell}


LAYERS = {
    "nets/mlp": mlp,
    "nets/conv_block": conv_block,
    "nets/lstm_step": lstm_step,
    "nets/unroll": unroll,
    "nets/action_model": action_model,
    "nets/agent": agent,
    "nets/agent_init": agent_init,
    "meta/inputs": meta_inputs,
    "meta/trajectory_rnn": trajectory_rnn,
    "meta/gate": gate,
    "meta/heads": meta_heads,
    "meta/rnn": meta_rnn,
    "meta/whole": meta_whole,
    "meta/init": meta_init,
}
