"""The two rules without a meta-network, actor-critic and policy gradient, and a learner step by the former.

Settings `s` are numbers and switches by name: `max_abs_value`, `categorical_value`, `nonlinear_value_transform`;
`discount_factor`, `vtrace_lambda`, `moving_average_decay`, `moving_average_eps`; `normalize_adv`, `normalize_td`; the
costs `pg_cost`, `value_cost`, `entropy_cost`; and for the learner step those of `learning`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from reference.flat_dict import Array, Settings, Tensors, below, flat_state, read_state, under
from reference.standin import learning
from reference.standin.elementary import entropy, lookup
from reference.standin.metatraining import value_outs_v
from reference.standin.networks import mlp
from reference.standin.rule import means
from reference.standin.values import Averages, ValueForm, ValueSettings, value_loss_from_td

HEADS = {"logits": "mlp/~_head_pass/torso_head", "v": "mlp/~_head_pass/torso_head_1"}


def policy_gradient_loss(logits: Array, actions: Array, advantages: Array) -> Array:
    """[T, B, A], [T, B], [T, B] -> [T, B]: surprise at each action, weighted by how good it was.

    Reference: disco_rl/utils.py::differentiable_policy_gradient_loss
    """
    return -advantages * lookup(jax.nn.log_softmax(logits), actions)


def value_form(s: Settings) -> ValueForm:
    """What the value head stands for."""
    return ValueForm(s["max_abs_value"], s["categorical_value"], s["nonlinear_value_transform"])


KEPT_VALUES = {
    **{"raw_advs": "adv", "normalized_advs": "normalized_adv", "tds": "td", "normalized_tds": "normalized_td"},
    **{"value_target": "value_target", "values": "value"},
}


def actor_critic_targets(e: Tensors, averages: Averages, s: Settings) -> tuple[Tensors, Averages]:
    """The constants of the actor-critic loss, from a trajectory.

    Returns:
        [T, B]: `raw_advs`, `tds`, both normalised, `value_target`; [T+1, B]: `values`; and the new averages.

    Reference: disco_rl/update_rules/actor_critic.py::ActorCritic.unroll_meta_net
    """
    names = ("discount_factor", "vtrace_lambda", "moving_average_decay", "moving_average_eps")
    numbers = ValueSettings(value_form(s), *(s[name] for name in names))
    seen = {
        **dict.fromkeys(("value_out", "target_value_out"), e["agent_out/v"]),
        **{"pi_logits": e["agent_out/logits"], "mu_logits": e["behaviour_out/logits"], "actions": e["actions"]},
        **{"rewards": e["rewards"], "continues": 1.0 - e["is_terminal"]},
    }
    outs, averages = value_outs_v(seen, averages, numbers)
    return {name: outs[kept] for name, kept in KEPT_VALUES.items()}, averages


def actor_critic_loss(agent_out: Tensors, actions: Array, meta_out: Tensors, s: Settings) -> tuple[Array, Tensors]:
    """The loss of the actor-critic rule per step [T, B], and logs; advantages and TD errors are constants.

    Reference: disco_rl/update_rules/actor_critic.py::ActorCritic.agent_loss
    """
    logits, constants = agent_out["logits"][:-1], jax.lax.stop_gradient(meta_out)
    advs = constants["normalized_advs" if s["normalize_adv"] else "raw_advs"]
    tds = constants["normalized_tds" if s["normalize_td"] else "tds"]
    loss = (
        s["pg_cost"] * policy_gradient_loss(logits, actions[:-1], advs)
        + s["value_cost"] * value_loss_from_td(agent_out["v"][:-1], tds, value_form(s))
        - s["entropy_cost"] * entropy(logits)
    )
    logs = {
        **{"logits": logits, "entropy": entropy(logits)},
        **{"pg_advs": advs, "raw_advs": constants["raw_advs"], "avg_value": constants["values"]},
    }
    return loss, means(logs)


def policy_gradient_rule(x: Tensors, s: Settings) -> Tensors:
    """The policy-gradient rule on the advantages of a value function.

    Reference: disco_rl/update_rules/policy_gradient.py::PolicyGradientUpdate
    """
    advs = jax.lax.stop_gradient(x["value_out/normalized_adv" if s["normalize_adv"] else "value_out/adv"])
    logits = x["agent_out/logits"][:-1]
    loss = s["pg_cost"] * policy_gradient_loss(logits, x["actions"][:-1], advs) - s["entropy_cost"] * entropy(logits)
    return {"loss": loss, **below("log", means({"entropy": entropy(logits), "pg_advs": advs}))}


def network(params: Tensors, observations: Array) -> Tensors:
    """The network of an actor-critic agent: [T+1, B, ...] -> `logits` [T+1, B, A] and `v` [T+1, B, K].

    Reference: disco_rl/networks/nets.py::MLP
    """
    torso_out = mlp(params, "mlp/~_embedding_pass/torso", observations.reshape(*observations.shape[:2], -1))
    return {head: mlp(params, name, torso_out) for head, name in HEADS.items()}


def agent_loss(params: Tensors, rollout: Tensors, meta_out: Tensors, s: Settings) -> tuple[Array, Tensors]:
    """The mean of the loss over all transitions that do not start from an episode's last step, and logs.

    Reference: disco_rl/agent.py::Agent._loss
    """
    counts = rollout["discounts"][:-1] > 0
    loss, logs = actor_critic_loss(network(params, rollout["observations"]), rollout["actions"], meta_out, s)
    total = jnp.sum(loss * counts) / (jnp.sum(counts) + 1e-8)
    return total, {"total_loss": total, **logs}


def unroll(x: Tensors, s: Settings) -> Tensors:
    """The rule's preparations as a layer."""
    outs, averages = actor_critic_targets(x, read_state(Averages, under("meta_state", x)), s)
    return below("meta_out", outs) | below("meta_state", flat_state(averages))


def agent_loss_layer(x: Tensors, s: Settings) -> Tensors:
    """The rule's loss as a layer."""
    loss, logs = actor_critic_loss(under("agent_out", x), x["actions"], under("meta_out", x), s)
    return {"loss": loss, **below("log", logs)}


def learner_step(x: Tensors, s: Settings) -> Tensors:
    """One learner step by the actor-critic rule.

    Reference: disco_rl/agent.py::Agent.learner_step
    """
    params, rollout = under("params", x), under("rollout", x)
    e = learning.experience(network(params, rollout["observations"]), rollout)
    meta_out, averages = actor_critic_targets(e, read_state(Averages, under("meta_state", x)), s)
    grads, logs = jax.grad(agent_loss, has_aux=True)(params, rollout, meta_out, s)
    before = read_state(learning.AdamState, under("opt", x))
    params, opt, norms = learning.descend(params, grads, before, s)
    state = below("opt", flat_state(opt)) | below("meta_state", flat_state(averages))
    return below("params", params) | state | below("log", logs | norms)


def policy_gradient_layer(x: Tensors, s: Settings) -> Tensors:
    """The policy-gradient loss as a layer; gradients enter the advantages where asked to."""
    advantages = x["advantages"] if s["backprop"] else jax.lax.stop_gradient(x["advantages"])
    return {"loss": policy_gradient_loss(x["logits"], x["actions"], advantages)}


LAYERS = {
    "ops/policy_gradient_loss": policy_gradient_layer,
    "actor_critic/unroll": unroll,
    "actor_critic/agent_loss": agent_loss_layer,
    "policy_gradient/loss": policy_gradient_rule,
    "agent/actor_critic_step": learner_step,
}
