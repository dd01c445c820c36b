"""Learning: the optimiser, the actor's step, the agent's loss and the learner step.

Settings `s` are those of the rule, and `learning_rate`, `max_abs_update`, `is_meta_training`.

A *rollout* is a flat dict of what the actor saw and did at each of T+1 steps: `observations` [T+1, B, ...], `actions`,
`rewards`, `discounts` (false at the last step of an episode) [T+1, B], `logits` of the policy that acted [T+1, B, A].
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from reference.flat_dict import Array, Settings, Tensors, below
from reference.standin.elementary import over_devices
from reference.standin.networks import agent_network
from reference.standin.rule import MetaState, action_value_loss, disco_targets, prediction_loss

ADAM = {"b1": 0.9, "b2": 0.999, "eps": 1e-8}  # the agent's


class AdamState(NamedTuple):
    """Adam's state.

    Attributes:
        count: [], number of updates.
        mu: moving average of gradients, by parameter.
        nu: moving average of their squares.
    """

    count: Array
    mu: Tensors
    nu: Tensors


def adam(grads: Tensors, state: AdamState, b1: float, b2: float, eps: float) -> tuple[Tensors, AdamState]:
    """Adam's direction; meta-gradients do not pass through its denominator.

    Reference: disco_rl/optimizers.py::scale_by_adam_sg_denom
    """
    count = state.count + 1
    mu = {name: b1 * state.mu[name] + (1.0 - b1) * grad for name, grad in grads.items()}
    nu = {name: b2 * state.nu[name] + (1.0 - b2) * jnp.square(grad) for name, grad in grads.items()}
    mean, square = optax.tree.bias_correction(mu, b1, count), optax.tree.bias_correction(nu, b2, count)
    square = jax.lax.stop_gradient(square)
    return {name: mean[name] / (jnp.sqrt(square[name]) + eps) for name in grads}, AdamState(count, mu, nu)


def update(grads: Tensors, state: AdamState, learning_rate: float, max_abs_update: float) -> tuple[Tensors, AdamState]:
    """What to add to the parameters: Adam's direction, clipped, times minus the learning rate."""
    direction, state = adam(grads, state, **ADAM)
    clipped = {name: jnp.clip(value, -max_abs_update, max_abs_update) for name, value in direction.items()}
    return {name: -learning_rate * value for name, value in clipped.items()}, state


def add(params: Tensors, updates: Tensors) -> Tensors:
    """Parameters after an update."""
    return {name: params[name] + updates[name] for name in params}


def descend(params: Tensors, grads: Tensors, state: AdamState, s: Settings) -> tuple[Tensors, AdamState, Tensors]:
    """Parameters after an update of the agent, Adam's state, and norms of gradient and update."""
    updates, state = update(grads, state, s["learning_rate"], s["max_abs_update"])
    params = add(params, updates)
    norms = {"global_gradient_norm": optax.tree.norm(grads), "global_update_norm": optax.tree.norm(updates)}
    return params, state, norms


def act(params: Tensors, observation: Array, gumbel: Array) -> tuple[Array, Tensors]:
    """Actions [B], sampled with Gumbel noise [B, A] or the likeliest without; and the network's outputs.

    Reference: disco_rl/agent.py::Agent.actor_step
    """
    out = agent_network(params, observation, num_lead=1)
    return jnp.argmax(gumbel + jax.nn.log_softmax(out["logits"]), axis=-1), out


def agent_loss(params: Tensors, rollout: Tensors, meta_out: Tensors, s: Settings) -> tuple[Array, Tensors]:
    """The agent's loss for given targets: the mean over all transitions that do not start from an episode's last step.

    Returns:
        [], and logs.

    Reference: disco_rl/agent.py::Agent._loss
    """
    actions, counts = rollout["actions"], rollout["discounts"][:-1] > 0
    out = agent_network(params, rollout["observations"])
    loss, logs = prediction_loss(out, actions, rollout["discounts"][1:] == 0, meta_out, s)
    value_loss, value_logs = action_value_loss(out["q"], actions, meta_out, s)
    total = jnp.sum((loss + value_loss) * counts) / (jnp.sum(counts) + 1e-8)
    return total, {"total_loss": total, **logs, **value_logs}


class LearnerState(NamedTuple):
    """All that changes as an agent learns."""

    params: Tensors
    opt: AdamState
    meta_state: MetaState


def experience(agent_out: Tensors, rollout: Tensors) -> Tensors:
    """A rollout as a rule sees it: rewards and ends belong to the transition that led to them."""
    return {
        **below("agent_out", agent_out),
        "behaviour_out/logits": rollout["logits"],
        "observations": rollout["observations"],
        "actions": rollout["actions"],
        "rewards": rollout["rewards"][1:],
        "is_terminal": rollout["discounts"][1:] == 0,
    }


def learner_step(
    state: LearnerState, rollout: Tensors, meta_params: Tensors, s: Settings, keep_meta_out: bool = False
) -> tuple[LearnerState, Tensors]:
    """One learner step: targets from the rule, which the agent's gradient takes as constants, then one update.

    In meta-training the targets are constants for that gradient only, and the new state depends on them; else for all.
    With `keep_meta_out`, what the rule gave is among the logs.

    Reference: disco_rl/agent.py::Agent.learner_step
    """
    e = experience(agent_network(state.params, rollout["observations"]), rollout)
    meta_out, meta_state = disco_targets(e, meta_params, state.params, state.meta_state, s)
    if not s["is_meta_training"]:
        meta_out = jax.lax.stop_gradient(meta_out)
    grads, logs = jax.grad(agent_loss, has_aux=True)(state.params, rollout, meta_out, s)
    grads = over_devices(grads, s.get("axis_name"))
    params, opt, norms = descend(state.params, grads, state.opt, s)
    kept = below("meta_out", meta_out) if keep_meta_out else {}
    return LearnerState(params, opt, meta_state), {**logs, **norms, **kept}
