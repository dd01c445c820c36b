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
    inner_step,
    over_ranks,
    validation_loss,
)
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
        carried = _pull([pg_loss + reg_loss], [None], end.learner)
    total = {name: torch.zeros_like(p) for name, p in problem.meta_params.items()}
    for before, rollout in zip(states[-2::-1], reversed(rollouts), strict=True):
        tracked, before = problem.with_leaves(), _with_leaves(before)
        with torch.enable_grad():
            after, regulariser, _ = inner_step(tracked, before, rollout)
            outputs, weights = _reached(after.learner, carried)
            outputs, weights = [*outputs, regulariser], [*weights, torch.full_like(regulariser, 1.0 / len(rollouts))]
            carried = _pull(outputs, weights, {"meta": tracked.meta_params, "learner": before.learner})
        total = {name: g + carried[f"meta/{name}"] for name, g in total.items()}
        carried = {name.removeprefix("learner/"): g for name, g in carried.items() if name.startswith("learner/")}
    result = combine(pg_loss.detach(), reg_loss.detach(), regularisers, states[-1], metrics, meta_log)
    return over_ranks(problem.agent.averaging, MetaGradient(total, *result[1:]))


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
