"""The meta-gradient where memory is short: inner updates are computed twice, and one graph is kept at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from port import trees
from port.agent import Agent
from port.meta_train.meta_gradient import (
    LearningState,
    MetaGradient,
    OuterLossConfig,
    check_rollouts,
    inner_step,
    leaves,
    over_ranks,
    validation_loss,
)
from port.types import Params, Rollout
from port.value_fns.value_fn import ValueFnConfig


def checkpointed_meta_gradient(
    agent: Agent,
    value_config: ValueFnConfig,
    outer: OuterLossConfig,
    meta_params: Params,
    state: LearningState,
    train_rollouts: Sequence[Rollout],
    valid_rollout: Rollout,
) -> MetaGradient:
    """`meta_gradient` in the memory of a single inner update, for which each of them is computed twice.

    The states between the updates are kept without a graph. From the last one back, each update is computed again, and
    the gradient for the state after it is carried to the state before it.
    """
    check_rollouts(agent, train_rollouts, valid_rollout)
    given, metrics, N = [state], [], len(train_rollouts)
    reg_losses = []
    for rollout in train_rollouts:
        new, regulariser, logs = inner_step(agent, value_config, outer, meta_params, given[-1], rollout)
        given.append(trees.detached(new))
        reg_losses.append(regulariser.detach())
        metrics.append(logs)
    end = _with_leaves(given[-1])
    with torch.enable_grad():
        pg_loss, reg_loss, meta_log = validation_loss(end, valid_rollout, value_config, outer, agent.averaging)
        carried = _pull([pg_loss + reg_loss], [None], end.learner)
    total = {name: torch.zeros_like(p) for name, p in meta_params.items()}
    for before, rollout in zip(given[-2::-1], reversed(train_rollouts), strict=True):
        tracked, before = leaves(meta_params), _with_leaves(before)
        with torch.enable_grad():
            after, regulariser, _ = inner_step(agent, value_config, outer, tracked, before, rollout)
            outputs, weights = _reached(after.learner, carried)
            outputs, weights = [*outputs, regulariser], [*weights, torch.full_like(regulariser, 1.0 / N)]
            carried = _pull(outputs, weights, {"meta": tracked, "learner": before.learner})
        total = {name: g + carried[f"meta/{name}"] for name, g in total.items()}
        carried = {name.removeprefix("learner/"): g for name, g in carried.items() if name.startswith("learner/")}
    pg_loss, reg_loss = pg_loss.detach(), reg_loss.detach() + torch.stack(reg_losses).mean()
    meta_log |= {"meta_loss": pg_loss + reg_loss, "pg_loss": pg_loss, "reg_loss": reg_loss}
    stacked = {name: torch.stack([logs[name] for logs in metrics]) for name in metrics[0]}
    return over_ranks(agent.averaging, MetaGradient(total, given[-1], stacked, meta_log))


def _with_leaves(state: LearningState) -> LearningState:
    """The same state with every number of the learner a leaf, to take gradients for."""
    flat = trees.flatten(state.learner)
    leaves = {name: x.detach().requires_grad_() if x.is_floating_point() else x for name, x in flat.items()}
    return state._replace(learner=trees.unflatten(state.learner, leaves))


def _reached(tree: Any, grads: Params) -> tuple[list[Tensor], list[Tensor | None]]:
    """The tensors of a record that have a graph, and the gradient for each."""
    live = {name: x for name, x in trees.flatten(tree).items() if x.requires_grad and name in grads}
    return list(live.values()), [grads[name] for name in live]


def _pull(outputs: list[Tensor], weights: list[Tensor | None], tree: Any) -> Params:
    """Gradient of weighted outputs for every leaf of a record, by name."""
    sources = {name: x for name, x in trees.flatten(tree).items() if x.requires_grad}
    grads = torch.autograd.grad(outputs, list(sources.values()), weights, allow_unused=True, materialize_grads=True)
    return dict(zip(sources, grads, strict=True))
