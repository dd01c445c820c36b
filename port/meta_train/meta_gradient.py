"""Meta-gradients: how the meta-parameters should change so that agents that learn by them act better afterwards.

An agent takes N inner updates, each from its own rollout and by the rule whose parameters are differentiated. The
updated agent is judged on a validation rollout: by a policy-gradient loss with advantages from a separate value
function, and by regularisers that keep the rule's targets and the agent's predictions spread out.

In float32, a fresh agent's first update is delicate. Adam divides each gradient by its own size, so each entry of the
direction is +-1 up to epsilon: just inside the clip bound of 1, where the clip passes the whole derivative.
`optimizers.adam_sg` takes the bias corrections in the moments' precision, as the original does, and stays inside.
With corrections in double, rounding puts entries on or past the bound, and the meta-gradient is wrong.

In float64, where a gradient is as small as Adam's epsilon of 1e-8, the direction's derivative is up to 1e8. At
Disco103's size the original's meta-gradient changes by 2e-9 to 2e-7 of a tensor's scale if its inputs change by one
unit in the last place. `python -m reports.meta_gradients` measures it.

Gradients are taken by `torch.autograd.grad`; `torch.func` gives the same bits, at 1.1 to 1.4 times the processor time.
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
    """An agent that learns by a rule, and the rollout that it is judged on afterwards.

    Attributes:
        agent: the agent.
        value_config: of the separate value function.
        outer: weights of the regularisers.
        meta_params: of the rule.
        state: of the agent and its value function, before the inner updates.
        train_rollouts: N of them, T+1 steps each, one for each inner update.
        valid_rollout: made by the agent before the inner updates; the agent after them is judged on it.
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
    """The regulariser of one inner update, a scalar, from the rule's targets pi_hat, y_hat and z_hat.

        R = c_mean (mean(pi_hat)^2 + mean(y_hat)^2 + mean(z_hat)^2) + c_kl mean_t KL(pi_target_t || pi_hat_t)

    with pi_target the policy of the target network, which is held constant.
    """
    means = sum(meta_out[name].mean().square() for name in ("pi", "y", "z"))
    logits = meta_out["target_out"]["logits"][:-1].detach()
    kl = ops.categorical_kl(logits, meta_out["pi"]).mean()
    return config.target_mean_cost * means + config.target_kl_cost * kl


def inner_step(problem: InnerProblem, state: LearningState, rollout: Rollout) -> tuple[LearningState, Tensor, Logs]:
    """One update of agent and value function, with the agent's graph kept.

    The value function depends on the agent through importance weights only, which carry no gradient. It is therefore
    updated without a graph.

    Returns:
        The state after the update, the regulariser of the rule's targets, and the learner's logs without a graph.
    """
    agent = problem.agent
    learner, logs = agent.learner_step(rollout, state.learner, problem.meta_params, is_meta_training=True)
    with torch.no_grad():
        logits = agent_net.policy_logits(state.learner.params, rollout.observations, lead=2)
    value, _, _ = value_fn.update(state.value, rollout, logits, problem.value_config, averaging=agent.averaging)
    regulariser = target_regulariser(logs.pop("meta_out"), problem.outer)
    return LearningState(learner, value), regulariser, {name: x.detach() for name, x in logs.items()}


def validation_loss(problem: InnerProblem, state: LearningState) -> tuple[Tensor, Tensor, Logs]:
    """The policy-gradient loss on the validation rollout after the inner updates, the regulariser there, and logs."""
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
    """The outer loss from `validation_loss`, and from the regularisers and logs of each inner update."""
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
    gradient = MetaGradient(grads, trees.detached(result.state), result.metrics, result.meta_log)
    return over_ranks(problem.agent.averaging, gradient)


def gradients(loss: Tensor, params: Params) -> Params:
    """Gradient of a loss by parameter, zero where it does not depend on one."""
    grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(params, grads, strict=True))


def over_ranks(averaging: Averaging | None, gradient: MetaGradient) -> MetaGradient:
    """Means over ranks of an agent's meta-gradient and logs; its state is equal on all ranks.

    Notebook: colabs/meta_train.ipynb::calculate_meta_gradient
    """
    if averaging is None:
        return gradient
    parts = {"grads": gradient.grads, "metrics": gradient.metrics, "meta_log": gradient.meta_log}
    means = trees.unflatten(parts, distributed.averaged_params(averaging, trees.flatten(parts)))
    return MetaGradient(means["grads"], gradient.state, means["metrics"], means["meta_log"])


def meta_gradient_along(direction: Params, problem: InnerProblem) -> Params:
    """The derivative of each meta-parameter's gradient along a direction, a tangent for each meta-parameter.

    Forward mode over the backward pass: it costs a few meta-gradients, whatever the number of parameters. Tensors that
    gradients hold constant (targets' logits and values, Adam's denominator) are constant here too, as in the original,
    so finite differences of the meta-gradient give other numbers. It is not averaged over ranks.
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

    A mean longer than `max_grad_norm` is scaled to that norm; the original never does so.

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
        # The same numbers as optax.adam: a stopped denominator changes derivatives of the update alone.
        directions, opt_state = optimizers.adam_sg(mean, opt_state)
        updates = {name: -learning_rate * d for name, d in directions.items()}
        logs = {"meta_grad_norm": norm, "meta_up_norm": optimizers.global_norm(updates)}
        return optimizers.apply_updates(meta_params, updates), opt_state, logs
