"""The original's actor-critic and policy-gradient rules, and an agent with the former, as layers."""

from __future__ import annotations

from typing import Any

from disco_rl import agent as agent_lib
from disco_rl import types, utils
from disco_rl.update_rules import actor_critic, policy_gradient

from reference.flat_dict import Settings, Tensors, below, flattened, nested, under
from reference.original.elementary import ema_states, flat_emas
from reference.original.learning import chain_state, experience, flat_adam, new_agent, once_for_settings, rollout

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
# Arguments of a rule that neither of these uses.
UNUSED = dict.fromkeys(("meta_params", "params", "state", "unroll_policy_fn", "rng"))


def policy_gradient_loss(x: Tensors, s: Settings) -> Tensors:
    """The loss behind both rules."""
    loss = utils.differentiable_policy_gradient_loss(x["logits"], x["actions"], x["advantages"], s["backprop"])
    return {"loss": loss}


def _options(s: Settings) -> dict[str, Any]:
    return {"num_bins": s["K"], **{name: s[name] for name in OPTIONS if name in s}}


def unroll(x: Tensors, s: Settings) -> Tensors:
    """What the actor-critic rule prepares for its loss."""
    out, state = actor_critic.ActorCritic(**_options(s)).unroll_meta_net(
        meta_state=ema_states(under("meta_state", x)), rollout=experience(x), hyper_params=s, **UNUSED
    )
    return {**flattened("meta_out", out), **below("meta_state", flat_emas(state))}


def agent_loss(x: Tensors, s: Settings) -> Tensors:
    """The actor-critic loss."""
    rule = actor_critic.ActorCritic(**_options(s))
    loss, log = rule.agent_loss(experience(x), under("meta_out", x), s, backprop=True)
    return {"loss": loss, **below("log", log)}


def pg_rule_loss(x: Tensors, s: Settings) -> Tensors:
    """The policy-gradient rule from a value function's estimates to its loss, by the rule's own call."""
    options = {name: s[name] for name in ("entropy_cost", "normalize_adv", "pg_cost")}
    seen = experience(x)
    seen.value_out = types.ValueOuts(**under("value_out", x))
    loss, _, log = policy_gradient.PolicyGradientUpdate(**options)(
        rollout=seen, hyper_params={}, meta_state={}, axis_name=None, **UNUSED
    )
    return {"loss": loss, **below("log", log)}


@once_for_settings
def agent_for(s: Settings) -> agent_lib.Agent:
    """The original's agent with the actor-critic rule for our settings."""
    config = agent_lib.get_settings_actor_critic()
    config.hyper_params = {name: s[name] for name in HYPER_PARAMS}
    config.update_rule = _options(s)
    config.learning_rate, config.max_abs_update = s["learning_rate"], s["max_abs_update"]
    config.net_settings.net_args.dense = tuple(s["dense"])
    return new_agent(config, s)


def flat_learner_state(state: agent_lib.LearnerState) -> Tensors:
    """What such an agent's learner carries on."""
    rest = {**flat_adam(state.opt_state[0]), **below("meta_state", flat_emas(state.meta_state))}
    return {**flattened("params", state.params), **rest}


def actor_critic_step(x: Tensors, s: Settings) -> Tensors:
    """One learner step of an agent with the actor-critic rule."""
    agent, params = agent_for(s), nested("params", x)
    optimiser, averages = chain_state(x, agent._optimizer), ema_states(under("meta_state", x))
    before = agent_lib.LearnerState(params=params, opt_state=optimiser, meta_state=averages)
    after, _, log = agent.learner_step(None, rollout(under("rollout", x)), before, {}, {}, s["is_meta_training"])
    del log["meta_out"]
    return {**flat_learner_state(after), **below("log", log)}


LAYERS = {
    "ops/policy_gradient_loss": policy_gradient_loss,
    "actor_critic/unroll": unroll,
    "actor_critic/agent_loss": agent_loss,
    "policy_gradient/loss": pg_rule_loss,
    "agent/actor_critic_step": actor_critic_step,
}
