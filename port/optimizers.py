"""The agent's optimiser: Adam whose denominator carries no gradient, a clip, a scale; and the averaging of targets."""

from __future__ import annotations

import torch
from torch import Tensor

from port import ops
from port.types import AdamState, Params


def init_adam(params: Params) -> AdamState:
    """Moments of nothing yet.

    Reference: disco_rl/optimizers.py::scale_by_adam_sg_denom
    """
    device = next(iter(params.values())).device
    mu, nu = ({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))
    return AdamState(torch.zeros((), dtype=torch.int32, device=device), mu, nu)


def adam_sg(
    grads: Params, state: AdamState, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> tuple[Params, AdamState]:
    """Adam's direction, with gradients flowing through the numerator only (Kingma and Ba 2015); and the new state.

        m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  direction = (m / (1 - b1^n)) / (sqrt(v / (1 - b2^n)) + eps)

    The root is held constant; n counts the updates, this one included.

    Reference: disco_rl/optimizers.py::scale_by_adam_sg_denom
    """
    if grads.keys() != state.mu.keys():
        odd = sorted(grads.keys() ^ state.mu.keys())
        raise KeyError(f"Gradients and optimiser state do not name the same parameters: {', '.join(odd)}.")
    count = state.count + 1
    dtype = next(iter(grads.values())).dtype
    correct1, correct2 = (_bias(decay, count, dtype) for decay in (b1, b2))
    mu = {name: (1 - b1) * g + b1 * state.mu[name] for name, g in grads.items()}
    nu = {name: (1 - b2) * g.square() + b2 * state.nu[name] for name, g in grads.items()}
    updates = {name: m / correct1 / ((nu[name].detach() / correct2).sqrt() + eps) for name, m in mu.items()}
    return updates, AdamState(count, mu, nu)


def _bias(decay: float, count: Tensor, dtype: torch.dtype) -> Tensor:
    """1 - decay^count, the share of a moment that its updates have filled; in the moments' precision.

    In float32, 1 - 0.999 is 5e-5 too large, which keeps an agent's first update inside the clip's bound of 1, where it
    is in exact arithmetic and where its derivative passes (see the head of `port.meta_train.meta_gradient`).

    Reference: optax/tree_utils/_tree_math.py::tree_bias_correction
    """
    return 1 - torch.pow(torch.tensor(decay, dtype=dtype, device=count.device), count)


def clip_and_scale(updates: Params, max_abs_update: float, learning_rate: float) -> Params:
    """Clips each entry to the bound, then takes a step of the learning rate downhill.

    At an agent's first update every entry stands beside the usual bound of 1: `_bias` decides on which side (see the
    head of `port.meta_train.meta_gradient`).

    Reference: disco_rl/agent.py::Agent.__init__
    """
    return {name: ops.clip(u, -max_abs_update, max_abs_update) * -learning_rate for name, u in updates.items()}


def apply_updates(params: Params, updates: Params) -> Params:
    """Parameters after the updates.

    Reference: optax/_src/update.py::apply_updates
    """
    return {name: p + updates[name] for name, p in params.items()}


def update(
    params: Params, grads: Params, state: AdamState, learning_rate: float, max_abs_update: float
) -> tuple[Params, Params, AdamState]:
    """One step of the optimiser: Adam's direction, clipped, times minus the learning rate.

    Returns:
        The new parameters, the updates that were added to them, and the optimiser's new state.

    Reference: disco_rl/agent.py::Agent.__init__
    """
    directions, state = adam_sg(grads, state)
    updates = clip_and_scale(directions, max_abs_update, learning_rate)
    return apply_updates(params, updates), updates, state


def target_average(target: Params, online: Params, coeff: float) -> Params:
    """Moves target parameters towards the online ones, keeping `coeff` of themselves.

    Reference: disco_rl/update_rules/disco.py::DiscoUpdateRule.unroll_meta_net
    """
    if target.keys() != online.keys():
        odd = sorted(target.keys() ^ online.keys())
        raise KeyError(f"Target and online network do not have the same parameters: {', '.join(odd)}.")
    return {name: old * coeff + (1.0 - coeff) * online[name] for name, old in target.items()}


def global_norm(tensors: Params) -> Tensor:
    """Root of the sum of squares of all entries.

    Reference: optax/_src/linear_algebra.py::global_norm
    """
    return torch.stack([x.square().sum() for x in tensors.values()]).sum().sqrt()
