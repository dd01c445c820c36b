"""Arithmetic in the order and the steps of the compiled original, where rounding tells afterwards.

A value near 0 is the mean of bins up to 300 that nearly cancel, and `ops.signed_parabolic` takes three more digits off
it. What is left of the digits depends on how each term was rounded and in which order they were added up.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW = 32  # in which XLA sums on a CPU
MANY_BINS, AT_A_TIME = 128, 16  # bins up to which XLA computes them once and for all, and how many in one go else

# Constants of Cephes' exponential, which XLA takes over.
LOWEST = -708.3964185322641  # the logarithm of the smallest normal number; 0 is given for what is below
LOG2_OF_E = 1.4426950408889634
LOG_2 = (0.693145751953125, 1.428606765330187e-06, 5.497923021049165e-14)  # in parts that add up to log 2
ODD = (0.00012617719307481058, 0.030299440770744195)
EVEN = (3.0019850513866446e-06, 0.002524483403496841, 0.22726554820815503)


def bins(num_bins: int, max_abs: float, like: Tensor) -> Tensor:
    """K evenly spaced numbers in [-max_abs, max_abs]: in float64 as the original has them, else rounded correctly."""
    last = num_bins - 1
    if like.dtype == torch.float64:
        return torch.tensor(_bins(num_bins, float(max_abs)), dtype=like.dtype, device=like.device)
    steps = torch.arange(-last, num_bins, 2, dtype=like.dtype, device=like.device)
    return steps * (max_abs / last)


@lru_cache(maxsize=32)
def _bins(num_bins: int, max_abs: float) -> list[float]:
    """The bins of the compiled original, one in four of Disco103's 601 off by a unit in the last place.

    They are `max_abs` times i/N minus 1 - i/N, by way of 1/N. Many are computed when the program runs, 16 at a time,
    and a product that is added to something is not rounded before; few, and the rest of many, when it is compiled.
    """
    last = num_bins - 1
    step = 1 / last
    rise = max_abs * step
    num_running = last // AT_A_TIME * AT_A_TIME if num_bins > MANY_BINS else 0

    def of(i: int) -> float:
        if i >= num_running:
            return i * rise - max_abs * (1 - i * step)
        left = max_abs * float(1 - i * Fraction(step))
        return float(i * Fraction(rise) - Fraction(left))

    return [*map(of, range(last)), max_abs]


def softmax(logits: Tensor) -> Tensor:
    """Softmax over the last axis: [..., K] to [..., K]; in float64 rounded as the original's, with torch's derivatives.

    Another exponential, and another order in which they are added up, put the mean of 601 bins off by 1e-14. Adam's
    first update makes 1e-8 of a meta-gradient of that.
    """
    near = logits.softmax(-1)
    if logits.dtype != torch.float64:
        return near
    with torch.no_grad():
        given = logits.detach()
        powers = _exp(given - given.amax(-1, keepdim=True))
        step = powers.div_(sum_in_windows(powers).unsqueeze(-1)).sub_(near.detach())
    return near + step


def _exp(x: Tensor) -> Tensor:
    """Exponential of numbers up to 0, in float64 and in XLA's steps: 2 to the n, times a rational function of the rest.

    It is off by a unit in the last place for one number in seven. XLA multiplies and adds without rounding in between;
    here only the rest is taken so, and 999 numbers in 1,000 come out with the same bits, the others with the next.
    """
    x = x.clamp(min=LOWEST)
    n = x.mul(LOG2_OF_E).add_(0.5).floor_()
    coarse, fine = x - n * LOG_2[0], n * LOG_2[1]
    rest = coarse - fine
    back = rest - coarse
    rounded_off = (coarse - (rest - back)).sub_(back.add_(fine))
    rest += rounded_off.sub_(n * LOG_2[2])
    square = rest * rest
    odd = square.mul(ODD[0]).add_(ODD[1]).mul_(square).add_(1).mul_(rest)
    even = square.mul(EVEN[0]).add_(EVEN[1]).mul_(square).add_(EVEN[2]).mul_(square).add_(2)
    powers = torch.ldexp((odd / even.sub_(odd)).mul_(2).add_(1), n)
    return powers.masked_fill_(x == LOWEST, 0.0)


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
