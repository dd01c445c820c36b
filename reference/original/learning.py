"""The original's optimiser, rule and agent as layers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from disco_rl import agent as agent_lib
from disco_rl import optimizers, types
from disco_rl.value_fns import value_utils
from dm_env import StepType
from dm_env import specs as dm_specs
from ml_collections import config_dict

from reference.flat_dict import Settings, Tensors, below, flattened, nested, only, under
from reference.original.elementary import ema_states, flat_emas
from reference.original.networks import action_spec, agent_network, meta_settings

T = TypeVar("T")
HYPER_PARAMS = (
    "pi_cost",
    "y_cost",
    "z_cost",
    "value_cost",
    "aux_policy_cost",
    "target_params_coeff",
    "value_fn_td_lambda",
)
# Of an agent of which only the optimiser, or the rule's averaging, is wanted.
SMALLEST: Settings = {
    **{"A": 2, "P": 2, "K": 3, "H": 2, "M": 2, "obs": (1,), "dense": (2,), "head_mlp_hiddens": (2,), "lstm_size": 2},
    **{"embedding_size": (2, 1), "policy_channels": (2,), "policy_target_channels": (2,)},
    **{"meta_policy_channels": (2,), "meta_embedding_size": (2,), "meta_pred_embedding_size": (2, 1)},
    **{"learning_rate": 1.0, "max_abs_update": 1.0},
}


def once_for_settings(build: Callable[[Settings], T]) -> Callable[[Settings], T]:
    """What `build` gives, kept: so that what is compiled of it is found again."""
    kept = functools.cache(lambda text: build(json.loads(text)))
    return lambda s: kept(json.dumps(s, sort_keys=True))


def adam_state(x: Tensors) -> optax.ScaleByAdamState:
    """Adam's state from its named parts."""
    return optax.ScaleByAdamState(count=x["opt/count"], mu=nested("opt/mu", x), nu=nested("opt/nu", x))


def flat_adam(state: optax.ScaleByAdamState) -> Tensors:
    """The inverse of `adam_state`."""
    return {"opt/count": state.count, **flattened("opt/mu", state.mu), **flattened("opt/nu", state.nu)}


def chain_state(x: Tensors, optimiser: optax.GradientTransformation) -> tuple[Any, ...]:
    """The state of an optimiser that begins with Adam; the rest of the chain has none of its own."""
    return adam_state(x), *optimiser.init(nested("params", x))[1:]


def adam(x: Tensors, s: Settings) -> Tensors:
    """Adam's direction with its denominator stopped."""
    optimiser = optimizers.scale_by_adam_sg_denom(s["b1"], s["b2"], s["eps"])
    updates, state = optimiser.update(nested("grads", x), adam_state(x))
    return {**flattened("updates", updates), **flat_adam(state)}


def update(x: Tensors, s: Settings) -> Tensors:
    """The agent's whole optimiser, taken from an agent, applied to parameters."""
    optimiser, params = agent_for(s)._optimizer, nested("params", x)
    updates, new = optimiser.update(nested("grads", x), chain_state(x, optimiser), params)
    after = optax.apply_updates(params, updates)
    return {**flattened("params", after), **flattened("updates", updates), **flat_adam(new[0])}


def target_average(x: Tensors, s: Settings) -> Tensors:
    """The rule's own averaging of target parameters; everything else it does is given empty results."""
    zeros, rule = jnp.zeros((1, 1, 1)), agent_for({}).update_rule
    rollout = types.UpdateRuleInputs(
        observations=None,
        actions=jnp.zeros((2, 1), jnp.int32),
        rewards=jnp.zeros((1, 1)),
        is_terminal=jnp.zeros((1, 1), bool),
        agent_out={"logits": jnp.zeros((2, 1, 1)), "q": None},
    )
    rest = dict.fromkeys(("rnn_state", "adv_ema_state", "td_ema_state"))
    with (
        mock.patch.object(value_utils, "get_value_outs", lambda **_: (types.ValueOuts(), None, None)),
        mock.patch.object(rule, "_eta_apply", lambda *_, **__: ({"pi": zeros, "y": zeros, "z": zeros}, None)),
    ):
        _, state = rule.unroll_meta_net(
            meta_params=None,
            params=nested("online", x),
            state=None,
            meta_state={"target_params": nested("target", x), **rest},
            rollout=rollout,
            hyper_params={"target_params_coeff": s["target_params_coeff"], "value_fn_td_lambda": 0.0},
            unroll_policy_fn=lambda *_: ({"q": None}, None),
            rng=None,
        )
    return flattened("target", state["target_params"])


def new_agent(config: config_dict.ConfigDict, s: Settings) -> agent_lib.Agent:
    """An agent of the original, on observations and actions of our settings."""
    return agent_lib.Agent(
        single_observation_spec={"observation": dm_specs.Array(tuple(s["obs"]), np.float32)},
        single_action_spec=action_spec(s),
        agent_settings=config,
        batch_axis_name=s.get("axis_name"),
    )


@once_for_settings
def _agent(s: Settings) -> agent_lib.Agent:
    config = agent_lib.get_settings_disco()
    config.hyper_params = {name: s.get(name, 0.0) for name in HYPER_PARAMS}
    config.update_rule = config_dict.ConfigDict(
        {
            "net": {"name": "lstm", **meta_settings(s)},
            "value_discount": s.get("value_discount", 0.997),
            "num_bins": s["K"],
            "max_abs_value": s.get("max_abs_value", 1.0),
            "moving_average_decay": s.get("moving_average_decay", 0.99),
            "moving_average_eps": s.get("moving_average_eps", 1e-6),
        }
    )
    config.learning_rate = s.get("learning_rate", 0.0)
    config.max_abs_update = s.get("max_abs_update", 1.0)
    config.net_settings.net_args = {
        "dense": tuple(s["dense"]),
        "model_arch_name": "lstm",
        "head_w_init_std": 1e-2,
        "model_kwargs": {"head_mlp_hiddens": tuple(s["head_mlp_hiddens"]), "lstm_size": s["lstm_size"]},
    }
    return new_agent(config, s)


def agent_for(s: Settings) -> agent_lib.Agent:
    """The original's agent for our settings; what a layer does not set is filled with the smallest sizes."""
    return _agent({**SMALLEST, **s})


def _meta_state(x: Tensors) -> dict[str, Any]:
    x = under("meta_state", x)
    rnn = {"lstm": {"meta_rnn_state": hk.LSTMState(x["rnn/hidden"], x["rnn/cell"])}}
    return {"rnn_state": rnn, **ema_states(x), "target_params": nested("target_params", x)}


def _flat_meta_state(state: dict[str, Any]) -> Tensors:
    rnn = state["rnn_state"]["lstm"]["meta_rnn_state"]
    parts = {"rnn/hidden": rnn.hidden, "rnn/cell": rnn.cell, **flat_emas(state)}
    return below("meta_state", {**parts, **flattened("target_params", state["target_params"])})


def experience(x: Tensors) -> types.UpdateRuleInputs:
    """What a rule sees, from named arrays."""
    ends = x["is_terminal"] if "is_terminal" in x else jnp.zeros(x["actions"][1:].shape, bool)
    return types.UpdateRuleInputs(
        observations=x.get("observations"),
        actions=x["actions"],
        rewards=x.get("rewards", jnp.zeros(ends.shape)),
        is_terminal=ends,
        agent_out=under("agent_out", x),
        behaviour_agent_out=under("behaviour_out", x),
    )


def unroll_meta_net(x: Tensors, s: Settings) -> Tensors:
    """The rule's targets and next meta-state."""
    agent = agent_for(s)
    out, state = agent.update_rule.unroll_meta_net(
        meta_params=nested("meta_params", x),
        params=nested("params", x),
        state={},
        meta_state=_meta_state(x),
        rollout=experience(x),
        hyper_params=agent.settings.hyper_params.to_dict(),
        unroll_policy_fn=agent_network(s).unroll,
        rng=None,
        axis_name=None,
    )
    return {**flattened("meta_out", out), **_flat_meta_state(state)}


def agent_loss(x: Tensors, s: Settings) -> Tensors:
    """The part of the loss that meta-gradients pass through."""
    rule = agent_for({**s, "K": 3}).update_rule
    loss, log = rule.agent_loss(experience(x), under("meta_out", x), s, backprop=s["backprop"])
    return {"loss": loss, **below("log", log)}


def agent_loss_no_meta(x: Tensors, s: Settings) -> Tensors:
    """The value loss."""
    loss, log = agent_for(s).update_rule.agent_loss_no_meta(experience(x), under("meta_out", x), s)
    return {"loss": loss, **below("log", log)}


def act(agent: agent_lib.Agent, x: Tensors) -> Tensors:
    """An agent's actor step, its Gumbel noise given."""
    step_type = jnp.where(x["is_last"], int(StepType.LAST), int(StepType.MID))
    timestep = types.EnvironmentTimestep(
        observation=x["observation"], step_type=step_type, reward=jnp.zeros(x["is_last"].shape)
    )

    def gumbel(key: Any, shape: Any, dtype: Any, **_: Any) -> jax.Array:
        return x["gumbel"].reshape(shape).astype(dtype)

    with mock.patch.object(jax._src.random, "gumbel", gumbel):
        step, _ = agent.actor_step(nested("params", x), jax.random.PRNGKey(0), timestep, {})
    return {"actions": step.actions, "discounts": step.discounts, **step.agent_outs}


def rollout(x: Tensors) -> types.ActorRollout:
    """What an actor records, from named arrays."""
    fields = {name: x[name] for name in ("observations", "actions", "rewards", "discounts", "logits")}
    return types.ActorRollout(**fields, agent_outs={"logits": x["logits"]}, states={})


def loss(x: Tensors, s: Settings) -> Tensors:
    """The agent's loss and its gradient, targets given."""
    gradient = jax.grad(agent_for(s)._loss, has_aux=True)
    grads, (_, _, log) = gradient(
        nested("params", x),
        agent_net_state={},
        meta_state=None,
        rollout=rollout(under("rollout", x)),
        meta_out=under("meta_out", x),
        is_meta_training=True,
    )
    total = log.pop("total_loss")
    return {"total_loss": total, **below("log", log), **flattened("grads", grads)}


def flat_learner_state(state: agent_lib.LearnerState) -> Tensors:
    """What an agent's learner carries on."""
    rest = {**flat_adam(state.opt_state[0]), **_flat_meta_state(state.meta_state)}
    return {**flattened("params", state.params), **rest}


def learner_step(x: Tensors, s: Settings, keep_meta_out: bool = False) -> Tensors:
    """One learner step; with what the rule gave under `meta_out/`, if asked to."""
    agent, params = agent_for(s), nested("params", x)
    optimiser = chain_state(x, agent._optimizer)
    before = agent_lib.LearnerState(params=params, opt_state=optimiser, meta_state=_meta_state(x))
    seen, meta_params = rollout(under("rollout", x)), nested("meta_params", x)
    after, _, log = agent.learner_step(None, seen, before, {}, meta_params, s["is_meta_training"])
    meta_out = flattened("meta_out", log.pop("meta_out"))
    return {**flat_learner_state(after), **below("log", log), **(meta_out if keep_meta_out else {})}


def learner_steps(x: Tensors, s: Settings) -> Tensors:
    """Learner steps one after the other, each on its own rollout."""
    meta_params, rollouts = only("meta_params", x), only("rollout", x)
    start = {name: value for name, value in x.items() if name not in meta_params | rollouts}

    def step(state: Tensors, seen: Tensors) -> tuple[Tensors, Tensors]:
        out = learner_step({**state, **seen, **meta_params}, s)
        return {name: out[name] for name in state}, only("log", out)

    end, logs = jax.lax.scan(step, start, rollouts)
    return {**end, **logs}


LAYERS = {
    "optim/adam": adam,
    "optim/update": update,
    "optim/target_average": target_average,
    "disco/unroll_meta_net": unroll_meta_net,
    "disco/agent_loss": agent_loss,
    "disco/agent_loss_no_meta": agent_loss_no_meta,
    "agent/actor_step": lambda x, s: act(agent_for(s), x),
    "agent/loss": loss,
    "agent/learner_step": learner_step,
    "agent/learner_steps": learner_steps,
}
