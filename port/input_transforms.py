"""The named transforms that prepare inputs of the meta-network.

All but `normalize` are functions of a tensor [T or T+1, B, ...], the actions [T, B] and the online policy [T+1, B, A].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from port import distributed, ops
from port.distributed import Averaging

NORMALIZE_DECAY = 0.99
CLIP_BOUND = 2.0

# Transforms that treat each time step on its own, so that dropping the last step may as well come after them.
POINTWISE_IN_TIME = frozenset(
    {"identity", "softmax", "max_a", "stop_grad", "clip", "sign", "sign_log", "sign_hyp", "masks_to_discounts"}
)


def td_pair(x: Tensor) -> Tensor:
    """Puts each step beside the next one: [T+1, B, C] to [T, B, 2C].

    Reference: disco_rl/update_rules/input_transforms.py::td_pair
    """
    return torch.cat((x[:-1], x[1:]), dim=-1)


def select_action(x: Tensor, actions: Tensor) -> Tensor:
    """Picks what belongs to the action taken: [T, B, A, ...] and [T, B] to [T, B, ...].

    Reference: disco_rl/update_rules/input_transforms.py::SelectByAction
    """
    return ops.batch_lookup(x, actions)


def policy_average(x: Tensor, policy: Tensor) -> Tensor:
    """Averages over actions under the policy: [T+1, B, A, C] and [T+1, B, A] to [T+1, B, C].

    Reference: disco_rl/update_rules/input_transforms.py::PiWeightedAvg
    """
    if x.ndim != 4 or x.shape[:3] != policy.shape:
        raise ValueError(
            f"pi_weighted_avg of {tuple(x.shape)} under a policy {tuple(policy.shape)}: give [T+1, B, A, C]."
        )
    return (x * policy.unsqueeze(-1)).sum(2)


def max_over_actions(x: Tensor) -> Tensor:
    """The largest over actions: [T+1, B, A, ...] to [T+1, B, ...].

    Reference: disco_rl/update_rules/input_transforms.py::_TRANSFORM_FNS
    """
    if x.ndim < 3:
        raise ValueError(f"max_a takes the largest over actions; give [T+1, B, A, ...], not {tuple(x.shape)}.")
    return x.amax(2)


def masks_to_discounts(x: Tensor, like: Tensor) -> Tensor:
    """1 - x; booleans take the dtype of `like`: [...] to [...].

    Reference: disco_rl/update_rules/input_transforms.py::_TRANSFORM_FNS
    """
    return 1.0 - (x if x.is_floating_point() else x.to(like.dtype))


_Transform = Callable[[Tensor, Tensor, Tensor], Tensor]

TRANSFORMS: dict[str, _Transform] = {
    "identity": lambda x, actions, policy: x,
    "softmax": lambda x, actions, policy: x.softmax(-1),
    "max_a": lambda x, actions, policy: max_over_actions(x),
    "stop_grad": lambda x, actions, policy: x.detach(),
    "clip": lambda x, actions, policy: ops.clip(x, -CLIP_BOUND, CLIP_BOUND),
    "sign": lambda x, actions, policy: x.sign(),
    "drop_last": lambda x, actions, policy: x[:-1],
    "td_pair": lambda x, actions, policy: td_pair(x),
    "sign_log": lambda x, actions, policy: ops.signed_log1p(x),
    "sign_hyp": lambda x, actions, policy: ops.signed_hyperbolic(x),
    "masks_to_discounts": lambda x, actions, policy: masks_to_discounts(x, policy),
    "select_a": lambda x, actions, policy: select_action(x, actions),
    "pi_weighted_avg": lambda x, actions, policy: policy_average(x, policy),
}

NAMES = (*TRANSFORMS, "normalize")


def apply(name: str, x: Tensor, actions: Tensor, policy: Tensor) -> Tensor:
    """Applies one of `TRANSFORMS`, any but the stateful `normalize`, to x [T or T+1, B, ...].

    Some read the actions [T, B], or the policy's probabilities [T+1, B, A].

    Reference: disco_rl/update_rules/input_transforms.py::TRANSFORMS
    """
    if name == "normalize":
        raise ValueError("normalize keeps a state; call transforms.normalize with it.")
    if name not in TRANSFORMS:
        raise KeyError(f"There is no transform called {name!r}; there are: {', '.join(NAMES)}.")
    return TRANSFORMS[name](x, actions, policy)


class DebiasedAverage(NamedTuple):
    """A moving average that starts from 0: the raw sum, the same debiased, and the number of updates."""

    hidden: Tensor
    average: Tensor
    counter: Tensor


class NormalizeState(NamedTuple):
    """Moving averages of a tensor and of its square, [1, 1, ...] each."""

    m1: DebiasedAverage
    m2: DebiasedAverage


def init_normalize(x: Tensor) -> NormalizeState:
    """State of `normalize` before it has seen anything like `x` [T, B, ...]."""
    zeros = x.new_zeros(1, 1, *x.shape[2:])
    fresh = DebiasedAverage(zeros, zeros, torch.zeros((), dtype=torch.int32, device=x.device))
    return NormalizeState(fresh, fresh)


def update_average(state: DebiasedAverage, value: Tensor, decay: float) -> DebiasedAverage:
    """Moves a debiased average towards `value`, of the same shape.

    Reference: haiku/_src/moving_averages.py::ExponentialMovingAverage.__call__
    """
    counter = state.counter + 1
    hidden = state.hidden * decay + value * (1.0 - decay)
    return DebiasedAverage(hidden, hidden / (1.0 - decay ** int(counter)), counter)


def normalize(
    x: Tensor,
    state: NormalizeState,
    decay: float = NORMALIZE_DECAY,
    eps: float = 1e-6,
    root_eps: float = 1e-12,
    averaging: Averaging | None = None,
) -> tuple[Tensor, NormalizeState]:
    """Normalises [T, B, ...] by moving moments over time, batch and ranks, each feature on its own.

    Returns:
        The normalised tensor and the new state; the moments include this input.

    Reference: disco_rl/update_rules/input_transforms.py::EmaNorm.__call__
    """
    if x.ndim < 2:
        raise ValueError(f"normalize averages over time and batch; got a tensor of shape {tuple(x.shape)}.")
    if state.m1.hidden.shape[2:] != x.shape[2:]:
        kept, got = tuple(state.m1.hidden.shape[2:]), tuple(x.shape[2:])
        raise ValueError(f"The state of normalize is for features of {kept}; got features of {got}.")
    moments = x.mean((0, 1), keepdim=True), x.square().mean((0, 1), keepdim=True)
    mean, mean_of_squares = distributed.averaged(averaging, *moments)
    m1 = update_average(state.m1, mean, decay)
    m2 = update_average(state.m2, mean_of_squares, decay)
    variance = m2.average - m1.average.square()
    variance = torch.maximum(variance, torch.zeros_like(variance))
    return (x - m1.average) / ((variance + root_eps).sqrt() + eps), NormalizeState(m1, m2)
