"""Values out of network outputs, Retrace targets (the Q form; `vtrace` has the V form), and value losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from port import moving_average, ops
from port.distributed import Averaging
from port.types import EmaState, RuleInputs, ValueOuts


class ValueForm(NamedTuple):
    """How the output of a value head stands for a value.

    Attributes:
        max_abs_value: the outermost bin, for categorical heads.
        categorical: whether the head gives logits over bins; if not, it gives the scalar itself.
        nonlinear: whether the head stands for the signed hyperbolic h of the value (Pohlen et al. 2018).
    """

    max_abs_value: float | None = None
    categorical: bool = True
    nonlinear: bool = True

    @property
    def bound(self) -> float:
        """The outermost bin, or ValueError."""
        if self.max_abs_value is None:
            raise ValueError("Categorical values need max_abs_value, the value of the outermost bin.")
        return self.max_abs_value


@dataclass(frozen=True)
class ValueSettings:
    """The numbers of the value estimates.

    Attributes:
        form: how the heads stand for values.
        discount: per step.
        lambda_: of the traces.
        decay: of the moving averages of advantages and errors.
        eps: of the normalisation by them.
    """

    form: ValueForm
    discount: float
    lambda_: float
    decay: float = 0.99
    eps: float = 1e-6


def values_from_logits(net_out: Tensor, form: ValueForm) -> Tensor:
    """Scalars that a value head stands for: [..., K], or [..., 1] where not categorical, to [...].

    Reference: disco_rl/value_fns/value_utils.py::get_values_from_net_outs
    """
    if form.categorical:
        values = ops.from_two_hot(net_out.softmax(-1), form.bound)
    elif net_out.shape[-1] == 1:
        values = net_out.squeeze(-1)
    else:
        raise ValueError(f"A value head of {net_out.shape[-1]} outputs is no scalar; pass categorical=True.")
    return ops.signed_parabolic(values) if form.nonlinear else values


def policy_mean(q_values: Tensor, pi_logits: Tensor) -> Tensor:
    """V(s) = sum_a pi(a|s) Q(s, a): two of [..., A] to [...].

    Reference: disco_rl/value_fns/value_utils.py::extract_scalar_values_from_net_out
    """
    return (pi_logits.softmax(-1) * q_values).sum(-1)


def retrace(target_q_a: Tensor, target_values: Tensor, rewards: Tensor, discounts: Tensor, traces: Tensor) -> Tensor:
    """Retrace targets of the action values (Munos et al. 2016); no gradient.

        G_t = r_t + d_t (V_{t+1} + c_{t+1} (G_{t+1} - Q_{t+1}(a_{t+1}))),  and r + d V at the last step

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
    constants = (x.detach() for x in (target_q_a, target_values, rewards, discounts, traces))
    target_q_a, target_values, rewards, discounts, traces = constants
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

    With G of `retrace` and c = min(1, rho): the advantage is G - V, the error of an action value G - Q(a), and the
    target of a state's value V + c (G - V), all V of the target network.

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
    return ValueOuts.of(
        rho=rho,
        value=values,
        td=value_target - values[:-1],
        target_value=target_values,
        value_target=value_target,
        adv=adv,
        qv_adv=qv_adv,
        normalized_qv_adv=torch.zeros_like(qv_adv),
        q_value=q_values,
        target_q_value=target_q_values,
        q_target=q_target,
        q_td=q_target - q_a,
    )


def value_outs(
    q_values: Tensor,
    target_q_values: Tensor,
    inputs: RuleInputs,
    averages: tuple[EmaState, EmaState],
    settings: ValueSettings,
    averaging: Averaging | None = None,
) -> tuple[ValueOuts, EmaState, EmaState]:
    """Value estimates in the Q form, with advantages and errors normalised by moving averages.

    Args:
        q_values: [T+1, B, A], online.
        target_q_values: [T+1, B, A].
        inputs: the rollout; the logits of both policies are read, actions, rewards and ends of episodes.
        averages: moments of the advantages, and of the Q errors.
        settings: numbers.
        averaging: over ranks, of the moments.

    Returns:
        The estimates and the two new averages.

    Reference: disco_rl/value_fns/value_utils.py::get_value_outs
    """
    pi_logits, mu_logits = inputs.agent_out["logits"], inputs.behaviour_agent_out["logits"]
    values, target_values = (policy_mean(x, pi_logits) for x in (q_values, target_q_values))
    actions = inputs.actions[:-1]
    rho = ops.importance_weights(pi_logits[:-1], mu_logits[:-1], actions)
    continues = 1.0 - inputs.is_terminal.to(rho.dtype)
    estimates = (values, target_values, q_values, target_q_values)
    outs = estimate_q_values(inputs.rewards, actions, continues, rho, *estimates, settings.discount, settings.lambda_)
    return normalized(outs, "q_td", averages, settings, averaging)


def normalized(
    outs: ValueOuts,
    error: str,
    averages: tuple[EmaState, EmaState],
    settings: ValueSettings,
    averaging: Averaging | None = None,
) -> tuple[ValueOuts, EmaState, EmaState]:
    """Fills the normalised fields: advantages, and the errors that form the loss, which keep their mean.

    The averages are updated first, so that a batch is normalised by moments that include it.

    Args:
        outs: the estimates.
        error: the field of the errors, `q_td` in the Q form and `td` in the V form.
        averages: moments of the advantages, and of the errors.
        settings: numbers.
        averaging: over ranks, of the moments.

    Returns:
        The estimates and the two new averages.

    Reference: disco_rl/value_fns/value_utils.py::get_value_outs
    """
    eps, decay, errors = settings.eps, settings.decay, getattr(outs, error)
    adv_ema = moving_average.update(averages[0], outs.adv, decay, averaging)
    td_ema = moving_average.update(averages[1], errors, decay, averaging)
    normalized_errors = moving_average.normalize(errors, td_ema, eps, subtract_mean=False)
    outs = outs._replace(
        normalized_adv=moving_average.normalize(outs.adv, adv_ema, eps),
        # There is no such advantage in the V form; the original normalises its zeros all the same.
        normalized_qv_adv=moving_average.normalize(outs.qv_adv, adv_ema, eps),
        **{f"normalized_{error}": normalized_errors},
    )
    return outs, adv_ema, td_ema


def value_loss_from_target(net_out: Tensor, value_target: Tensor, form: ValueForm) -> Tensor:
    """Distance of a value head from a target: [..., K] or [..., 1], and [...], to [...].

        -sum_k two_hot(h(target))_k log softmax(net_out)_k,  or 0.5 (net_out - h(target))^2 for a scalar head

    with h the signed hyperbolic, or the identity for a linear head. Gradients flow into the target too.

    Reference: disco_rl/value_fns/value_utils.py::value_loss_from_target
    """
    if net_out.shape[:-1] != value_target.shape:
        raise ValueError(f"A head of {tuple(net_out.shape)} does not fit a target of {tuple(value_target.shape)}.")
    if form.nonlinear:
        value_target = ops.signed_hyperbolic(value_target)
    if not form.categorical:
        return 0.5 * (net_out.squeeze(-1) - value_target).square()
    target_probs = ops.two_hot(value_target, net_out.shape[-1], form.bound)
    return -(target_probs * net_out.log_softmax(-1)).sum(-1)


def value_loss_from_td(net_out: Tensor, td: Tensor, form: ValueForm) -> Tensor:
    """Distance of a value head from its own value plus an error, which is held constant: [..., K], [...] to [...].

    Reference: disco_rl/value_fns/value_utils.py::value_loss_from_td
    """
    target = values_from_logits(net_out.detach(), form) + td.detach()
    return value_loss_from_target(net_out, target, form)
