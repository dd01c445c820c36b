"""Layers on several ranks: those of one process, run by threads that average with each other.

What each rank has for itself carries a leading axis of ranks, and so does everything that comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parity.adapters.torch import Tensors
from port.distributed import Averaging, in_threads

OWN = ("rollout/", "train/", "valid/", "pi_logits", "values", "x")  # what each rank has for itself
WITHIN = {
    "distributed/moving_average": "moving_average/update",
    "distributed/normalize": "transforms/normalize",
    "distributed/value_fn": "meta_train/value_fn",
    "distributed/learner_step": "agent/learner_step",
    "distributed/meta_gradient": "meta_train/outer_loss",
}
Pull = Callable[[Tensors, dict[str, Tensor], Averaging], tuple[dict[str, Tensor], dict[str, Tensor]]]


def on_ranks(
    pull: Pull, x: Tensors, cotangents: Mapping[str, Tensor], count: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs and gradients of a layer on every rank, each in its own thread, forwards and backwards.

    What belongs to a rank gets its own gradient; what all share gets the sum of theirs.
    """

    def on_rank(rank: int, averaging: Averaging) -> Any:
        own = {name: value[rank] for name, value in x.items() if name.startswith(OWN)}
        return pull(x | own, {name: value[rank] for name, value in cotangents.items()}, averaging)

    outputs, gradients = zip(*in_threads([partial(on_rank, rank) for rank in range(count)]), strict=True)
    stacked, pulled = (
        {name: torch.stack([y[name] for y in parts]) for name in parts[0]} for parts in (outputs, gradients)
    )
    return stacked, {name: grad if name.startswith(OWN) else grad.sum(0) for name, grad in pulled.items()}
