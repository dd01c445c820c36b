"""What is one formula: input transforms, lookups, two-hot, KL and entropy, moving averages.

Letters, here and in all of the stand-in: T transitions (the bootstrapped axis is T+1), B batch, A actions, P prediction
size, K value bins, H and M the hidden sizes of the trajectory RNN and of the meta-RNN; C, E and O are free widths.
"""

from __future__ import annotations

from typing import NamedTuple

import distrax
import jax
import jax.numpy as jnp
import rlax

from reference.flat_dict import Array

ROOT_EPS = 1e-12  # under the root of a variance, so that its derivative stays finite
NORMALIZE_DECAY, NORMALIZE_EPS = 0.99, 1e-6  # of the transform `normalize`


def lookup(table: Array, index: Array) -> Array:
    """`table[t, b, index[t, b]]`: [T, B, A, ...] and integers [T, B] below A to [T, B, ...].

    Reference: disco_rl/utils.py::batch_lookup
    """
    T, B = index.shape
    return table[jnp.arange(T)[:, None], jnp.arange(B), index]


def td_pair(x: Array) -> Array:
    """[T+1, B, E] -> [T, B, 2E]: the values at t beside those at t+1, as a TD error needs them.

    Reference: disco_rl/update_rules/input_transforms.py::td_pair
    """
    return jnp.concatenate([x[:-1], x[1:]], axis=-1)


def policy_average(x: Array, policy: Array) -> Array:
    """Averages over the actions.

    Args:
        x: [T, B, A, E].
        policy: [T, B, A], the weight of each action.

    Returns:
        [T, B, E].

    Reference: disco_rl/update_rules/input_transforms.py::PiWeightedAvg
    """
    return jnp.sum(x * policy[..., None], axis=2)


_AS_THEY_ARE = {"softmax": jax.nn.softmax, "sign": jnp.sign, "stop_grad": jax.lax.stop_gradient, "td_pair": td_pair}
_SQUASHING = {
    "sign_hyp": rlax.signed_hyperbolic,
    "sign_log": rlax.signed_logp1,
    "clip": lambda x: jnp.clip(x, -2.0, 2.0),
}
_SHAPING = {"drop_last": lambda x: x[:-1], "max_a": lambda x: x.max(axis=2), "identity": lambda x: x}
TRANSFORMS = {**_AS_THEY_ARE, **_SQUASHING, **_SHAPING, "masks_to_discounts": lambda ends: 1.0 - ends}


class Debiased(NamedTuple):
    """A moving average that starts at zero and counts its updates, so that the start can be divided out.

    Attributes:
        hidden: [1, 1, E], the average before division.
        counter: [], number of updates.
    """

    hidden: Array
    counter: Array

    def update(self, value: Array, decay: Array) -> Debiased:
        """Takes one more value of the shape of `hidden` in."""
        return Debiased(self.hidden * decay + value * (1.0 - decay), self.counter + 1)

    def average(self, decay: Array) -> Array:
        """The average with the weight of the zero at the start divided out."""
        return self.hidden / (1.0 - decay**self.counter)


def normalize_by_history(
    x: Array, m1: Debiased, m2: Debiased, axis: str | None = None
) -> tuple[Array, Debiased, Debiased]:
    """The transform `normalize`: mean and variance of each feature over time, batch and the past.

    Args:
        x: [T, B, E].
        m1: moving average of x, [1, 1, E].
        m2: moving average of its square, [1, 1, E].
        axis: of devices, over which both are averaged.

    Returns:
        [T, B, E], and both averages after this x was taken in; x is normalised by these.

    Reference: disco_rl/update_rules/input_transforms.py::EmaNorm
    """
    decay = jnp.asarray(NORMALIZE_DECAY, x.dtype)  # rounded once, so that 1 - decay cancels at the first update
    m1 = m1.update(over_devices(jnp.mean(x, axis=(0, 1), keepdims=True), axis), decay)
    m2 = m2.update(over_devices(jnp.mean(jnp.square(x), axis=(0, 1), keepdims=True), axis), decay)
    mean = m1.average(decay)
    variance = jnp.maximum(m2.average(decay) - jnp.square(mean), 0.0)
    return (x - mean) / (jnp.sqrt(variance + ROOT_EPS) + NORMALIZE_EPS), m1, m2


def two_hot(value: Array, num_bins: int, max_abs_value: float) -> Array:
    """[T, B] -> [T, B, K]: each value as weights on the two nearest of K bins from -max_abs_value to max_abs_value.

    Reference: disco_rl/value_fns/value_utils.py::scalar_to_categorical_value
    """
    return rlax.transform_to_2hot(value, -max_abs_value, max_abs_value, num_bins)


def mean_of_bins(probs: Array, max_abs_value: float) -> Array:
    """[..., K] -> [...]: the inverse of `two_hot`.

    Reference: disco_rl/value_fns/value_utils.py::value_logits_to_scalar
    """
    return rlax.transform_from_2hot(probs, -max_abs_value, max_abs_value, probs.shape[-1])


def kl(p_logits: Array, q_logits: Array) -> Array:
    """[..., A], [..., A] -> [...]: KL(softmax p || softmax q)."""
    return distrax.Softmax(p_logits).kl_divergence(distrax.Softmax(q_logits))


def entropy(logits: Array) -> Array:
    """[..., A] -> [...]: entropy of the softmax."""
    return distrax.Softmax(logits).entropy()


def importance_weight(pi_logits: Array, mu_logits: Array, actions: Array) -> Array:
    """How much likelier an action is under one policy than under the one that took it; without gradient.

    Args:
        pi_logits: [T, B, A], of the policy that learns.
        mu_logits: [T, B, A], of the policy that acted.
        actions: [T, B], what was done.

    Returns:
        [T, B], pi(a) / mu(a).

    Reference: disco_rl/value_fns/value_utils.py::importance_weight
    """
    log_ratio = distrax.Softmax(pi_logits).log_prob(actions) - distrax.Softmax(mu_logits).log_prob(actions)
    return jax.lax.stop_gradient(jnp.exp(log_ratio))


class Moments(NamedTuple):
    """A moving average of all elements of an array and of their squares.

    Attributes:
        moment1: [], decayed sum of means.
        moment2: [], decayed sum of mean squares.
        decay_product: [], weight that the zeros at the start still have.
    """

    moment1: Array
    moment2: Array
    decay_product: Array


def over_devices(x: Array, axis: str | None) -> Array:
    """The mean over devices, where a layer is mapped over an axis of them."""
    return x if axis is None else jax.lax.pmean(x, axis)


def update_moments(values: Array, state: Moments, decay: float, axis: str | None = None) -> Moments:
    """Takes `values`, of any shape, into the average; their moments are means over devices too.

    Reference: disco_rl/utils.py::MovingAverage.update_state
    """
    return Moments(
        decay * state.moment1 + (1.0 - decay) * over_devices(jnp.mean(values), axis),
        decay * state.moment2 + (1.0 - decay) * over_devices(jnp.mean(jnp.square(values)), axis),
        decay * state.decay_product,
    )


def normalize_by_moments(values: Array, state: Moments, eps: float, subtract_mean: bool = True) -> Array:
    """`values` over the averaged deviation, less the averaged mean; both moments debiased as Adam does it.

    Reference: disco_rl/utils.py::MovingAverage.normalize
    """
    debias = 1.0 / (1.0 - state.decay_product)
    mean = state.moment1 * debias
    variance = jnp.maximum(0.0, state.moment2 * debias - jnp.square(mean))
    centred = values - mean if subtract_mean else values
    return centred / (jnp.sqrt(variance + ROOT_EPS) + eps)
