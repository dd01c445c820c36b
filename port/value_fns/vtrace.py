"""Value estimates without action values: V-trace, and the V form of the value outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from port import ops
from port.distributed import Averaging
from port.types import EmaState, ValueOuts
from port.value_fns import value_utils


def vtrace(
    target_values: Tensor, rewards: Tensor, discounts: Tensor, rho: Tensor, lambda_: float
) -> tuple[Tensor, Tensor]:
    """V-trace targets of the state values (Espeholt et al. 2018), and advantages for a policy gradient.

        delta_t = c_t (r_t + d_t V_{t+1} - V_t),  v_t - V_t = delta_t + d_t c_t lambda (v_{t+1} - V_{t+1})
        A_t = c_t (r_t + d_t (lambda v_{t+1} + (1 - lambda) V_{t+1}) - V_t),  with c = min(1, rho)

    The targets carry no gradient. The advantage bootstraps from a mixture, by lambda, of the next target and the next
    value, and gradients flow through the value's part of it.

    Args:
        target_values: [T+1, B].
        rewards: [T, B], reward of each transition.
        discounts: [T, B], 0 where the transition ended the episode.
        rho: [T, B], importance weights.
        lambda_: of the traces.

    Returns:
        Targets and advantages, [T, B] each.

    Reference: rlax/_src/vtrace.py::vtrace_td_error_and_advantage
    """
    T, B = rewards.shape
    if target_values.shape != (T + 1, B):
        raise ValueError(f"Values are {tuple(target_values.shape)}; with {T} transitions of {B} they must be [T+1, B].")
    if not discounts.shape == rho.shape == (T, B):
        got = f"{tuple(discounts.shape)} and {tuple(rho.shape)}"
        raise ValueError(f"Discounts and importance weights are {got}; with {T} transitions of {B} both are [T, B].")
    clipped_rho = torch.minimum(rho, torch.ones_like(rho))
    # Detached, not under no_grad, which would let the tangents of forward mode pass.
    value, reward, discount, weight = (x.detach() for x in (target_values, rewards, discounts, clipped_rho))
    targets = _vtrace_targets(value, reward, discount, weight, lambda_)
    bootstrap = torch.cat((lambda_ * targets[1:] + (1 - lambda_) * target_values[1:-1], target_values[-1:]))
    return targets, clipped_rho * (rewards + discounts * bootstrap - target_values[:-1])


def _vtrace_targets(
    target_values: Tensor, rewards: Tensor, discounts: Tensor, clipped_rho: Tensor, lambda_: float
) -> Tensor:
    """V-trace targets [T, B]; arguments as of `vtrace`."""
    tds = clipped_rho * (rewards + discounts * target_values[1:] - target_values[:-1])
    traces = discounts * clipped_rho * lambda_
    error = torch.zeros_like(tds[0])  # [B], of the step after
    errors = []
    for t in reversed(range(len(tds))):
        error = tds[t] + traces[t] * error
        errors.append(error)
    return torch.stack(errors[::-1]) + target_values[:-1]


def estimate_values(
    rewards: Tensor,
    continues: Tensor,
    rho: Tensor,
    values: Tensor,
    target_values: Tensor,
    discount: float,
    lambda_: float,
) -> ValueOuts:
    """Targets, errors and advantages by V-trace; the normalised fields, and all that is about actions, are zero.

    Args:
        rewards: [T, B], reward of each transition.
        continues: [T, B], 0 where the transition ended the episode, else 1.
        rho: [T, B], importance weights.
        values: [T+1, B].
        target_values: [T+1, B].
        discount: per step.
        lambda_: of the traces.

    Returns:
        All fields of `ValueOuts`; those about actions are [T, B].

    Reference: disco_rl/value_fns/value_utils.py::estimate_values
    """
    value_target, adv = vtrace(target_values, rewards, continues * discount, rho, lambda_)
    return ValueOuts.of(
        rho=rho,
        value=values,
        td=value_target - values[:-1],
        target_value=target_values,
        value_target=value_target,
        adv=adv,
    )


def value_outs(
    value_net_out: Tensor,
    pi_logits: Tensor,
    mu_logits: Tensor,
    actions: Tensor,
    rewards: Tensor,
    continues: Tensor,
    averages: tuple[EmaState, EmaState],
    settings: value_utils.ValueSettings,
    drop_last: bool = False,
    target_value_net_out: Tensor | None = None,
    averaging: Averaging | None = None,
) -> tuple[ValueOuts, EmaState, EmaState]:
    """Value estimates in the V form, with advantages and errors normalised by moving averages.

    `drop_last` is for what an actor recorded: its rewards and continuations have as many steps as its observations, and
    the last of each is left out. They are not shifted: the reward that came with observation t counts for the
    transition from t to t+1, and the one before the first transition is used.

    Args:
        value_net_out: [T+1, B, K], logits over bins, or [T+1, B, 1], scalars.
        pi_logits: [T+1, B, A], online policy.
        mu_logits: [T+1, B, A], the policy that acted.
        actions: [T+1, B]; the last one is not used.
        rewards: [T, B], reward of each transition; [T+1, B] with `drop_last`.
        continues: like `rewards`; 0 (or False) where the episode ended, else 1.
        averages: moments of the advantages, and of the value errors.
        settings: numbers.
        drop_last: whether the last reward and continuation are left out.
        target_value_net_out: like `value_net_out`, to bootstrap from; the online one if left out.
        averaging: over ranks, of the moments.

    Returns:
        The estimates and the two new averages.

    Reference: disco_rl/value_fns/value_utils.py::get_value_outs
    """
    steps = value_net_out.shape[0] - (not drop_last)
    for name, x in (("Rewards", rewards), ("Continuations", continues)):
        if x.shape != (steps, value_net_out.shape[1]):
            raise ValueError(f"{name} are {tuple(x.shape)}; values of {tuple(value_net_out.shape)} need {steps} steps.")
    if drop_last:
        rewards, continues = rewards[:-1], continues[:-1]
    target_net_out = value_net_out if target_value_net_out is None else target_value_net_out
    net_outs = (value_net_out, target_net_out)
    online_values, target_values = (value_utils.values_from_logits(x, settings.form) for x in net_outs)
    rho = ops.importance_weights(pi_logits[:-1], mu_logits[:-1], actions[:-1])
    discounting = (settings.discount, settings.lambda_)
    outs = estimate_values(rewards, continues.to(rho.dtype), rho, online_values, target_values, *discounting)
    return value_utils.normalized(outs, "td", averages, settings, averaging)
