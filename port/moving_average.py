"""Moving mean and variance of a stream, and normalisation by them."""

from __future__ import annotations

import torch
from torch import Tensor

from port import distributed, ops
from port.distributed import Averaging
from port.types import EmaState


def init(like: Tensor) -> EmaState:
    """Moments of nothing yet, with the dtype and device of `like`.

    Reference: disco_rl/utils.py::MovingAverage.init_state
    """
    return EmaState(like.new_zeros(()), like.new_zeros(()), like.new_ones(()))


def update(state: EmaState, values: Tensor, decay: float, averaging: Averaging | None = None) -> EmaState:
    """Moves both moments towards those of `values` [...]: m <- decay m + (1 - decay) mean(x), and so for the squares.

    The mean is over all axes and all ranks.

    Reference: disco_rl/utils.py::MovingAverage.update_state
    """

    def toward(moment: Tensor, target: Tensor) -> Tensor:
        return decay * moment + (1.0 - decay) * target

    first, second = distributed.averaged(averaging, ops.mean(values), ops.mean(values.square()))
    return EmaState(
        toward(state.moment1, first),
        toward(state.moment2, second),
        state.decay_product * decay,
    )


def mean_and_variance(state: EmaState) -> tuple[Tensor, Tensor]:
    """Debiased mean and variance, scalars; a variance that rounding made negative counts as 0.

    Before the first update there is nothing to debias, and both are NaN.

    Reference: disco_rl/utils.py::MovingAverage._compute_moments
    """
    correction = 1.0 / (1 - state.decay_product)
    mean = state.moment1 * correction
    variance = state.moment2 * correction - mean.square()
    return mean, torch.maximum(torch.zeros_like(variance), variance)


def normalize(
    values: Tensor, state: EmaState, eps: float = 1e-6, root_eps: float = 1e-12, subtract_mean: bool = True
) -> Tensor:
    """Normalises `values` [...]: (x - mean) / (sqrt(variance + root_eps) + eps); the mean is left out if asked to.

    One epsilon stands under the root and keeps its derivative finite; the other one bounds the quotient.

    Reference: disco_rl/utils.py::MovingAverage.normalize
    """
    mean, variance = mean_and_variance(state)
    centred = values - mean if subtract_mean else values
    return centred / ((variance + root_eps).sqrt() + eps)
