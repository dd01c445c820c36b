"""Meta-gradients: how the meta-parameters should change so that agents that learn by them act better afterwards.

An agent takes N inner updates, each from its own rollout and each under the rule whose parameters are differentiated.
The agent that comes out is judged on a validation rollout by a policy gradient, with advantages from the value function
that learned beside it, and a few regularisers keep the rule's targets and the agent's predictions spread out.

A word on float32. At an agent's first update Adam divides each gradient by its own size, so that every entry of the
direction is +-1 up to its epsilon: 0.99999... in exact arithmetic, just inside the clip bound of 1, where the clip
passes the whole derivative. In float32 that number rounds onto the bound, or past it, if Adam's bias corrections are
taken in double precision or in Python's numbers; frameworks then pass 0, half or all of the derivative, and the
meta-gradient of a fresh agent is wrong although the update itself is right to 7e-6. The original takes the corrections
in float32, where 1 - 0.999 is 5e-5 too large: its direction is 0.999993, inside the bound. So does the port
(`optim.adam_sg`), and a fresh agent's meta-gradient is as accurate in float32 as the original's. Who changes Adam
here should look at that first.

In float64 too a fresh agent is the hard case: where a gradient is as small as Adam's epsilon of 1e-8, the direction's
derivative is up to 1e8, and with it the last digits of the gradient count. At the size of Disco103 the original's own
meta-gradient then changes by 2e-9 to 2e-7 of a tensor's scale when its inputs change by a unit in the last place. Two
right implementations differ by as much there. `python -m reports.meta_gradients` measures it, early and late.

Gradients are taken by `torch.autograd.grad`, inner ones with `create_graph`. Measured in turns in one process, the same
pure functions under `torch.func` (`grad` outside; `vjp` and `grad` inside, since inner leaves cannot be made under a
transform) give the same bits, in float64 and float32, but take 1.4 times the CPU time at `--small` sizes and 1.1 times
at the notebook's, where one agent's meta-gradient takes 650 instead of 470 MB above what the process had before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from port import distributed, ops, optimizers, trees
from port.agent import Agent
from port.config import check_numbers
from port.distributed import Averaging
from port.networks import agent_net, nets
from port.rollout_checks import check_policy, check_rollout
from port.types import AdamState, LearnerState, Logs, Outputs, Params, Rollout
from port.update_rules.disco import Disco
from port.value_fns import value_fn
from port.value_fns.value_fn import ValueFnConfig, ValueState


@dataclass(frozen=True)
class OuterLossConfig:
    """Weights of the outer loss's regularisers; the defaults are those of the original's `meta_train` notebook."""

    entropy_cost: float = 1e-2  # of the policy on the validation rollout
    prediction_entropy_cost: float = 1e-3  # of the predictions y and z there
    target_mean_cost: float = 1e-3  # squared mean of each of the rule's targets pi, y and z
    target_kl_cost: float = 1e-2  # from the target network's policy to the rule's policy target

    def __post_init__(self) -> None:
        check_numbers(self, "entropy_cost", "prediction_entropy_cost", "target_mean_cost", "target_kl_cost")


class LearningState(NamedTuple):
    """What one agent of the population carries from one meta-update to the next."""

    learner: LearnerState
    value: ValueState


@dataclass(frozen=True)
class InnerProblem:
    """An agent that learns by a rule, and what it is judged on afterwards.

    Attributes:
        agent: the agent.
        value_config: of the value function beside it.
        outer: weights of the regularisers.
        meta_params: of the rule.
        state: of the agent and its value function, before the inner updates.
        train_rollouts: N of them, T+1 steps each, one for each inner update.
        valid_rollout: of the agent before the inner updates, on which the one after them is judged.

    Raises:
        ValueError or KeyError: a rollout or a parameter is missing or does not fit.
    """

    agent: Agent
    value_config: ValueFnConfig
    outer: OuterLossConfig
    meta_params: Params
    state: LearningState
    train_rollouts: Sequence[Rollout]
    valid_rollout: Rollout

    def __post_init__(self) -> None:
        if not isinstance(self.agent.rule, Disco):
            raise ValueError(f"{type(self.agent.rule).__name__} has no meta-parameters, so there is no meta-gradient.")
        self.agent.rule.check_meta_params(self.meta_params)
        if not self.train_rollouts:
            raise ValueError("A meta-gradient needs at least one inner update; give a rollout for each.")
        for rollout in (*self.train_rollouts, self.valid_rollout):
            check_rollout(rollout)
            check_policy(rollout, self.agent.num_actions)

    def with_leaves(self) -> InnerProblem:
        """The same with meta-parameters to take gradients for."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.meta_params.items()}
        return replace(self, meta_params=leaves)


class OuterLoss(NamedTuple):
    """The loss that the meta-parameters are judged by, and what came out on the way."""

    loss: Tensor
    state: LearningState
    metrics: Logs  # of the inner updates, scalars [N] each
    meta_log: Logs  # of the outer loss, scalars


class MetaGradient(NamedTuple):
    """What one agent contributes to a meta-update."""

    grads: Params
    state: LearningState
    metrics: Logs  # of the inner updates, scalars [N] each
    meta_log: Logs  # of the outer loss, scalars


def validation_outputs(params: Params, rollout: Rollout) -> Outputs:
    """The outputs that the outer loss reads, for all T+1 steps: logits [T+1, B, A], y [T+1, B, P], z [T+1, B, A, P].

    Reference: disco_rl/agent.py::Agent.actor_step
    """
    embedding, lead = agent_net.embed(params, rollout.observations, 2)
    out = {head: nets.linear(params, f"heads/{head}", embedding) for head in ("logits", "y")}
    transition = agent_net.model_transition(params, agent_net.root_state(params, embedding))
    out["z"] = nets.mlp(params, "model/z", transition)
    return {head: x.view(*lead, *x.shape[1:]) for head, x in out.items()}


def target_regulariser(meta_out: dict[str, Any], config: OuterLossConfig) -> Tensor:
    """What one inner update costs: the means of the rule's targets, and their distance from the target network.

    Args:
        meta_out: targets pi [T, B, A], y and z [T, B, P], and the target network's logits [T+1, B, A].
        config: the weights.

    Returns:
        A scalar; the outer loss takes its mean over the inner updates.
    """
    means = sum(meta_out[name].mean().square() for name in ("pi", "y", "z"))
    logits = meta_out["target_out"]["logits"][:-1].detach()
    kl = ops.categorical_kl(logits, meta_out["pi"]).mean()
    return config.target_mean_cost * means + config.target_kl_cost * kl


def inner_step(problem: InnerProblem, state: LearningState, rollout: Rollout) -> tuple[LearningState, Tensor, Logs]:
    """One update of agent and value function, with the agent's graph kept.

    The value function sees the agent by importance weights only, which carry no gradient: its part of the state is the
    same constant for every meta-parameter, and is updated without a graph.

    Args:
        problem: whose agent learns.
        state: before the update.
        rollout: T+1 steps.

    Returns:
        The state after it, the regulariser of the rule's targets, and the learner's logs without a graph.
    """
    agent = problem.agent
    learner, logs = agent.learner_step(rollout, state.learner, problem.meta_params, is_meta_training=True)
    with torch.no_grad():
        logits = agent_net.policy_logits(state.learner.params, rollout.observations, lead=2)
    value, _, _ = value_fn.update(state.value, rollout, logits, problem.value_config, averaging=agent.averaging)
    regulariser = target_regulariser(logs.pop("meta_out"), problem.outer)
    return LearningState(learner, value), regulariser, {name: x.detach() for name, x in logs.items()}


def validation_loss(problem: InnerProblem, state: LearningState) -> tuple[Tensor, Tensor, Logs]:
    """How well the agent does on the validation rollout in a state after the inner updates.

    Returns:
        The policy-gradient loss and the regulariser, scalars, and logs.
    """
    rollout, outer, averaging = problem.valid_rollout, problem.outer, problem.agent.averaging
    out = validation_outputs(state.learner.params, rollout)
    actions = rollout.actions[:-1]
    logits = out["logits"][:-1]
    with torch.no_grad():
        outs, _, _, _ = value_fn.estimates(state.value, rollout, out["logits"], problem.value_config, averaging)
    pg_loss = ops.policy_gradient_loss(logits, actions, outs.normalized_adv).mean()
    entropy = ops.categorical_entropy(logits).mean()
    y_entropy = ops.categorical_entropy(out["y"]).mean()
    z_entropy = ops.categorical_entropy(ops.batch_lookup(out["z"][:-1], actions)).mean()
    regulariser = -outer.entropy_cost * entropy - outer.prediction_entropy_cost * (y_entropy + z_entropy)
    logs = {
        "adv": ops.mean(outs.adv),
        "normalized_adv": ops.mean(outs.normalized_adv),
        "entropy": entropy.detach(),
        "value": ops.mean(outs.value),
        "val_importance_weight": ops.mean(outs.rho.clamp(max=1.0)),
    }
    return pg_loss, regulariser, logs


def outer_loss(problem: InnerProblem) -> OuterLoss:
    """The outer loss of one agent, through all inner updates; it can be differentiated for the meta-parameters.

    Returns:
        The loss with its graph, the state after the inner updates with its graph, and logs without.

    Notebook: colabs/meta_train.ipynb::calculate_meta_gradient
    """
    state, regularisers, metrics = problem.state, [], []
    for rollout in problem.train_rollouts:
        state, regulariser, logs = inner_step(problem, state, rollout)
        regularisers.append(regulariser)
        metrics.append(logs)
    pg_loss, reg_loss, meta_log = validation_loss(problem, state)
    return combine(pg_loss, reg_loss, regularisers, state, metrics, meta_log)


def combine(
    pg_loss: Tensor, reg_loss: Tensor, regularisers: list[Tensor], state: LearningState, metrics: list[Logs], logs: Logs
) -> OuterLoss:
    """The outer loss from its parts.

    Args:
        pg_loss: on the validation rollout.
        reg_loss: there.
        regularisers: of each inner update.
        state: after the inner updates.
        metrics: logs of each inner update.
        logs: of the validation.
    """
    reg_loss = reg_loss + torch.stack(regularisers).mean()
    meta_loss = pg_loss + reg_loss
    losses = {"meta_loss": meta_loss.detach(), "pg_loss": pg_loss.detach(), "reg_loss": reg_loss.detach()}
    stacked = {name: torch.stack([each[name] for each in metrics]) for name in metrics[0]}
    return OuterLoss(meta_loss, state, stacked, logs | losses)


def meta_gradient(problem: InnerProblem) -> MetaGradient:
    """Gradient of the outer loss of one agent for every meta-parameter.

    Returns:
        The gradient, the state after the inner updates (without a graph), and logs; gradient and logs averaged over
        ranks, where there are several.

    Notebook: colabs/meta_train.ipynb::calculate_meta_gradient
    """
    tracked = problem.with_leaves()
    with torch.enable_grad():
        result = outer_loss(tracked)
        grads = gradients(result.loss, tracked.meta_params)
    found = MetaGradient(grads, trees.detached(result.state), result.metrics, result.meta_log)
    return over_ranks(problem.agent.averaging, found)


def gradients(loss: Tensor, params: Params) -> Params:
    """Gradient of a loss by parameter, zero where it does not depend on one."""
    grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(params, grads, strict=True))


def over_ranks(averaging: Averaging | None, found: MetaGradient) -> MetaGradient:
    """Means over ranks of an agent's meta-gradient and logs; the states are the same on every rank as they are.

    Notebook: colabs/meta_train.ipynb::calculate_meta_gradient
    """
    if averaging is None:
        return found
    parts = {"grads": found.grads, "metrics": found.metrics, "meta_log": found.meta_log}
    means = trees.unflatten(parts, distributed.averaged_params(averaging, trees.flatten(parts)))
    return MetaGradient(means["grads"], found.state, means["metrics"], means["meta_log"])


def meta_gradient_along(direction: Params, problem: InnerProblem) -> Params:
    """How the meta-gradient changes along a direction of the meta-parameters, where stopped gradients stop this too.

    Forward mode over the backward pass, so that it costs a few meta-gradients, whatever the number of parameters. What
    is held constant for gradients (targets' logits and values, Adam's denominator) is held constant here as well, as in
    the original: finite differences of the meta-gradient, which move it, give other numbers. It is of the outer loss of
    this process alone, not averaged over ranks.

    Args:
        direction: a tangent of each meta-parameter.
        problem: of the meta-gradient.

    Returns:
        The derivative of every meta-parameter's gradient.
    """
    params = problem.meta_params
    if direction.keys() != params.keys():
        odd = sorted(direction.keys() ^ params.keys())
        raise KeyError(f"Direction and meta-parameters do not have the same names: {', '.join(odd)}.")
    with torch.enable_grad(), forward_ad.dual_level():
        tracked = problem.with_leaves().meta_params
        dual = {name: forward_ad.make_dual(p, direction[name]) for name, p in tracked.items()}
        grads = gradients(outer_loss(replace(problem, meta_params=dual)).loss, tracked)
        tangents = {name: forward_ad.unpack_dual(grad).tangent for name, grad in grads.items()}
    return {name: torch.zeros_like(params[name]) if t is None else t.detach() for name, t in tangents.items()}


def meta_update(
    meta_params: Params,
    opt_state: AdamState,
    grads: Sequence[Params],
    learning_rate: float,
    max_grad_norm: float | None = None,
) -> tuple[Params, AdamState, Logs]:
    """A step of Adam on the meta-parameters, along the mean of the agents' meta-gradients.

    Args:
        meta_params: of the rule.
        opt_state: of Adam.
        grads: of each agent of the population.
        learning_rate: of Adam.
        max_grad_norm: the mean is shortened to this norm where it is longer; the original never does.

    Returns:
        The new meta-parameters, the new state of Adam, and the norms of gradient and update.

    Notebook: colabs/meta_train.ipynb::meta_update
    """
    if not grads:
        raise ValueError("A meta-update needs the meta-gradient of at least one agent.")
    with torch.no_grad():
        mean = {name: torch.stack([g[name] for g in grads]).mean(0) for name in meta_params}
        norm = optimizers.global_norm(mean)
        if max_grad_norm is not None:
            shrink = (max_grad_norm / norm).clamp(max=1.0)
            mean = {name: g * shrink for name, g in mean.items()}
        # Forward, this is optax.adam: the stopped denominator only matters to who differentiates the update.
        directions, opt_state = optimizers.adam_sg(mean, opt_state)
        updates = {name: -learning_rate * d for name, d in directions.items()}
        logs = {"meta_grad_norm": norm, "meta_up_norm": optimizers.global_norm(updates)}
        return optimizers.apply_updates(meta_params, updates), opt_state, logs
