"""The rules without a meta-network, and an agent with one of them, as layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from port import ops
from port.adapter.inputs import Settings, Tensors, below, ema, experience, flat_ema, layer, to_original, to_ours, under
from port.adapter.learning import adam_state, flat_adam, rollout
from port.agent import Agent
from port.config import ActorCriticConfig, ActorCriticHyperParams, AgentConfig, AgentNetConfig, PolicyGradientConfig
from port.networks import param_names
from port.types import ActorCriticState, LearnerState, ValueOuts
from port.update_rules import base
from port.update_rules.actor_critic import ActorCritic
from port.update_rules.policy_gradient import PolicyGradient


@layer("ops/policy_gradient_loss")
def _policy_gradient_loss(x: Tensors, s: Settings) -> Tensors:
    return {"loss": ops.policy_gradient_loss(x["logits"], x["actions"], x["advantages"], s["backprop"])}


def _fields(kind: Any, s: Settings) -> dict[str, Any]:
    return {name: s[name] for name in kind.__dataclass_fields__ if name in s}


def _rule(s: Settings) -> ActorCritic:
    config = ActorCriticConfig(num_bins=s["K"], **_fields(ActorCriticConfig, s))
    return ActorCritic(ActorCriticHyperParams(**_fields(ActorCriticHyperParams, s)), config)


def _state(x: Tensors) -> ActorCriticState:
    return ActorCriticState(ema("meta_state/adv_ema", x), ema("meta_state/td_ema", x))


def _flat_state(state: ActorCriticState) -> Tensors:
    return {**flat_ema("meta_state/adv_ema", state.adv_ema), **flat_ema("meta_state/td_ema", state.td_ema)}


@layer("actor_critic/unroll")
def _unroll(x: Tensors, s: Settings) -> Tensors:
    out, state = _rule(s).unroll_meta_net({}, {}, _state(x), experience(x))
    return {**below("meta_out", out), **_flat_state(state)}


@layer("actor_critic/agent_loss")
def _agent_loss(x: Tensors, s: Settings) -> Tensors:
    loss, logs = _rule(s).agent_loss(experience(x), under("meta_out", x), backprop=True)
    return {"loss": loss, **below("log", logs)}


@layer("policy_gradient/loss")
def _loss(x: Tensors, s: Settings) -> Tensors:
    rule = PolicyGradient(PolicyGradientConfig(**_fields(PolicyGradientConfig, s)))
    inputs = replace(experience(x), value_out=ValueOuts.of(**under("value_out", x)))
    loss, _, logs = base.apply(rule, None, {}, None, inputs)
    return {"loss": loss, **below("log", logs)}


def actor_critic_agent(s: Settings) -> Agent:
    """An agent with the actor-critic rule for the harness's settings."""
    rule, net = _rule(s), AgentNetConfig(dense=tuple(s["dense"]))
    config = AgentConfig(s["learning_rate"], s["max_abs_update"], rule.hyper, rule.rule, net=net)
    return Agent(config, obs_spec=tuple(s["obs"]), num_actions=s["A"])


def _names(agent: Agent) -> dict[str, str]:
    return param_names.agent_names(agent.config.net, agent.rule.heads(agent.num_actions))


def actor_critic_state(x: Tensors, s: Settings) -> LearnerState:
    """The learner's state among the inputs."""
    table = _names(actor_critic_agent(s))
    return LearnerState(to_ours("params", x, table), adam_state(x, table), _state(x))


def flat_actor_critic_state(state: LearnerState, s: Settings) -> Tensors:
    """The learner's state as outputs."""
    table = _names(actor_critic_agent(s))
    params = to_original("params", state.params, table)
    return {**params, **flat_adam(state.opt_state, table), **_flat_state(state.meta_state)}


@layer("agent/actor_critic_step")
def _actor_critic_step(x: Tensors, s: Settings) -> Tensors:
    before, training = actor_critic_state(x, s), s["is_meta_training"]
    after, logs = actor_critic_agent(s).learner_step(rollout(x), before, is_meta_training=training)
    logs.pop("meta_out")
    return {**flat_actor_critic_state(after, s), **below("log", logs)}
