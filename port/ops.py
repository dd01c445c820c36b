"""Small functions over tensors that the whole port leans on.

Derivatives at a tie or a bound follow JAX, where a maximum shares its gradient evenly between equal arguments.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from port import rounding

MANY = 2**18  # numbers whose mean is taken in steps


def check_tensors(**values: object) -> None:
    """Raises TypeError where a value, given by its name, is no tensor."""
    for name, x in values.items():
        if not isinstance(x, Tensor):
            kind = type(x).__name__
            raise TypeError(f"{name} is given as {kind}, not as a torch tensor; torch.as_tensor makes one of it.")


def check_actions(actions: Tensor, num_actions: int) -> None:
    """Raises ValueError or TypeError unless `actions` are integers in [0, num_actions), in a tensor."""
    check_tensors(actions=actions)
    if actions.is_floating_point() or actions.dtype == torch.bool:
        raise ValueError(f"Actions are {actions.dtype}; give integers.")
    if actions.numel() and not (int(actions.min()) >= 0 and int(actions.max()) < num_actions):
        low, high = int(actions.min()), int(actions.max())
        raise ValueError(f"Actions run from {low} to {high}, outside 0 to {num_actions - 1}; check the action space.")


def clip(x: Tensor, low: float, high: float) -> Tensor:
    """Clips to [low, high]; half the gradient passes exactly at a bound (torch.clamp would pass all of it).

    Reference: jax/_src/numpy/lax_numpy.py::clip
    """
    return torch.minimum(torch.maximum(x, x.new_tensor(low)), x.new_tensor(high))


def widened(x: Tensor) -> Tensor:
    """The same numbers in double, where the device has it: for the few places where float32 loses digits cheaply."""
    return x if x.device.type == "mps" else x.double()


def mean(x: Tensor) -> Tensor:
    """Mean over all elements, added up in double, so that a mean near 0 keeps its digits.

    Of a large tensor, rows are added up in its own precision: their errors are many, and cancel.
    """
    if x.numel() > MANY and x.ndim > 1:
        return (widened(x.sum(-1)).sum() / x.numel()).to(x.dtype)
    return widened(x).mean().to(x.dtype)


def batch_lookup(table: Tensor, index: Tensor) -> Tensor:
    """Picks one row per leading position.

    Args:
        table: [*I, A, ...].
        index: [*I], integers in [0, A).

    Returns:
        [*I, ...], `table[i, index[i]]` for each leading position i.

    Reference: disco_rl/utils.py::batch_lookup
    """
    check_tensors(table=table, index=index)
    lead = index.shape
    if table.shape[: index.ndim] != lead or table.ndim == index.ndim:
        raise ValueError(f"Cannot look up an index of shape {tuple(lead)} in a table of shape {tuple(table.shape)}.")
    num_rows, rest = table.shape[index.ndim], table.shape[index.ndim + 1 :]
    check_actions(index, num_rows)
    starts = torch.arange(index.numel(), device=table.device) * num_rows
    rows = starts + index.reshape(-1).to(table.device, torch.long)
    return table.reshape(-1, *rest).index_select(0, rows).reshape(*lead, *rest)


def two_hot(value: Tensor, num_bins: int, max_abs: float) -> Tensor:
    """Spreads each number over the two nearest of K evenly spaced bins in [-max_abs, max_abs].

    Numbers outside the range are clipped to it. The 1e-5 in the denominator means that a number on a bin puts all its
    weight there, and that between two bins the upper one gets slightly more than its share.

    Args:
        value: [...].
        num_bins: K.
        max_abs: the outermost bins' distance from 0.

    Returns:
        [..., K], rows that sum to 1.

    Reference: rlax/_src/transforms.py::transform_to_2hot
    """
    below, above, weight_below = nearest_bins(value, num_bins, max_abs)
    empty = value.new_zeros(*value.shape, num_bins)
    for edge, weight in ((below, weight_below), (above, 1 - weight_below)):
        given = (-1, edge.unsqueeze(-1), weight.unsqueeze(-1))
        empty = empty.scatter_add(*given) if weight.requires_grad else empty.scatter_add_(*given)
    return empty


def nearest_bins(value: Tensor, num_bins: int, max_abs: float) -> tuple[Tensor, Tensor, Tensor]:
    """The two bins that `two_hot` spreads each number over, and the weight of the lower one: [...] each.

    Reference: rlax/_src/transforms.py::transform_to_2hot
    """
    check_bins(num_bins, max_abs)
    span, last = 2.0 * max_abs, num_bins - 1
    value = clip(value, -max_abs, max_abs)
    position = (value + max_abs) / span * last
    below, above = position.detach().floor(), position.detach().ceil()
    value_below, value_above = ((2 * edge - last) * max_abs / last for edge in (below, above))
    weight_below = (value_above - value) / (value_above - value_below + 1e-5)
    return below.long(), above.long(), weight_below


def from_two_hot(probs: Tensor, max_abs: float) -> Tensor:
    """Mean of a distribution over K evenly spaced bins: [..., K] to [...].

    Reference: rlax/_src/transforms.py::transform_from_2hot
    """
    num_bins = probs.shape[-1]
    check_bins(num_bins, max_abs)
    return rounding.sum_in_windows(probs * rounding.bins(num_bins, max_abs, probs))


def check_bins(num_bins: int, max_abs: float) -> None:
    """Raises ValueError unless the bins describe a range."""
    if num_bins < 2 or max_abs <= 0:
        raise ValueError(f"{num_bins} bins up to {max_abs} describe no range; use 2 or more and a positive bound.")


def signed_hyperbolic(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Shrinks large numbers like a square root, keeping their sign: [...] to [...].

    Reference: rlax/_src/transforms.py::signed_hyperbolic
    """
    return x.sign() * (rounding.root(x.abs() + 1) - 1) + eps * x


def signed_parabolic(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Inverse of `signed_hyperbolic`: [...] to [...]. Its derivative at 0 is 0, as the original's.

    The root of a number near 1 is divided by 2 eps, and 1 / (2 eps) is subtracted: 500 from 501, which costs three
    digits. Compiled, the original multiplies by 1 / (2 eps) as the precision has it, 499.99997 in float32, so that all
    values there are 6e-5 too low, and rounds once where it multiplies and adds. In float32 only who rounds alike stays
    with it.

    Reference: rlax/_src/transforms.py::signed_parabolic
    """
    inner = 1 + _rounded(4 * eps, x.dtype) * widened(eps + 1 + x.abs())
    rooted = widened(rounding.root(inner.to(x.dtype)))
    half_over_eps = _half_over(eps, x.dtype)
    base = widened(((rooted - 1) * half_over_eps + (half_over_eps - 0.5 / eps)).to(x.dtype))
    return x.sign() * ((base - 1) * (base + 1)).to(x.dtype)


@lru_cache(maxsize=32)
def _half_over(eps: float, dtype: torch.dtype) -> float:
    """0.5 / eps, rounded as a precision rounds it."""
    return 0.5 * float(1.0 / torch.tensor(eps, dtype=dtype))


@lru_cache(maxsize=32)
def _rounded(number: float, dtype: torch.dtype) -> float:
    """A number as a precision has it."""
    return float(torch.tensor(number, dtype=dtype))


def signed_log1p(x: Tensor) -> Tensor:
    """log(1 + |x|) with the sign of x: [...] to [...].

    Reference: rlax/_src/transforms.py::signed_logp1
    """
    return x.sign() * x.abs().log1p()


def log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities [..., A], normalised twice as the original does: the second time takes out rounding.

    Reference: distrax/_src/distributions/categorical.py::Categorical.entropy
    """
    return logits.log_softmax(-1).log_softmax(-1)


class _LogProbsOnce(torch.autograd.Function):
    """`log_probs`, whose derivative is that of one normalisation: the second one changes nothing but rounding."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor) -> Tensor:
        return log_probs(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return torch._log_softmax_backward_data(grad, out, -1, out.dtype)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return tangent - (out.exp() * tangent).sum(-1, keepdim=True)


def log_probs_once(logits: Tensor) -> Tensor:
    """`log_probs` with half the work of its backward pass: one of the two normalisations is differentiated."""
    return _LogProbsOnce.apply(logits) if logits.requires_grad else log_probs(logits)


def expectation(values: Tensor, log_probs: Tensor) -> Tensor:
    """Sum of `values` under a distribution over the last axis; what has probability 0 counts 0, even if infinite.

    Reference: distrax/_src/utils/math.py::mul_exp
    """
    probs = log_probs.exp()
    total = _weighted_sum(values, probs)
    if not bool(total.isnan().any()):  # most often, which saves a pass over all values, and one backwards
        return total
    return _weighted_sum(torch.where(probs == 0, 0.0, values), probs)


def _weighted_sum(values: Tensor, probs: Tensor) -> Tensor:
    return (values * probs).sum(-1)


def kl_from_log_probs(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) of normalised log-probabilities: [..., A] to [...]."""
    return expectation(log_p - log_q, log_p)


def entropy_from_log_probs(log_p: Tensor) -> Tensor:
    """Entropy of normalised log-probabilities: [..., A] to [...]."""
    return -expectation(log_p, log_p)


def kl_and_entropy(target: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """KL(target || predicted) and the entropy of the prediction, both given by logits: [..., A] to [...] each.

    Reference: rlax/_src/distributions.py::categorical_kl_divergence
    """
    log_target, log_predicted = log_probs(target), log_probs(predicted)
    return kl_from_log_probs(log_target, log_predicted), entropy_from_log_probs(log_predicted)


def categorical_kl(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """KL(p || q) between categorical distributions given by logits: [..., A] to [...].

    Reference: rlax/_src/distributions.py::categorical_kl_divergence
    """
    if p_logits.shape[-1] != q_logits.shape[-1]:
        raise ValueError(f"KL between {p_logits.shape[-1]} and {q_logits.shape[-1]} categories is not defined.")
    return kl_from_log_probs(log_probs(p_logits), log_probs(q_logits))


def categorical_entropy(logits: Tensor) -> Tensor:
    """Entropy of a categorical distribution given by logits: [..., A] to [...].

    Reference: distrax/_src/distributions/categorical.py::Categorical.entropy
    """
    return entropy_from_log_probs(log_probs(logits))


def importance_weights(pi_logits: Tensor, mu_logits: Tensor, actions: Tensor) -> Tensor:
    """Ratio pi(a) / mu(a) of the actions taken; no gradient.

    Args:
        pi_logits: [..., A], the policy learned about.
        mu_logits: [..., A], the policy that acted.
        actions: [...].

    Returns:
        [...].

    Reference: disco_rl/value_fns/value_utils.py::importance_weight
    """
    if pi_logits.shape != mu_logits.shape:
        raise ValueError(
            f"The policy learned about is {tuple(pi_logits.shape)}, the one that acted {tuple(mu_logits.shape)}; "
            "importance weights need both over the same steps and actions."
        )
    pi_logits, mu_logits = pi_logits.detach(), mu_logits.detach()
    log_pi = batch_lookup(pi_logits.log_softmax(-1), actions)
    log_mu = batch_lookup(mu_logits.log_softmax(-1), actions)
    return (log_pi - log_mu).exp()


def policy_gradient_loss(logits: Tensor, actions: Tensor, advantages: Tensor, backprop: bool = False) -> Tensor:
    """Loss whose gradient is the policy gradient: each action's advantage times minus its log-probability.

    Args:
        logits: [..., A].
        actions: [...].
        advantages: [...], how much better than expected each action was.
        backprop: whether gradients also flow into the advantages.

    Returns:
        [...].

    Reference: disco_rl/utils.py::differentiable_policy_gradient_loss
    """
    if advantages.shape != actions.shape:
        raise ValueError(f"Advantages are {tuple(advantages.shape)}; one per action {tuple(actions.shape)} is needed.")
    log_pi_a = batch_lookup(logits.log_softmax(-1), actions)
    return -log_pi_a * (advantages if backprop else advantages.detach())
