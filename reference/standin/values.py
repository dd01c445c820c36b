"""The value path: scalars from a network's output, Retrace, advantages and TD errors, value losses."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import rlax

from reference.flat_dict import Array, Tensors
from reference.standin.elementary import (
    Moments,
    importance_weight,
    lookup,
    mean_of_bins,
    normalize_by_moments,
    two_hot,
    update_moments,
)

SQUASH, UNSQUASH = rlax.SIGNED_HYPERBOLIC_PAIR


class ValueForm(NamedTuple):
    """How a network's output stands for a value.

    Attributes:
        max_abs_value: the outermost bin.
        categorical: whether the output is logits of bins; if not, it is the value itself.
        nonlinear: whether what the output stands for is the squashed value.
    """

    max_abs_value: float
    categorical: bool = True
    nonlinear: bool = True


def scalar_value(net_out: Array, form: ValueForm) -> Array:
    """[..., K] -> [...]: the value that a network's output stands for.

    Reference: disco_rl/value_fns/value_utils.py::get_values_from_net_outs
    """
    value = mean_of_bins(jax.nn.softmax(net_out), form.max_abs_value) if form.categorical else net_out[..., 0]
    return UNSQUASH(value) if form.nonlinear else value


def q_and_v(q_logits: Array, pi_logits: Array, form: ValueForm) -> tuple[Array, Array]:
    """Action values [T+1, B, A] from logits [T+1, B, A, K], and state values [T+1, B] as their average under a policy.

    Reference: disco_rl/value_fns/value_utils.py::extract_scalar_values_from_net_out
    """
    q = scalar_value(q_logits, form)
    return q, jnp.sum(jax.nn.softmax(pi_logits) * q, axis=2)


def value_loss(net_out: Array, target: Array, form: ValueForm) -> Array:
    """Cross-entropy to the target's two bins, or half the squared error: [T, B, K] and [T, B] to [T, B].

    The target's gradient is not stopped here.

    Reference: disco_rl/value_fns/value_utils.py::value_loss_from_target
    """
    target = SQUASH(target) if form.nonlinear else target
    if not form.categorical:
        return 0.5 * jnp.square(net_out[..., 0] - target)
    return optax.softmax_cross_entropy(net_out, two_hot(target, net_out.shape[-1], form.max_abs_value))


def value_loss_from_td(net_out: Array, td: Array, form: ValueForm) -> Array:
    """The loss to the value that would have had no TD error, held constant: [T, B, K], [T, B] -> [T, B].

    Reference: disco_rl/value_fns/value_utils.py::value_loss_from_td
    """
    return value_loss(net_out, jax.lax.stop_gradient(scalar_value(net_out, form) + td), form)


class Steps(NamedTuple):
    """What happened in each transition.

    Attributes:
        rewards: [T, B].
        actions: [T, B].
        continues: [T, B], 0 where the transition ended the episode, else 1.
        rho: [T, B], importance weight of the action.
    """

    rewards: Array
    actions: Array
    continues: Array
    rho: Array


def retrace(steps: Steps, values: Array, q_values: Array, discount: float, lambda_: float) -> Array:
    """Retrace targets [T, B] of the actions taken; without gradient.

    G[t] = r[t] + discount continues[t] (V[t+1] - c[t+1] Q[t+1] + c[t+1] G[t+1]) with c = lambda min(1, rho), Q of the
    action taken, and V[T] in the place of all that follows the last transition.

    Reference: disco_rl/value_fns/value_utils.py::estimate_q_values
    """
    taken = lookup(q_values[:-1], steps.actions)  # [T, B]
    weights = lambda_ * jnp.minimum(steps.rho, 1.0)
    returns = jax.vmap(rlax.general_off_policy_returns_from_q_and_v, in_axes=1, out_axes=1)
    targets = returns(taken[1:], values[1:], steps.rewards, steps.continues * discount, weights[1:])
    return jax.lax.stop_gradient(targets)


def estimates(steps: Steps, online: tuple[Array, Array], target: tuple[Array, Array], returns: Array) -> Tensors:
    """Targets, advantages and TD errors.

    Args:
        steps: [T, B] each.
        online: Q [T+1, B, A] and V [T+1, B] of the network that learns.
        target: the same of the target network.
        returns: [T, B], of the actions taken.

    Returns:
        [T, B]: `q_target`, `value_target`, `adv`, `td`, `q_td`; [T+1, B, A]: `qv_adv`.

    Reference: disco_rl/value_fns/value_utils.py::estimate_q_values
    """
    (q, v), (target_q, target_v) = online, target
    adv = returns - target_v[:-1]
    value_target = target_v[:-1] + jnp.minimum(steps.rho, 1.0) * adv
    return {
        "q_target": returns,
        "value_target": value_target,
        "adv": adv,
        "td": value_target - v[:-1],
        "q_td": returns - lookup(q[:-1], steps.actions),
        "qv_adv": target_q - target_v[..., None],
    }


class ValueSettings(NamedTuple):
    """The numbers of the value path.

    Attributes:
        form: what the logits of Q stand for.
        discount: of one step.
        lambda_: of Retrace.
        decay: of the moving averages.
        eps: beside the deviations.
        axis: of devices, over which moments are averaged.
    """

    form: ValueForm
    discount: float
    lambda_: float
    decay: float
    eps: float
    axis: str | None = None


class Averages(NamedTuple):
    """Moving averages of advantages and of TD errors."""

    adv_ema: Moments
    td_ema: Moments


def normalized(estimated: Tensors, averages: Averages, s: ValueSettings) -> tuple[Tensors, Averages]:
    """Advantages and TD errors in units of their own deviation, in which this batch is counted already.

    TD errors keep their mean. The state's TD error is not normalised: where there are action values it is not used.

    Reference: disco_rl/value_fns/value_utils.py::get_value_outs
    """
    adv = update_moments(estimated["adv"], averages.adv_ema, s.decay, s.axis)
    td = update_moments(estimated["q_td"], averages.td_ema, s.decay, s.axis)
    outs = {
        "normalized_adv": normalize_by_moments(estimated["adv"], adv, s.eps),
        "normalized_qv_adv": normalize_by_moments(estimated["qv_adv"], adv, s.eps),
        "normalized_td": jnp.zeros_like(estimated["td"]),
        "normalized_q_td": normalize_by_moments(estimated["q_td"], td, s.eps, subtract_mean=False),
    }
    return outs, Averages(adv, td)


def value_outs(experience: Tensors, averages: Averages, s: ValueSettings) -> tuple[Tensors, Averages]:
    """All that is known of values from a trajectory.

    Args:
        experience: `q_logits` and `target_q_logits` [T+1, B, A, K]; `pi_logits` of the online policy and `mu_logits` of
            the one that acted, [T+1, B, A]; `actions` [T+1, B]; `rewards` and `is_terminal` [T, B].
        averages: of the past.
        s: settings.

    Returns:
        The outputs of `estimates` and `normalized`, the values behind them, `rho`; and the averages carried on.

    Reference: disco_rl/value_fns/value_utils.py::get_value_outs
    """
    e, taken = experience, experience["actions"][:-1]
    q, v = q_and_v(e["q_logits"], e["pi_logits"], s.form)
    target_q, target_v = q_and_v(e["target_q_logits"], e["pi_logits"], s.form)  # the online policy here as well
    rho = importance_weight(e["pi_logits"][:-1], e["mu_logits"][:-1], taken)
    steps = Steps(e["rewards"], taken, 1.0 - e["is_terminal"], rho)
    returns = retrace(steps, target_v, target_q, s.discount, s.lambda_)
    estimated = estimates(steps, (q, v), (target_q, target_v), returns)
    in_deviations, averages = normalized(estimated, averages, s)
    values = {"q_value": q, "value": v, "target_q_value": target_q, "target_value": target_v}
    return {**values, "rho": rho, **estimated, **in_deviations}, averages
