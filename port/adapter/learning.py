"""Optimiser, rule, actor and learner as layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from port import optimizers
from port.adapter.inputs import (
    Settings,
    Tensors,
    agent,
    agent_params,
    below,
    ema,
    experience,
    flat_ema,
    hyper_params,
    layer,
    meta_config,
    meta_params,
    net_config,
    rnn_state,
    rule_config,
    to_original,
    to_ours,
    under,
)
from port.config import MetaNetConfig
from port.networks import param_names
from port.types import LAST_STEP, AdamState, LearnerState, MetaState, Rollout, Timestep
from port.update_rules.disco import Disco


def adam_state(x: Tensors, table: Mapping[str, str]) -> AdamState:
    """The optimiser's state among the inputs."""
    return AdamState(x["opt/count"], to_ours("opt/mu", x, table), to_ours("opt/nu", x, table))


def flat_adam(state: AdamState, table: Mapping[str, str]) -> Tensors:
    """The optimiser's state as outputs."""
    moments = {**to_original("opt/mu", state.mu, table), **to_original("opt/nu", state.nu, table)}
    return {"opt/count": state.count, **moments}


def _as_given(prefix: str, x: Tensors) -> dict[str, str]:
    """A table that leaves names as they are."""
    return {name: name for name in under(prefix, x)}


@layer("optim/adam")
def _adam(x: Tensors, s: Settings) -> Tensors:
    same = _as_given("grads", x)
    updates, state = optimizers.adam_sg(under("grads", x), adam_state(x, same), s["b1"], s["b2"], s["eps"])
    return {**below("updates", updates), **flat_adam(state, same)}


@layer("optim/update")
def _update(x: Tensors, s: Settings) -> Tensors:
    same = _as_given("grads", x)
    given = (under("params", x), under("grads", x), adam_state(x, same), s["learning_rate"], s["max_abs_update"])
    params, updates, state = optimizers.update(*given)
    return {**below("params", params), **below("updates", updates), **flat_adam(state, same)}


@layer("optim/target_average")
def _target_average(x: Tensors, s: Settings) -> Tensors:
    return below("target", optimizers.target_average(under("target", x), under("online", x), s["target_params_coeff"]))


def meta_state(x: Tensors, s: Settings) -> MetaState:
    """The rule's memory among the inputs."""
    targets = agent_params(x, s, "meta_state/target_params")
    return MetaState(rnn_state("meta_state/rnn", x), ema("meta_state/adv_ema", x), ema("meta_state/td_ema", x), targets)


def flat_meta_state(state: MetaState, s: Settings) -> Tensors:
    """The rule's memory as outputs."""
    table = param_names.agent_names(net_config(s))
    return {
        **below("meta_state/rnn", state.rnn_state._asdict()),
        **flat_ema("meta_state/adv_ema", state.adv_ema),
        **flat_ema("meta_state/td_ema", state.td_ema),
        **to_original("meta_state/target_params", state.target_params, table),
    }


@layer("disco/unroll_meta_net")
def _unroll_meta_net(x: Tensors, s: Settings) -> Tensors:
    given = (meta_params(x, s), agent_params(x, s), meta_state(x, s), experience(x))
    out, state = Disco(hyper_params(s), rule_config(s), meta_config(s)).unroll_meta_net(*given)
    target_out = below("meta_out/target_out", out.pop("target_out"))
    return {**below("meta_out", out), **target_out, **flat_meta_state(state, s)}


def _loss_of(s: Settings) -> Disco:
    """The rule for its losses, which do not read the meta-network's sizes."""
    return Disco(hyper_params(s), rule_config(s), MetaNetConfig())


@layer("disco/agent_loss")
def _agent_loss(x: Tensors, s: Settings) -> Tensors:
    loss, logs = _loss_of(s).agent_loss(experience(x), under("meta_out", x), s["backprop"])
    return {"loss": loss, **below("log", logs)}


@layer("disco/agent_loss_no_meta")
def _agent_loss_no_meta(x: Tensors, s: Settings) -> Tensors:
    loss, logs = _loss_of(s).agent_loss_no_meta(experience(x), under("meta_out", x))
    return {"loss": loss, **below("log", logs)}


@layer("agent/actor_step")
def _actor_step(x: Tensors, s: Settings) -> Tensors:
    step_type = torch.where(x["is_last"], LAST_STEP, 1)
    seen = Timestep(x["observation"], step_type, x["gumbel"].new_zeros(step_type.shape))
    step = agent(s).actor_step(agent_params(x, s), seen, x["gumbel"])
    return {"actions": step.actions, "discounts": step.discounts, **step.agent_outs}


def rollout(x: Tensors) -> Rollout:
    """The rollout among the inputs."""
    fields = ("observations", "actions", "rewards", "discounts")
    return Rollout(**{name: x[f"rollout/{name}"] for name in fields}, agent_outs={"logits": x["rollout/logits"]})


@layer("agent/loss")
def _loss(x: Tensors, s: Settings) -> Tensors:
    params, meta_out, keeps_graph = agent_params(x, s), under("meta_out", x), any(y.requires_grad for y in x.values())
    grads, logs = agent(s).loss_and_grads(params, rollout(x), meta_out, is_meta_training=keeps_graph)
    total = logs.pop("total_loss")
    return {
        "total_loss": total,
        **below("log", logs),
        **to_original("grads", grads, param_names.agent_names(net_config(s))),
    }


def learner_state(x: Tensors, s: Settings) -> LearnerState:
    """The learner's state among the inputs."""
    table = param_names.agent_names(net_config(s))
    return LearnerState(agent_params(x, s), adam_state(x, table), meta_state(x, s))


def flat_learner_state(state: LearnerState, s: Settings) -> Tensors:
    """The learner's state as outputs."""
    table = param_names.agent_names(net_config(s))
    params = to_original("params", state.params, table)
    return {**params, **flat_adam(state.opt_state, table), **flat_meta_state(state.meta_state, s)}


@layer("agent/learner_step")
def _learner_step(x: Tensors, s: Settings) -> Tensors:
    state, logs = agent(s).learner_step(rollout(x), learner_state(x, s), meta_params(x, s), s["is_meta_training"])
    logs.pop("meta_out")
    return {**flat_learner_state(state, s), **below("log", logs)}


@layer("agent/learner_steps")
def _learner_steps(x: Tensors, s: Settings) -> Tensors:
    learner, state, given = agent(s), learner_state(x, s), meta_params(x, s)
    every: list[Tensors] = []
    for i in range(s["S"]):
        taken = rollout({name: value[i] for name, value in x.items() if name.startswith("rollout/")})
        state, logs = learner.learner_step(taken, state, given, s["is_meta_training"])
        logs.pop("meta_out")
        every.append(logs)
    stacked = {f"log/{name}": torch.stack([logs[name] for logs in every]) for name in every[0]}
    return {**flat_learner_state(state, s), **stacked}
