"""Small functions over tensors that the whole port leans on.

Derivatives at a tie or a bound follow JAX, where a maximum shares its gradient evenly between equal arguments.
"""

from __future__ import annotations

import torch
from torch import Tensor

MANY = 2**18  # numbers whose mean is taken in steps


def check_tensors(**values: object) -> None:
    """Raises TypeError where a value, given by its name, is no tensor."""
    for name, x in values.items():
        if not isinstance(x, Tensor):
            kind = type(x).__name__
            raise TypeError(f"{name} is given as {kind}, not as a torch tensor; torch.as_tensor makes one of it.")


def check_actions(actions: Tensor, num_actions: int) -> None:
    """Raises ValueError or TypeError unless `actions` are integers in [0, num_actions), in a tensor."""
    check_indices(actions, num_actions, "actions", "check the action space")


def check_indices(x: Tensor, below: int, name: str, remedy: str) -> None:
    """Raises ValueError or TypeError unless these are integers in [0, below), in a tensor."""
    check_tensors(**{name: x})
    what = name.replace("_", " ").capitalize()
    if x.is_floating_point() or x.dtype == torch.bool:
        raise ValueError(f"{what} are {x.dtype}; give integers.")
    if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < below:
        raise ValueError(f"{what} run from {int(x.min())} to {int(x.max())}, outside 0 to {below - 1}; {remedy}.")


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
    """Picks `table[i, index[i]]` for each leading position i: [*I, A, ...] and integers [*I] in [0, A) to [*I, ...].

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


def gumbel_argmax(log_probs: Tensor, noise: Tensor) -> Tensor:
    """A draw from a distribution: argmax_a (log p(a) + g_a) with standard Gumbel noise g; two of [..., A] to [...]."""
    return (log_probs + noise).argmax(-1)


def two_hot(value: Tensor, num_bins: int, max_abs: float) -> Tensor:
    """Spreads each number over the two nearest of K evenly spaced bins in [-max_abs, max_abs]: [...] to [..., K].

        w_below = (b_above - x) / (b_above - b_below + 1e-5),  w_above = 1 - w_below

    Numbers outside the range are clipped to it. Because of the 1e-5, a number on a bin puts all its weight there, and
    the upper of two bins gets slightly more than its share.

    Reference: rlax/_src/transforms.py::transform_to_2hot
    """
    below, above, weight_below = nearest_bins(value, num_bins, max_abs)
    empty = value.new_zeros(*value.shape, num_bins)
    for edge, weight in ((below, weight_below), (above, 1 - weight_below)):
        place = (-1, edge.unsqueeze(-1), weight.unsqueeze(-1))
        empty = empty.scatter_add(*place) if weight.requires_grad else empty.scatter_add_(*place)
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
    return below.nan_to_num().long(), above.nan_to_num().long(), weight_below  # NaN has a weight of NaN in a bin


def from_two_hot(probs: Tensor, max_abs: float) -> Tensor:
    """Mean of a distribution over K evenly spaced bins: [..., K] to [...].

    Reference: rlax/_src/transforms.py::transform_from_2hot
    """
    return (probs * bins(probs.shape[-1], max_abs, like=probs)).sum(-1)


def bins(num_bins: int, max_abs: float, like: Tensor) -> Tensor:
    """K evenly spaced numbers in [-max_abs, max_abs], in the dtype of `like`: (2 i - (K - 1)) max_abs / (K - 1), [K].

    Reference: rlax/_src/transforms.py::transform_from_2hot
    """
    check_bins(num_bins, max_abs)
    last = num_bins - 1
    return torch.arange(-last, num_bins, 2, dtype=like.dtype, device=like.device) * (max_abs / last)


def check_bins(num_bins: int, max_abs: float) -> None:
    """Raises ValueError unless the bins describe a range."""
    if num_bins < 2 or max_abs <= 0:
        raise ValueError(f"{num_bins} bins up to {max_abs} describe no range; use 2 or more and a positive bound.")


def signed_hyperbolic(x: Tensor, eps: float = 1e-3) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, elementwise (Pohlen et al. 2018).

    It shrinks large numbers like a square root. Its linear term makes the inverse Lipschitz continuous.

    Reference: rlax/_src/transforms.py::signed_hyperbolic
    """
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + eps * x


def signed_parabolic(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Inverse of `signed_hyperbolic`: sign(x) (z^2 - 1), z = (u - 1) / (2 eps), u = sqrt(1 + 4 eps (eps + 1 + |x|)).

    Near 0, z is near 1, and z^2 - 1 loses digits. Since u^2 = (1 + 2 eps)^2 + 4 eps |x|, the difference z - 1 is
    2 |x| / (u + 1 + 2 eps), and z^2 - 1 = (z - 1) (z - 1 + 2): nothing cancels. The derivative at 0 is 0, because
    sign(0) is 0.

    Reference: rlax/_src/transforms.py::signed_parabolic
    """
    root = (1 + 4 * eps * (eps + 1 + x.abs())).sqrt()
    beyond_one = 2 * x.abs() / (root + 1 + 2 * eps)  # z - 1
    return x.sign() * (beyond_one * (beyond_one + 2))


def signed_log1p(x: Tensor) -> Tensor:
    """log(1 + |x|) with the sign of x: [...] to [...].

    Reference: rlax/_src/transforms.py::signed_logp1
    """
    return x.sign() * x.abs().log1p()


def log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities [..., A] for a divergence or an entropy, normalised twice.

    The gradient of a saturated distribution is far smaller than the terms that cancel in it. The backward pass of the
    second normalisation takes out what rounding leaves of them, so that the gradient keeps its digits.

    Reference: rlax/_src/distributions.py::categorical_kl_divergence
    """
    return logits.log_softmax(-1).log_softmax(-1)


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
    """KL(p || q) = sum_a p_a (log p_a - log q_a) of distributions given by logits: two of [..., A] to [...].

    Reference: rlax/_src/distributions.py::categorical_kl_divergence
    """
    if p_logits.shape[-1] != q_logits.shape[-1]:
        raise ValueError(f"KL between {p_logits.shape[-1]} and {q_logits.shape[-1]} categories is not defined.")
    return kl_from_log_probs(log_probs(p_logits), log_probs(q_logits))


def categorical_entropy(logits: Tensor) -> Tensor:
    """Entropy -sum_a p_a log p_a of a categorical distribution given by logits: [..., A] to [...].

    Reference: distrax/_src/distributions/categorical.py::Categorical.entropy
    """
    return entropy_from_log_probs(log_probs(logits))


def importance_weights(pi_logits: Tensor, mu_logits: Tensor, actions: Tensor) -> Tensor:
    """Ratio pi(a) / mu(a) of the learned policy to the acting one, no gradient: two of [..., A], and [...], to [...].

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
    """-log pi(a) advantage, whose gradient is the policy gradient: [..., A], [...] and [...] to [...].

    With `backprop`, gradients also flow into the advantages.

    Reference: disco_rl/utils.py::differentiable_policy_gradient_loss
    """
    if advantages.shape != actions.shape:
        raise ValueError(f"Advantages are {tuple(advantages.shape)}; one per action {tuple(actions.shape)} is needed.")
    log_pi_a = batch_lookup(logits.log_softmax(-1), actions)
    return -log_pi_a * (advantages if backprop else advantages.detach())
