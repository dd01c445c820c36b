"""Values out of network outputs, Retrace targets (the Q form; `vtrace` has the V form), and value losses."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from port import moving_average, ops
from port.distributed import Averaging
from port.fast import unique_rows
from port.fast.parallel import side_by_side
from port.fast.unique_rows import Shared
from port.types import EmaState, ValueOuts


def values_from_logits(
    net_out: Tensor, max_abs_value: float | None, categorical: bool = True, nonlinear: bool = True
) -> Tensor:
    """Scalars that a value head stands for.

    Args:
        net_out: [..., K], logits over bins; or [..., 1], the scalar itself, where not `categorical`.
        max_abs_value: the outermost bin.
        categorical: whether the head gives logits over bins.
        nonlinear: whether the head speaks in signed-hyperbolic units.

    Returns:
        [...].

    Reference: disco_rl/value_fns/value_utils.py::get_values_from_net_outs
    """
    if categorical:
        values = ops.from_two_hot(net_out.softmax(-1), _bound(max_abs_value))
    elif net_out.shape[-1] == 1:
        values = net_out.squeeze(-1)
    else:
        raise ValueError(f"A value head of {net_out.shape[-1]} outputs is no scalar; pass categorical=True.")
    return ops.signed_parabolic(values) if nonlinear else values


def _bound(max_abs_value: float | None) -> float:
    if max_abs_value is None:
        raise ValueError("Categorical values need max_abs_value, the value of the outermost bin.")
    return max_abs_value


def q_and_v(
    q_net_out: Tensor | Shared,
    pi_logits: Tensor,
    max_abs_value: float | None,
    categorical: bool = True,
    nonlinear: bool = True,
) -> tuple[Tensor, Tensor]:
    """Action values and their mean under the policy.

    Args:
        q_net_out: [T+1, B, A, K], the whole of it or what states share of it.
        pi_logits: [T+1, B, A], of the online policy, for online and target values alike.
        max_abs_value: the outermost bin.
        categorical: as in `values_from_logits`.
        nonlinear: as in `values_from_logits`.

    Returns:
        Q-values [T+1, B, A] and values [T+1, B].

    Reference: disco_rl/value_fns/value_utils.py::extract_scalar_values_from_net_out
    """
    shared = unique_rows.mapped(q_net_out, lambda x: values_from_logits(x, max_abs_value, categorical, nonlinear))
    q_values = unique_rows.spread(shared)
    return q_values, (pi_logits.softmax(-1) * q_values).sum(-1)


def retrace(target_q_a: Tensor, target_values: Tensor, rewards: Tensor, discounts: Tensor, traces: Tensor) -> Tensor:
    """Retrace targets of the action values; no gradient.

    The target of step t is r_t + d_t (V_{t+1} + c_{t+1} (G_{t+1} - Q_{t+1})), and r + d V at the last step.

    Args:
        target_q_a: [T, B], target Q-values of the actions taken.
        target_values: [T+1, B].
        rewards: [T, B], reward of each transition.
        discounts: [T, B], 0 where the transition ended the episode.
        traces: [T, B], the cutting weights c.

    Returns:
        [T, B].

    Reference: rlax/_src/multistep.py::general_off_policy_returns_from_q_and_v
    """
    T, B = rewards.shape
    if target_values.shape != (T + 1, B):
        raise ValueError(f"Values are {tuple(target_values.shape)}; with {T} transitions of {B} they must be [T+1, B].")
    for name, x in (("Action values", target_q_a), ("Discounts", discounts), ("Traces", traces)):
        if x.shape != (T, B):
            raise ValueError(f"{name} are {tuple(x.shape)}; with {T} transitions of {B} they must be [T, B].")
    held = (x.detach() for x in (target_q_a, target_values, rewards, discounts, traces))
    target_q_a, target_values, rewards, discounts, traces = held
    target = rewards[-1] + discounts[-1] * target_values[-1]  # [B]
    targets = [target]
    for t in range(T - 2, -1, -1):
        trace = traces[t + 1]
        corrected = target_values[t + 1] - trace * target_q_a[t + 1] + trace * target
        target = rewards[t] + discounts[t] * corrected
        targets.append(target)
    return torch.stack(targets[::-1])


def estimate_q_values(
    rewards: Tensor,
    actions: Tensor,
    continues: Tensor,
    rho: Tensor,
    values: Tensor,
    target_values: Tensor,
    q_values: Tensor,
    target_q_values: Tensor,
    discount: float,
    lambda_: float,
) -> ValueOuts:
    """Targets, errors and advantages by Retrace; the normalised fields are zero.

    Args:
        rewards: [T, B], reward of each transition.
        actions: [T, B].
        continues: [T, B], 0 where the transition ended the episode, else 1.
        rho: [T, B], importance weights.
        values: [T+1, B].
        target_values: [T+1, B].
        q_values: [T+1, B, A].
        target_q_values: [T+1, B, A].
        discount: per step.
        lambda_: of the traces.

    Returns:
        All fields of `ValueOuts`.

    Reference: disco_rl/value_fns/value_utils.py::estimate_q_values
    """
    q_a = ops.batch_lookup(q_values[:-1], actions)  # [T, B]
    target_q_a = ops.batch_lookup(target_q_values[:-1], actions)
    clipped_rho = torch.minimum(rho, torch.ones_like(rho))
    q_target = retrace(target_q_a, target_values, rewards, continues * discount, lambda_ * clipped_rho)

    adv = q_target - target_values[:-1]
    value_target = target_values[:-1] + clipped_rho * adv
    qv_adv = target_q_values - target_values.unsqueeze(-1)  # [T+1, B, A]
    unset = torch.zeros_like(adv)
    return ValueOuts(
        value=values,
        target_value=target_values,
        rho=rho,
        adv=adv,
        normalized_adv=unset,
        value_target=value_target,
        td=value_target - values[:-1],
        normalized_td=unset,
        qv_adv=qv_adv,
        normalized_qv_adv=torch.zeros_like(qv_adv),
        q_value=q_values,
        target_q_value=target_q_values,
        q_target=q_target,
        q_td=q_target - q_a,
        normalized_q_td=unset,
    )


def value_outs(
    q_net_out: Tensor | Shared,
    target_q_net_out: Tensor | Shared,
    pi_logits: Tensor,
    mu_logits: Tensor,
    actions: Tensor,
    rewards: Tensor,
    is_terminal: Tensor,
    adv_ema: EmaState,
    td_ema: EmaState,
    discount: float,
    lambda_: float,
    max_abs_value: float | None,
    decay: float = 0.99,
    eps: float = 1e-6,
    categorical: bool = True,
    nonlinear: bool = True,
    averaging: Averaging | None = None,
) -> tuple[ValueOuts, EmaState, EmaState]:
    """Value estimates in the Q form, with advantages and errors normalised by moving averages.

    The averages are updated first, so that a batch is normalised by moments that include it.

    Args:
        q_net_out: [T+1, B, A, K], online.
        target_q_net_out: [T+1, B, A, K].
        pi_logits: [T+1, B, A], online policy.
        mu_logits: [T+1, B, A], the policy that acted.
        actions: [T+1, B]; the last one is not used.
        rewards: [T, B], reward of each transition.
        is_terminal: [T, B].
        adv_ema: moments of the advantages.
        td_ema: moments of the Q errors.
        discount: per step.
        lambda_: of the traces.
        max_abs_value: the outermost bin.
        decay: of both averages.
        eps: of both normalisations.
        categorical: as in `values_from_logits`.
        nonlinear: as in `values_from_logits`.
        averaging: over ranks, of the moments.

    Returns:
        The estimates and the two new averages.

    Reference: disco_rl/value_fns/value_utils.py::get_value_outs
    """
    form = (pi_logits, max_abs_value, categorical, nonlinear)
    heads = {"online": q_net_out, "target": target_q_net_out}
    found = side_by_side({of: partial(q_and_v, head, *form) for of, head in heads.items()})
    (q_values, values), (target_q, target_values) = found["online"], found["target"]
    taken = actions[:-1]
    rho = ops.importance_weights(pi_logits[:-1], mu_logits[:-1], taken)
    continues = 1.0 - is_terminal.to(rho.dtype)
    outs = estimate_q_values(
        rewards, taken, continues, rho, values, target_values, q_values, target_q, discount, lambda_
    )
    adv_ema = moving_average.update(adv_ema, outs.adv, decay, averaging)
    td_ema = moving_average.update(td_ema, outs.q_td, decay, averaging)
    outs = outs._replace(
        normalized_adv=moving_average.normalize(outs.adv, adv_ema, eps),
        normalized_qv_adv=moving_average.normalize(outs.qv_adv, adv_ema, eps),
        normalized_q_td=moving_average.normalize(outs.q_td, td_ema, eps, subtract_mean=False),
    )
    return outs, adv_ema, td_ema


def value_loss_from_target(
    net_out: Tensor,
    value_target: Tensor,
    max_abs_value: float | None = None,
    categorical: bool = False,
    nonlinear: bool = False,
) -> Tensor:
    """Distance of a value head from a target; gradients flow into the target too, unless the caller stops them.

    Args:
        net_out: [..., K] or [..., 1].
        value_target: [...].
        max_abs_value: the outermost bin.
        categorical: cross-entropy against the two-hot target, else half the squared error.
        nonlinear: whether the head speaks in signed-hyperbolic units.

    Returns:
        [...].

    Reference: disco_rl/value_fns/value_utils.py::value_loss_from_target
    """
    if net_out.shape[:-1] != value_target.shape:
        raise ValueError(f"A head of {tuple(net_out.shape)} does not fit a target of {tuple(value_target.shape)}.")
    if nonlinear:
        value_target = ops.signed_hyperbolic(value_target)
    if not categorical:
        return 0.5 * (net_out.squeeze(-1) - value_target).square()
    target_probs = ops.two_hot(value_target, net_out.shape[-1], _bound(max_abs_value))
    return -(target_probs * net_out.log_softmax(-1)).sum(-1)


def value_loss_from_td(
    net_out: Tensor | Shared,
    td: Tensor,
    max_abs_value: float | None = None,
    categorical: bool = False,
    nonlinear: bool = False,
) -> Tensor:
    """Distance of a value head from its own value plus an error, which is held constant.

    Args:
        net_out: [..., K] or [..., 1]; or [T, B, K] as states share it, if `categorical`.
        td: [...].
        max_abs_value: as in `value_loss_from_target`.
        categorical: as in `value_loss_from_target`.
        nonlinear: as in `value_loss_from_target`.

    Returns:
        [...].

    Reference: disco_rl/value_fns/value_utils.py::value_loss_from_td
    """
    held = unique_rows.mapped(net_out, lambda x: values_from_logits(x.detach(), max_abs_value, categorical, nonlinear))
    target = unique_rows.spread(held) + td.detach()
    if isinstance(net_out, Shared):
        return _shared_cross_entropy(net_out, ops.signed_hyperbolic(target) if nonlinear else target, max_abs_value)
    return value_loss_from_target(net_out, target, max_abs_value, categorical, nonlinear)


def _shared_cross_entropy(net_out: Shared, target: Tensor, max_abs_value: float | None) -> Tensor:
    """Cross-entropy of two-hot targets [T, B] and logits over bins [T, B, K]: only two bins of each target are read.

    Reference: disco_rl/value_fns/value_utils.py::value_loss_from_target
    """
    log_probs = net_out.rows[0].log_softmax(-1)  # [U, K]
    K = log_probs.shape[-1]
    below, above, weight_below = ops.nearest_bins(target.flatten(), K, _bound(max_abs_value))
    places = torch.cat((net_out.of * K + below, net_out.of * K + above))
    at_below, at_above = log_probs.view(-1).index_select(0, places).chunk(2)
    return -(weight_below * at_below + (1 - weight_below) * at_above).view_as(target)
