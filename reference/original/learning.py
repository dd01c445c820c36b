"""The original's optimiser, rule and agent as layers."""

from __future__ import annotations

import functools
import json
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from disco_rl import agent as agent_lib
from disco_rl import optimizers, types
from disco_rl.update_rules import disco
from disco_rl.value_fns import value_utils
from dm_env import StepType
from dm_env import specs as dm_specs
from ml_collections import config_dict

from reference.original.elementary import ema_state, flat_ema
from reference.original.networks import action_spec, agent_network, meta_settings
from reference.original.trees import flattened, nested, under

Tensors = dict[str, jax.Array]
Settings = dict[str, Any]
HYPER_PARAMS = (
    "pi_cost",
    "y_cost",
    "z_cost",
    "value_cost",
    "aux_policy_cost",
    "target_params_coeff",
    "value_fn_td_lambda",
)


def _adam_state(x: Tensors) -> optax.ScaleByAdamState:
    return optax.ScaleByAdamState(count=x["opt/count"], mu=nested("opt/mu", x), nu=nested("opt/nu", x))


def _flat_adam(state: optax.ScaleByAdamState) -> Tensors:
    return {"opt/count": state.count, **flattened("opt/mu", state.mu), **flattened("opt/nu", state.nu)}


def adam(x: Tensors, s: Settings) -> Tensors:
    """Adam's direction with its denominator stopped."""
    optimiser = optimizers.scale_by_adam_sg_denom(s["b1"], s["b2"], s["eps"])
    updates, state = optimiser.update(nested("grads", x), _adam_state(x))
    return {**flattened("updates", updates), **_flat_adam(state)}


def update(x: Tensors, s: Settings) -> Tensors:
    """The agent's whole optimiser, taken from an agent, applied to parameters."""
    optimiser = _agent(json.dumps(_smallest_agent(s), sort_keys=True))._optimizer
    params = nested("params", x)
    state = (_adam_state(x), *optimiser.init(params)[1:])
    updates, new = optimiser.update(nested("grads", x), state, params)
    return {
        **flattened("params", optax.apply_updates(params, updates)),
        **flattened("updates", updates),
        **_flat_adam(new[0]),
    }


def target_average(x: Tensors, s: Settings) -> Tensors:
    """The rule's own averaging of target parameters; everything else it does is given empty results."""
    zeros = jnp.zeros((1, 1, 1))
    rule = _rule(json.dumps(_smallest_agent({}), sort_keys=True))
    rollout = types.UpdateRuleInputs(
        observations=None,
        actions=jnp.zeros((2, 1), jnp.int32),
        rewards=jnp.zeros((1, 1)),
        is_terminal=jnp.zeros((1, 1), bool),
        agent_out={"logits": jnp.zeros((2, 1, 1)), "q": None},
    )
    with (
        mock.patch.object(value_utils, "get_value_outs", lambda **_: (types.ValueOuts(), None, None)),
        mock.patch.object(rule, "_eta_apply", lambda *_, **__: ({"pi": zeros, "y": zeros, "z": zeros}, None)),
    ):
        _, state = rule.unroll_meta_net(
            meta_params=None,
            params=nested("online", x),
            state=None,
            meta_state={
                "target_params": nested("target", x),
                "rnn_state": None,
                "adv_ema_state": None,
                "td_ema_state": None,
            },
            rollout=rollout,
            hyper_params={"target_params_coeff": s["target_params_coeff"], "value_fn_td_lambda": 0.0},
            unroll_policy_fn=lambda *_: ({"q": None}, None),
            rng=None,
        )
    return flattened("target", state["target_params"])


def _smallest_agent(s: Settings) -> Settings:
    """Settings of an agent of which only the optimiser or the rule's averaging is wanted."""
    sizes = {"A": 2, "P": 2, "K": 3, "H": 2, "M": 2, "obs": (1,), "dense": (2,), "head_mlp_hiddens": (2,)}
    nets = {"lstm_size": 2, "embedding_size": (2, 1), "policy_channels": (2,), "policy_target_channels": (2,)}
    metas = {"meta_policy_channels": (2,), "meta_embedding_size": (2,), "meta_pred_embedding_size": (2, 1)}
    return {**sizes, **nets, **metas, "learning_rate": 1.0, "max_abs_update": 1.0, **s}


def _rule_arguments(s: Settings) -> dict[str, Any]:
    return {
        "net": config_dict.ConfigDict({"name": "lstm", **meta_settings(s)}),
        "value_discount": s.get("value_discount", 0.997),
        "num_bins": s["K"],
        "max_abs_value": s.get("max_abs_value", 1.0),
        "moving_average_decay": s.get("moving_average_decay", 0.99),
        "moving_average_eps": s.get("moving_average_eps", 1e-6),
    }


@functools.cache
def _rule(settings: str) -> disco.DiscoUpdateRule:
    return disco.DiscoUpdateRule(**_rule_arguments(json.loads(settings)))


@functools.cache
def _agent(settings: str) -> agent_lib.Agent:
    s = json.loads(settings)
    config = agent_lib.get_settings_disco()
    config.hyper_params = {name: s.get(name, 0.0) for name in HYPER_PARAMS}
    config.update_rule = config_dict.ConfigDict(_rule_arguments(s))
    config.learning_rate = s.get("learning_rate", 0.0)
    config.max_abs_update = s.get("max_abs_update", 1.0)
    config.net_settings.net_args = {
        "dense": tuple(s["dense"]),
        "model_arch_name": "lstm",
        "head_w_init_std": 1e-2,
        "model_kwargs": {"head_mlp_hiddens": tuple(s["head_mlp_hiddens"]), "lstm_size": s["lstm_size"]},
    }
    return agent_lib.Agent(
        single_observation_spec={"observation": dm_specs.Array(tuple(s["obs"]), np.float32)},
        single_action_spec=action_spec(s),
        agent_settings=config,
        batch_axis_name=s.get("axis_name"),
    )


def agent_for(s: Settings) -> agent_lib.Agent:
    """The original's agent for our settings; what a layer does not set is filled with the smallest sizes."""
    return _agent(json.dumps(_smallest_agent(s), sort_keys=True))


def _meta_state(x: Tensors) -> dict[str, Any]:
    import haiku as hk

    rnn = hk.LSTMState(x["meta_state/rnn/hidden"], x["meta_state/rnn/cell"])
    return {
        "rnn_state": {"lstm": {"meta_rnn_state": rnn}},
        "adv_ema_state": ema_state("meta_state/adv_ema", x),
        "td_ema_state": ema_state("meta_state/td_ema", x),
        "target_params": nested("meta_state/target_params", x),
    }


def _flat_meta_state(state: dict[str, Any]) -> Tensors:
    rnn = state["rnn_state"]["lstm"]["meta_rnn_state"]
    return {
        "meta_state/rnn/hidden": rnn.hidden,
        "meta_state/rnn/cell": rnn.cell,
        **flat_ema("meta_state/adv_ema", state["adv_ema_state"]),
        **flat_ema("meta_state/td_ema", state["td_ema_state"]),
        **flattened("meta_state/target_params", state["target_params"]),
    }


def _experience(x: Tensors) -> types.UpdateRuleInputs:
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
        rollout=_experience(x),
        hyper_params=agent.settings.hyper_params.to_dict(),
        unroll_policy_fn=agent_network(s).unroll,
        rng=None,
        axis_name=None,
    )
    return {**flattened("meta_out", out), **_flat_meta_state(state)}


def agent_loss(x: Tensors, s: Settings) -> Tensors:
    """The part of the loss that meta-gradients pass through."""
    rule = agent_for({**s, "K": 3}).update_rule
    loss, log = rule.agent_loss(_experience(x), under("meta_out", x), s, backprop=s["backprop"])
    return {"loss": loss, **{f"log/{name}": value for name, value in log.items()}}


def agent_loss_no_meta(x: Tensors, s: Settings) -> Tensors:
    """The value loss."""
    rule = agent_for(s).update_rule
    loss, log = rule.agent_loss_no_meta(_experience(x), under("meta_out", x), s)
    return {"loss": loss, **{f"log/{name}": value for name, value in log.items()}}


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


def actor_step(x: Tensors, s: Settings) -> Tensors:
    """The actor's step."""
    return act(agent_for(s), x)


def _rollout(x: Tensors) -> types.ActorRollout:
    return types.ActorRollout(
        observations=x["rollout/observations"],
        actions=x["rollout/actions"],
        rewards=x["rollout/rewards"],
        discounts=x["rollout/discounts"],
        agent_outs={"logits": x["rollout/logits"]},
        states={},
        logits=x["rollout/logits"],
    )


def loss(x: Tensors, s: Settings) -> Tensors:
    """The agent's loss and its gradient, targets given."""
    gradient = jax.grad(agent_for(s)._loss, has_aux=True)
    grads, (_, _, log) = gradient(
        nested("params", x),
        agent_net_state={},
        meta_state=None,
        rollout=_rollout(x),
        meta_out=under("meta_out", x),
        is_meta_training=True,
    )
    logs = {f"log/{name}": value for name, value in log.items() if name != "total_loss"}
    return {"total_loss": log["total_loss"], **logs, **flattened("grads", grads)}


def _learner_state(x: Tensors, agent: agent_lib.Agent) -> agent_lib.LearnerState:
    params = nested("params", x)
    rest = agent._optimizer.init(params)[1:]
    return agent_lib.LearnerState(params=params, opt_state=(_adam_state(x), *rest), meta_state=_meta_state(x))


def _flat_learner_state(state: agent_lib.LearnerState) -> Tensors:
    return {
        **flattened("params", state.params),
        **_flat_adam(state.opt_state[0]),
        **_flat_meta_state(state.meta_state),
    }


def learner_step(x: Tensors, s: Settings, keep_meta_out: bool = False) -> Tensors:
    """One learner step; with what the rule said under `meta_out/`, if asked to."""
    agent = agent_for(s)
    state, _, log = agent.learner_step(
        None, _rollout(x), _learner_state(x, agent), {}, nested("meta_params", x), s["is_meta_training"]
    )
    meta_out = log.pop("meta_out")
    said = flattened("meta_out", meta_out) if keep_meta_out else {}
    return {**_flat_learner_state(state), **{f"log/{name}": value for name, value in log.items()}, **said}


def learner_steps(x: Tensors, s: Settings) -> Tensors:
    """Learner steps one after the other, each on its own rollout."""
    meta_params = {name: value for name, value in x.items() if name.startswith("meta_params/")}
    rollouts = {name: value for name, value in x.items() if name.startswith("rollout/")}
    start = {name: value for name, value in x.items() if name not in meta_params and name not in rollouts}

    def step(state: Tensors, rollout: Tensors) -> tuple[Tensors, Tensors]:
        out = learner_step({**state, **rollout, **meta_params}, s)
        logs = {name: value for name, value in out.items() if name.startswith("log/")}
        return {name: out[name] for name in state}, logs

    end, logs = jax.lax.scan(step, start, rollouts)
    return {**end, **logs}


LAYERS = {
    "optim/adam": adam,
    "optim/update": update,
    "optim/target_average": target_average,
    "disco/unroll_meta_net": unroll_meta_net,
    "disco/agent_loss": agent_loss,
    "disco/agent_loss_no_meta": agent_loss_no_meta,
    "agent/actor_step": actor_step,
    "agent/loss": loss,
    "agent/learner_step": learner_step,
    "agent/learner_steps": learner_steps,
}
