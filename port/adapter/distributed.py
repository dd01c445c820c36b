"""Layers on several ranks: those of one process, run by threads that average with each other.

What each rank has for itself carries a leading axis of ranks, and so does everything that comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from port.adapter import elementary, learning, metatraining
from port.adapter.inputs import LAYERS, LayerFn, Settings, Tensors
from port.distributed import Averaging, in_threads

OWN = ("rollout/", "train/", "valid/", "pi_logits", "values", "x")  # what each rank has for itself
WITHIN = {
    "distributed/moving_average": "moving_average/update",
    "distributed/normalize": "transforms/normalize",
    "distributed/value_fn": "meta_train/value_fn",
    "distributed/learner_step": "agent/learner_step",
    "distributed/meta_gradient": "meta_train/outer_loss",
}


def _on_rank(layer: LayerFn, s: Settings, given: Tensors) -> Callable[[Averaging], Tensors]:
    """What a rank does."""
    return lambda averaging: layer(given, {**s, "averaging": averaging})


def _pull(outs: Sequence[Tensor], given: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> list[Tensor]:
    """A rank's gradients for all that requires one, averaging with the others on the way."""
    reached = [(x, ct) for x, ct in zip(outs, cotangents, strict=True) if ct is not None and x.requires_grad]
    wanted = [x for x in given if x.requires_grad]
    outputs, weights = [x for x, _ in reached], [ct for _, ct in reached]
    return list(torch.autograd.grad(outputs, wanted, weights, allow_unused=True, materialize_grads=True))


class _Ranks(torch.autograd.Function):
    """A layer on every rank, each in its own thread, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, layer: LayerFn, s: Settings, names: list[str], named: list[str], *given: Tensor) -> Any:
        """Outputs of all ranks, stacked; `named` is filled with their names."""
        needed = ctx.needs_input_grad[4:]
        ctx.set_materialize_grads(False)
        ctx.is_own = [name.startswith(OWN) for name in names]
        ctx.given = []
        for rank in range(s["D"]):
            seen = [x[rank] if is_own else x for x, is_own in zip(given, ctx.is_own, strict=True)]
            ctx.given.append([x.detach().requires_grad_(grad) for x, grad in zip(seen, needed, strict=True)])
        outs = in_threads([_on_rank(layer, s, dict(zip(names, own, strict=True))) for own in ctx.given])
        named.extend(outs[0])
        ctx.outs = [list(out.values()) for out in outs]
        stacked = tuple(torch.stack([x.detach() for x in parts]) for parts in zip(*ctx.outs, strict=True))
        ctx.mark_non_differentiable(*(x for x in stacked if not x.is_floating_point()))
        return stacked

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        """What belongs to a rank gets its gradient; what all share gets the sum of theirs."""
        own = [[None if ct is None else ct[rank] for ct in cotangents] for rank in range(len(ctx.outs))]
        given = zip(ctx.outs, ctx.given, own, strict=True)
        pulled = in_threads([partial(lambda parts, _: _pull(*parts), parts) for parts in given])
        stacks = iter([torch.stack(parts) for parts in zip(*pulled, strict=True)])
        needed = zip(ctx.is_own, ctx.needs_input_grad[4:], strict=True)
        grads = [(next(stacks) if is_own else next(stacks).sum(0)) if grad else None for is_own, grad in needed]
        return (None, None, None, None, *grads)


def _everywhere(layer: LayerFn, x: Tensors, s: Settings) -> Tensors:
    """A layer on all ranks."""
    named: list[str] = []
    outs = _Ranks.apply(layer, s, list(x), named, *x.values())
    return dict(zip(named, outs, strict=True))


LAYERS |= {name: partial(_everywhere, LAYERS[within]) for name, within in WITHIN.items()}

del elementary, learning, metatraining  # imported for the layers that they register
