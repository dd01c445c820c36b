"""The meta-gradient where memory is short: inner updates are computed twice, and one graph is kept at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from port import trees
from port.meta_train.meta_gradient import (
    InnerProblem,
    LearningState,
    MetaGradient,
    combine,
    gradients,
    inner_step,
    over_ranks,
    validation_loss,
)
from port.storage.checkpoint import part
from port.types import Params


def checkpointed_meta_gradient(problem: InnerProblem) -> MetaGradient:
    """`meta_gradient` in the memory of a single inner update, for which each of them is computed twice.

    The states between the updates are kept without a graph. From the last one back, each update is computed again, and
    the gradient for the state after it is carried to the state before it.
    """
    rollouts, states, metrics, regularisers = problem.train_rollouts, [problem.state], [], []
    for rollout in rollouts:
        new, regulariser, logs = inner_step(problem, states[-1], rollout)
        states.append(trees.detached(new))
        regularisers.append(regulariser.detach())
        metrics.append(logs)
    end = _with_leaves(states[-1])
    with torch.enable_grad():
        pg_loss, reg_loss, meta_log = validation_loss(problem, end)
        carried = _grads(pg_loss + reg_loss, end.learner)
    total = {name: torch.zeros_like(p) for name, p in problem.meta_params.items()}
    for before, rollout in zip(states[-2::-1], reversed(rollouts), strict=True):
        tracked, before = problem.with_leaves(), _with_leaves(before)
        with torch.enable_grad():
            after, regulariser, _ = inner_step(tracked, before, rollout)
            later = sum(
                (x * carried[name]).sum() for name, x in trees.flatten(after.learner).items() if name in carried
            )
            loss = later + regulariser / len(rollouts)  # of which the gradient is that of all that follows
            carried = _grads(loss, {"meta": tracked.meta_params, "learner": before.learner})
        total = {name: g + carried[f"meta/{name}"] for name, g in total.items()}
        carried = part(carried, "learner/")
    result = combine(pg_loss.detach(), reg_loss.detach(), regularisers, states[-1], metrics, meta_log)
    return over_ranks(problem.agent.averaging, MetaGradient(total, *result[1:]))


def _with_leaves(state: LearningState) -> LearningState:
    """The same state with every number of the learner a leaf, to take gradients for."""
    flat = trees.flatten(state.learner)
    leaves = {name: x.detach().requires_grad_() if x.is_floating_point() else x for name, x in flat.items()}
    return state._replace(learner=trees.unflatten(state.learner, leaves))


def _grads(loss: Tensor, tree: Any) -> Params:
    """Gradient of a loss for every leaf of a record, by name."""
    return gradients(loss, {name: x for name, x in trees.flatten(tree).items() if x.requires_grad})
