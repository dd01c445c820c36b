"""Arithmetic in the order and the steps of the compiled original, where rounding tells afterwards.

A value near 0 is the mean of bins up to 300 that nearly cancel, and `ops.signed_parabolic` takes three more digits off
it. What is left of the digits depends on how each term was rounded and in which order they were added up.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW = 32  # in which XLA sums on a CPU


def bins(num_bins: int, max_abs: float, like: Tensor) -> Tensor:
    """K evenly spaced numbers in [-max_abs, max_abs]; the one in the middle is exactly 0."""
    last = num_bins - 1
    steps = torch.arange(-last, num_bins, 2, dtype=like.dtype, device=like.device)
    return steps * (max_abs / last)


def sum_in_windows(x: Tensor) -> Tensor:
    """Sum over the last axis in the order of the compiled original: [..., K] to [...].

    XLA sums windows of 32 one after the other, the first and the last window shorter by turns, and then the windows'
    sums in the same way. Where terms of both signs nearly cancel, as for values near 0 in bins up to 300, another order
    is off by 2e-5 in float32 and 6e-14 in float64, which Adam's first update makes 4e-9 of a meta-gradient.
    """
    windows = x.reshape(-1, 1, 1, x.shape[-1])  # an average pool with divisor 1 is such a sum
    while (width := windows.shape[-1]) > WINDOW:
        padding = (0, -width % WINDOW // 2)
        windows = F.avg_pool2d(windows, (1, WINDOW), padding=padding, ceil_mode=True, divisor_override=1)
    return F.avg_pool2d(windows, (1, width), divisor_override=1).reshape(x.shape[:-1])


def root(x: Tensor) -> Tensor:
    """Square root of positive numbers, rounded correctly on every processor: [...] to [...].

    `torch.sqrt` leaves it to a library, which on some processors (AMD's) is off by a unit in the last place for one
    number in seven in float32. That is nothing in itself, but values near 0 lose three digits right after it.
    """
    near = x.sqrt()
    if x.device.type != "cpu" or _sqrt_is_rounded(x.dtype):
        return near
    with torch.no_grad():
        given, start = x.detach(), near.detach()
        exact = start + _residual(given, start) / (2 * start) if x.dtype == torch.float64 else given.double().sqrt()
        step = exact.to(x.dtype) - start
    return near + torch.where(step.isfinite(), step, 0.0)


@lru_cache(maxsize=8)
def _sqrt_is_rounded(dtype: torch.dtype) -> bool:
    """Whether torch's square root on this processor is the nearest number, tried on some thousand."""
    x = torch.linspace(1.0, 4.0, 4099, dtype=dtype)
    nearest = torch.tensor([math.sqrt(number) for number in x.tolist()], dtype=torch.float64).to(dtype)
    return torch.equal(x.sqrt(), nearest)


def _residual(x: Tensor, near: Tensor) -> Tensor:
    """What is left of x without near * near, in float64 and exactly: the product is taken in halves (Dekker)."""
    scaled = near * (2.0**27 + 1.0)
    high = scaled - (scaled - near)
    low = near - high
    product = near * near
    return (x - product) - (((high * high - product) + 2 * high * low) + low * low)
