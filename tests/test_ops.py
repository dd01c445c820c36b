"""Elementary functions of the port: accuracy against exact arithmetic, and derivatives of every kind."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from port import ops
from port.value_fns import value_utils
from port.value_fns.value_utils import ValueForm

BINS, BOUND = 601, 300.0
LINEAR = ValueForm(BOUND, nonlinear=False)
UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def exact_inverse(x: float, eps: float) -> float:
    """sign(x) (((sqrt(1 + 4 eps (eps + 1 + |x|)) - 1) / (2 eps))^2 - 1), in 60 digits."""
    with localcontext() as context:
        context.prec = 60
        e = Decimal(eps)
        z = ((1 + 4 * e * (e + 1 + abs(Decimal(x)))).sqrt() - 1) / (2 * e)
        return float((z * z - 1).copy_sign(Decimal(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_inverse_of_the_signed_hyperbolic_keeps_its_digits_near_0(dtype):
    x = torch.tensor([sign * 10.0**k for k in range(-30, 5) for sign in (1.0, -1.0)], dtype=dtype)
    exact = np.array([exact_inverse(number, 1e-3) for number in x.tolist()])
    np.testing.assert_allclose(ops.signed_parabolic(x).double().numpy(), exact, rtol=16 * UNIT[dtype], atol=0.0)


def test_the_signed_hyperbolic_and_its_inverse_undo_each_other():
    x = torch.cat((drawn(100, scale=1e-3), drawn(100), drawn(100, scale=1e4)))
    torch.testing.assert_close(ops.signed_parabolic(ops.signed_hyperbolic(x)), x, rtol=1e-12, atol=1e-14)


def test_at_0_only_the_linear_term_of_the_signed_hyperbolic_has_a_slope():
    zero = torch.zeros((), dtype=torch.float64, requires_grad=True)
    slopes = [torch.autograd.grad(of(zero), zero)[0] for of in (ops.signed_hyperbolic, ops.signed_parabolic)]
    assert [float(slope) for slope in slopes] == [1e-3, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bins_are_evenly_spaced_and_symmetric(dtype):
    bins = ops.bins(BINS, BOUND, torch.zeros((), dtype=dtype))
    assert bins.dtype == dtype and bins.tolist() == list(np.arange(-300.0, 301.0))
    uneven = ops.bins(8, 0.3, bins)
    assert torch.equal(uneven, -uneven.flip(0))
    exact = np.array([(2 * i - 7) * 0.3 / 7 for i in range(8)])
    np.testing.assert_allclose(uneven.double().numpy(), exact, rtol=4 * UNIT[dtype])


@pytest.mark.parametrize("scale", [0.05, 1.0, 30.0])
def test_values_in_float32_are_off_by_no_more_than_the_rounding_of_their_terms(scale):
    logits = drawn(200, BINS, scale=scale)
    exact = value_utils.values_from_logits(logits.float().double(), LINEAR)
    got = value_utils.values_from_logits(logits.float(), LINEAR)
    terms = (logits.float().double().softmax(-1) * ops.bins(BINS, BOUND, logits)).abs().sum(-1)
    assert bool(((got - exact).abs() <= 8 * UNIT[torch.float32] * (terms + exact.abs())).all())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: value_utils.values_from_logits(x, ValueForm(3.0)),
        ops.log_probs,
        ops.categorical_entropy,
        lambda x: ops.categorical_kl(x, x.flip(-1)),
        ops.signed_hyperbolic,
        ops.signed_parabolic,
    ],
    ids=["values", "log_probs", "entropy", "kl", "signed_hyperbolic", "signed_parabolic"],
)
def test_functions_can_be_differentiated_twice_and_in_forward_mode(function):
    x = drawn(2, 5).requires_grad_()
    assert gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, x)


def test_the_gradient_of_a_saturated_divergence_keeps_its_digits():
    """p_i (d_i - KL) with d = log p - log q is 1e-12 here, and the terms that cancel in it are 1."""
    p, q = torch.tensor([[30.0, 1.0, 2.0]], dtype=torch.float64), torch.tensor([[0.3, 1.0, -0.5]], dtype=torch.float64)
    leaf = p.clone().requires_grad_()
    (got,) = torch.autograd.grad(ops.categorical_kl(leaf, q).sum(), leaf)
    probs, ratio = p.softmax(-1), p.log_softmax(-1) - q.log_softmax(-1)
    pairs = (
        probs.unsqueeze(-1) * probs.unsqueeze(-2) * (ratio.unsqueeze(-1) - ratio.unsqueeze(-2))
    )  # p_i p_j (d_i - d_j)
    assert float(got[0, 0].abs()) < 1e-10
    torch.testing.assert_close(got, pairs.sum(-1), rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_policies_diverge_by_exactly_0(dtype):
    logits = drawn(50, 4, scale=3.0).to(dtype)
    assert not ops.categorical_kl(logits, logits.clone()).any()


@pytest.mark.parametrize("row", [[0.0, -torch.inf, -1.0], [0.0, -800.0, -745.0], [1e308, -1e308, 0.0]])
def test_bins_that_cannot_be_count_nothing(row):
    logits = torch.tensor([row], dtype=torch.float64)
    is_possible = logits.softmax(-1)[0] > 0
    bins = ops.bins(3, 2.0, logits)
    alone = (logits[:, is_possible].softmax(-1) * bins[is_possible]).sum(-1)
    torch.testing.assert_close(value_utils.values_from_logits(logits, ValueForm(2.0, nonlinear=False)), alone)


@pytest.mark.parametrize("measure", [ops.categorical_entropy, lambda x: ops.categorical_kl(x, 0.3 * x)])
def test_an_action_that_is_forbidden_counts_nothing(measure):
    """A logit of -inf: 0 * inf is 0 in an entropy and in a divergence, and in their gradients."""
    allowed = drawn(4, 2).requires_grad_()
    alone = measure(allowed)
    with_forbidden = torch.cat((allowed, torch.full((4, 1), -torch.inf, dtype=torch.float64)), dim=-1)
    torch.testing.assert_close(measure(with_forbidden), alone)
    got, ref = (torch.autograd.grad(x.sum(), allowed)[0] for x in (measure(with_forbidden), alone))
    torch.testing.assert_close(got, ref)


def test_tangents_of_log_probabilities_are_those_of_one_normalisation():
    x, tangent = drawn(4, 5), drawn(4, 5).flip(0)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        got, ref = (forward_ad.unpack_dual(of(dual)).tangent for of in (ops.log_probs, lambda x: x.log_softmax(-1)))
    torch.testing.assert_close(got, ref)


def test_the_gradient_of_a_saturated_policys_entropy_keeps_its_digits():
    logits = torch.tensor([-66.13543701, -56.34225845, -39.07588577], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(ops.categorical_entropy(logits), logits)
    probs, apart = logits.detach().softmax(-1), logits.detach().unsqueeze(1) - logits.detach()
    without_cancelling = -probs * (apart * probs).sum(1)  # dH/dl_i = -p_i sum_j p_j (l_i - l_j)
    torch.testing.assert_close(gradient, without_cancelling, rtol=1e-12, atol=0.0)


def test_two_hot_of_what_overflowed_is_no_number_and_no_error():
    probs = ops.two_hot(torch.tensor([float("nan"), 1.0]), 5, 2.0)
    assert probs[0].isnan().any() and probs[1].tolist() == ops.two_hot(torch.tensor([1.0]), 5, 2.0)[0].tolist()
