"""Optimiser, rules, actor and learner as layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from port import optimizers
from port.adapter.inputs import (
    Settings,
    Tensors,
    agent,
    by_our_names,
    config_of,
    disco,
    experience,
    layer,
    registered,
    rollout,
    rollouts,
)
from port.config import ActorCriticConfig, ActorCriticHyperParams, PolicyGradientConfig
from port.types import (
    LAST_STEP,
    ActorCriticState,
    AdamState,
    EmaState,
    LearnerState,
    LstmState,
    MetaState,
    Timestep,
    ValueOuts,
)
from port.update_rules import base
from port.update_rules.actor_critic import ActorCritic
from port.update_rules.policy_gradient import PolicyGradient


@layer("optim/adam")
def _adam(x: Tensors, s: Settings) -> dict[str, Any]:
    before = x.record(AdamState, "opt_state")
    updates, state = optimizers.adam_sg(x.under("grads"), before, s["b1"], s["b2"], s["eps"])
    return {"updates": updates, "opt_state": state}


@layer("optim/update")
def _update(x: Tensors, s: Settings) -> dict[str, Any]:
    before, speeds = x.record(AdamState, "opt_state"), (s["learning_rate"], s["max_abs_update"])
    params, updates, state = optimizers.update(x.under("params"), x.under("grads"), before, *speeds)
    return {"params": params, "updates": updates, "opt_state": state}


@layer("optim/target_average")
def _target_average(x: Tensors, s: Settings) -> dict[str, Any]:
    coeff = s["target_params_coeff"]
    return {"target": optimizers.target_average(x.under("target"), x.under("online"), coeff)}


def rule_state(x: Tensors) -> Any:
    """What either rule remembers, among the inputs."""
    if "meta_state/rnn_state/hidden" in x:
        return x.record(MetaState, "meta_state", rnn_state=LstmState, adv_ema=EmaState, td_ema=EmaState)
    return x.record(ActorCriticState, "meta_state", adv_ema=EmaState, td_ema=EmaState)


@layer("disco/unroll_meta_net")
def _unroll_meta_net(x: Tensors, s: Settings) -> dict[str, Any]:
    params = x.under("meta_params"), x.under("params")
    out, state = disco(s).unroll_meta_net(*params, rule_state(x), experience(x))
    return {"meta_out": out, "meta_state": state}


@layer("disco/agent_loss")
def _disco_loss(x: Tensors, s: Settings) -> dict[str, Any]:
    loss, logs = disco(s).agent_loss(experience(x), x.under("meta_out"), s["backprop"])
    return {"loss": loss, "log": logs}


@layer("disco/agent_loss_no_meta")
def _disco_loss_no_meta(x: Tensors, s: Settings) -> dict[str, Any]:
    loss, logs = disco(s).agent_loss_no_meta(experience(x), x.under("meta_out"))
    return {"loss": loss, "log": logs}


def _actor_critic(s: Settings) -> ActorCritic:
    return ActorCritic(config_of(ActorCriticHyperParams, s), config_of(ActorCriticConfig, s))


@layer("actor_critic/unroll")
def _actor_critic_unroll(x: Tensors, s: Settings) -> dict[str, Any]:
    out, state = _actor_critic(s).unroll_meta_net({}, {}, rule_state(x), experience(x))
    return {"meta_out": out, "meta_state": state}


@layer("actor_critic/agent_loss")
def _actor_critic_loss(x: Tensors, s: Settings) -> dict[str, Any]:
    loss, logs = _actor_critic(s).agent_loss(experience(x), x.under("meta_out"), backprop=True)
    return {"loss": loss, "log": logs}


@layer("policy_gradient/loss")
def _policy_gradient_loss(x: Tensors, s: Settings) -> dict[str, Any]:
    rule = PolicyGradient(config_of(PolicyGradientConfig, s))
    inputs = experience(x, value_out=ValueOuts.of(**x.under("value_out")))
    loss, _, logs = base.apply(rule, None, {}, None, inputs)
    return {"loss": loss, "log": logs}


@layer("agent/actor_step")
def _actor_step(x: Tensors, s: Settings) -> dict[str, Any]:
    step_type = torch.where(x.is_last, LAST_STEP, 1)
    timestep = Timestep(x.observation, step_type, x.gumbel.new_zeros(step_type.shape))
    step = agent(s).actor_step(x.under("params"), timestep, x.gumbel)
    return {"actions": step.actions, "discounts": step.discounts, **step.agent_outs}


@layer("agent/loss")
def _loss(x: Tensors, s: Settings) -> dict[str, Any]:
    keeps_graph = any(value.requires_grad for value in x.values())
    grads, logs = agent(s).loss_and_grads(x.under("params"), rollout(x), x.under("meta_out"), keeps_graph)
    return {"total_loss": logs.pop("total_loss"), "log": logs, "grads": grads}


def learner_state_inside(x: Tensors) -> LearnerState:
    """The state of a learner, by either rule, among the inputs of a layer."""
    return x.record(LearnerState, opt_state=AdamState, meta_state=rule_state(x))


def learner_state(x: Mapping[str, Tensor], s: Settings) -> LearnerState:
    """The state of a learner from tensors by the registry's names."""
    return learner_state_inside(by_our_names(x, s))


def flat_learner_state(state: LearnerState, s: Settings) -> dict[str, Tensor]:
    """The inverse of `learner_state`."""
    layer_of_rule = "agent/learner_step" if isinstance(state.meta_state, MetaState) else "agent/actor_critic_step"
    return registered.outside(layer_of_rule, state, s)


@layer("agent/learner_step", "agent/actor_critic_step")
def _learner_step(x: Tensors, s: Settings) -> dict[str, Any]:
    state = learner_state_inside(x)
    state, logs = agent(s).learner_step(rollout(x), state, x.under("meta_params"), s["is_meta_training"])
    logs.pop("meta_out")
    return {**state._asdict(), "log": logs}


@layer("agent/learner_steps")
def _learner_steps(x: Tensors, s: Settings) -> dict[str, Any]:
    learner, state, meta_params = agent(s), learner_state_inside(x), x.under("meta_params")
    every: list[dict[str, Any]] = []
    for taken in rollouts(x, "rollout", s["S"]):
        state, logs = learner.learner_step(taken, state, meta_params, s["is_meta_training"])
        logs.pop("meta_out")
        every.append(logs)
    stacked = {name: torch.stack([logs[name] for logs in every]) for name in every[0]}
    return {**state._asdict(), "log": stacked}
