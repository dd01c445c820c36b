"""Arithmetic that rounds as the compiled original: against JAX, which computes it there, and its derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from port import rounding, values

BINS, BOUND = 601, 300.0


@pytest.fixture(autouse=True)
def in_double():
    with jax.enable_x64(True):
        yield


def logits(scale: float, rows: int = 200) -> np.ndarray:
    return scale * np.random.default_rng(5).standard_normal((rows, BINS))


@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_a_softmax_in_double_has_the_bits_of_the_original(scale):
    """Torch's own has them for less than half of the numbers."""
    x = logits(scale)
    compiled = np.asarray(jax.jit(lambda x: jax.nn.softmax(x, -1))(x))
    got = rounding.softmax(torch.from_numpy(x)).numpy()
    assert (got == compiled).mean() > 0.98
    assert (torch.from_numpy(x).softmax(-1).numpy() == compiled).mean() < 0.7
    np.testing.assert_allclose(got, compiled, rtol=1e-15)


@pytest.mark.parametrize(("num_bins", "max_abs"), [(BINS, BOUND), (601, 299.7), (255, 20.0), (51, 10.0), (2, 1.0)])
def test_bins_in_double_have_the_bits_of_the_original(num_bins, max_abs):
    """But for the few that another processor might compute with its last ones; rounded correctly, 158 of 601 differ."""
    compiled = np.asarray(jax.jit(lambda: jnp.linspace(-max_abs, max_abs, num_bins))())
    got = rounding.bins(num_bins, max_abs, torch.zeros((), dtype=torch.float64)).numpy()
    assert (got != compiled).sum() <= num_bins // 60
    np.testing.assert_allclose(got, compiled, atol=1e-15 * max_abs)


def test_values_near_0_lose_no_digits_to_the_order_of_sums():
    """Against the same mean from JAX: it is within what one unit in the last place of the logits moves it by."""
    x = logits(0.05)
    bins = np.asarray(jax.jit(lambda: jnp.linspace(-BOUND, BOUND, BINS))())
    mean = jax.jit(lambda x: (jax.nn.softmax(x, -1) * bins).sum(-1))
    compiled, nearby = np.asarray(mean(x)), np.asarray(mean(np.nextafter(x, np.inf)))
    got = values.values_from_logits(torch.from_numpy(x), BOUND, nonlinear=False).numpy()
    assert np.abs(got - compiled).mean() < 0.5 * np.abs(nearby - compiled).mean()


def test_the_softmax_in_double_has_torchs_derivatives():
    x = torch.from_numpy(logits(1.0, 2)[:, :5]).requires_grad_()
    assert gradcheck(rounding.softmax, x)
    assert gradgradcheck(rounding.softmax, x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones_like(x).cumsum(-1))
        got, ref = (forward_ad.unpack_dual(of(dual)).tangent for of in (rounding.softmax, lambda x: x.softmax(-1)))
    torch.testing.assert_close(got, ref)


@pytest.mark.parametrize(
    "row",
    [
        [0.0, -torch.inf, -1.0],
        [0.0, -800.0, -745.0],
        [torch.inf, 0.0, 0.0],
        [torch.nan, 0.0, 1.0],
        [1e308, -1e308, 0.0],
    ],
)
def test_extreme_logits_in_double_give_what_torch_gives(row):
    x = torch.tensor([row, [0.1, 0.2, 0.3]], dtype=torch.float64)
    got = rounding.softmax(x)
    torch.testing.assert_close(got, x.softmax(-1), equal_nan=True, rtol=1e-15, atol=1e-300)
    assert not got[x < -750.0].any()  # what cannot be is exactly 0


def test_float32_is_left_to_torch():
    x = torch.from_numpy(logits(1.0)).float()
    assert torch.equal(rounding.softmax(x), x.softmax(-1))
    assert rounding.bins(BINS, BOUND, x).tolist() == list(np.arange(-300.0, 301.0))
