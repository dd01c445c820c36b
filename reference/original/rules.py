"""The original's actor-critic and policy-gradient rules, and an agent with the former, as layers."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import numpy as np
from disco_rl import agent as agent_lib
from disco_rl import types, utils
from disco_rl.update_rules import actor_critic, policy_gradient
from dm_env import specs as dm_specs

from reference.original import learning
from reference.original.elementary import ema_state, flat_ema
from reference.original.networks import action_spec
from reference.original.trees import flattened, nested, under

Tensors = dict[str, jax.Array]
Settings = dict[str, Any]
OPTIONS = (
    "categorical_value",
    "max_abs_value",
    "nonlinear_value_transform",
    "normalize_adv",
    "normalize_td",
    "moving_average_decay",
    "moving_average_eps",
)
HYPER_PARAMS = ("discount_factor", "vtrace_lambda", "entropy_cost", "pg_cost", "value_cost")


def policy_gradient_loss(x: Tensors, s: Settings) -> Tensors:
    """The loss behind both rules."""
    loss = utils.differentiable_policy_gradient_loss(x["logits"], x["actions"], x["advantages"], s["backprop"])
    return {"loss": loss}


def _options(s: Settings) -> dict[str, Any]:
    return {"num_bins": s["K"], **{name: s[name] for name in OPTIONS if name in s}}


def _meta_state(x: Tensors) -> dict[str, types.EmaState]:
    return {f"{name}_state": ema_state(f"meta_state/{name}", x) for name in ("adv_ema", "td_ema")}


def _flat_meta_state(state: dict[str, types.EmaState]) -> Tensors:
    adv, td = (flat_ema(f"meta_state/{name}", state[f"{name}_state"]) for name in ("adv_ema", "td_ema"))
    return {**adv, **td}


def unroll(x: Tensors, s: Settings) -> Tensors:
    """What the actor-critic rule prepares for its loss."""
    out, state = actor_critic.ActorCritic(**_options(s)).unroll_meta_net(
        meta_params=None,
        params=None,
        state=None,
        meta_state=_meta_state(x),
        rollout=learning._experience(x),
        hyper_params=s,
        unroll_policy_fn=None,
        rng=None,
    )
    return {**flattened("meta_out", out), **_flat_meta_state(state)}


def agent_loss(x: Tensors, s: Settings) -> Tensors:
    """The actor-critic loss."""
    rule = actor_critic.ActorCritic(**_options(s))
    loss, log = rule.agent_loss(learning._experience(x), under("meta_out", x), s, backprop=True)
    return {"loss": loss, **{f"log/{name}": value for name, value in log.items()}}


def pg_rule_loss(x: Tensors, s: Settings) -> Tensors:
    """The policy-gradient rule from a value function's estimates to its loss, by the rule's own call."""
    options = {name: s[name] for name in ("entropy_cost", "normalize_adv", "pg_cost")}
    seen = learning._experience(x)
    seen.value_out = types.ValueOuts(**under("value_out", x))
    loss, _, log = policy_gradient.PolicyGradientUpdate(**options)(
        meta_params=None,
        params=None,
        state=None,
        rollout=seen,
        hyper_params={},
        meta_state={},
        unroll_policy_fn=None,
        rng=None,
        axis_name=None,
    )
    return {"loss": loss, **{f"log/{name}": value for name, value in log.items()}}


@functools.cache
def _agent(settings: str) -> agent_lib.Agent:
    s = json.loads(settings)
    config = agent_lib.get_settings_actor_critic()
    config.hyper_params = {name: s[name] for name in HYPER_PARAMS}
    config.update_rule = _options(s)
    config.learning_rate, config.max_abs_update = s["learning_rate"], s["max_abs_update"]
    config.net_settings.net_args.dense = tuple(s["dense"])
    return agent_lib.Agent(
        single_observation_spec={"observation": dm_specs.Array(tuple(s["obs"]), np.float32)},
        single_action_spec=action_spec(s),
        agent_settings=config,
        batch_axis_name=None,
    )


def agent_for(s: Settings) -> agent_lib.Agent:
    """The original's agent with the actor-critic rule for our settings."""
    return _agent(json.dumps(s, sort_keys=True))


def flat_learner_state(state: agent_lib.LearnerState) -> Tensors:
    """What such an agent's learner carries on."""
    rest = {**learning._flat_adam(state.opt_state[0]), **_flat_meta_state(state.meta_state)}
    return {**flattened("params", state.params), **rest}


def actor_critic_step(x: Tensors, s: Settings) -> Tensors:
    """One learner step of an agent with the actor-critic rule."""
    agent = agent_for(s)
    params = nested("params", x)
    optimiser = (learning._adam_state(x), *agent._optimizer.init(params)[1:])
    before = agent_lib.LearnerState(params=params, opt_state=optimiser, meta_state=_meta_state(x))
    after, _, log = agent.learner_step(None, learning._rollout(x), before, {}, {}, s["is_meta_training"])
    logs = {f"log/{name}": value for name, value in log.items() if name != "meta_out"}
    return {**flat_learner_state(after), **logs}


LAYERS = {
    "ops/policy_gradient_loss": policy_gradient_loss,
    "actor_critic/unroll": unroll,
    "actor_critic/agent_loss": agent_loss,
    "policy_gradient/loss": pg_rule_loss,
    "agent/actor_critic_step": actor_critic_step,
}
