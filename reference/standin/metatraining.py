"""Meta-training: V-trace and the V form of the value outputs, the value function, the outer loss, the meta-update.

Settings `s` are those of the learner and of the value function: `value_dense`, `value_learning_rate`,
`value_max_abs_update`, `discount_factor`, `td_lambda`, `outer_value_cost`, `ema_decay`, `ema_eps`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import rlax

from reference.flat_dict import Array, Settings, Tensors, below, flat_state, read_state, under
from reference.standin.elementary import (
    Moments,
    entropy,
    importance_weight,
    kl,
    lookup,
    normalize_by_moments,
    over_devices,
    update_moments,
)
from reference.standin.layers import form
from reference.standin.learning import AdamState, LearnerState, add, learner_step, update
from reference.standin.networks import agent_network, mlp
from reference.standin.values import Averages, ValueForm, ValueSettings, scalar_value, value_loss_from_td

REGULARISERS = {"entropy": 1e-2, "prediction_entropy": 1e-3, "target_mean": 1e-3, "target_kl": 1e-2}


class Transitions(NamedTuple):
    """What happened in each transition, [T, B] each."""

    rewards: Array
    continues: Array
    rho: Array


def vtrace(steps: Transitions, values: Array, target_values: Array, discount: float, lambda_: float) -> Tensors:
    """V-trace targets `value_target` (constants), advantages `adv` for a policy gradient, TD errors `td`: [T, B] each.

    `values` [T+1, B] are of the network that learns; `target_values` [T+1, B] are bootstrapped from.

    Reference: disco_rl/value_fns/value_utils.py::estimate_values
    """

    def one(v: Array, r: Array, d: Array, rho: Array) -> tuple[Array, Array]:
        out = rlax.vtrace_td_error_and_advantage(v[:-1], v[1:], r, d, rho, lambda_=lambda_)
        return out.errors + v[:-1], out.pg_advantage

    given = (target_values, steps.rewards, steps.continues * discount, steps.rho)
    target, adv = jax.vmap(one, in_axes=1, out_axes=1)(*given)
    return {"value_target": target, "adv": adv, "td": target - values[:-1]}


def value_outs_v(e: Tensors, averages: Averages, s: ValueSettings) -> tuple[Tensors, Averages]:
    """Value estimates of a trajectory without action values, and the new averages.

    Reference: disco_rl/value_fns/value_utils.py::get_value_outs
    """
    values, targets = (scalar_value(e[name], s.form) for name in ("value_out", "target_value_out"))
    rho = importance_weight(e["pi_logits"][:-1], e["mu_logits"][:-1], e["actions"][:-1])
    outs = vtrace(Transitions(e["rewards"], e["continues"], rho), values, targets, s.discount, s.lambda_)
    adv = update_moments(outs["adv"], averages.adv_ema, s.decay, s.axis)
    td = update_moments(outs["td"], averages.td_ema, s.decay, s.axis)
    outs |= {
        "normalized_adv": normalize_by_moments(outs["adv"], adv, s.eps),
        "normalized_qv_adv": normalize_by_moments(jnp.zeros_like(rho), adv, s.eps),
        "normalized_td": normalize_by_moments(outs["td"], td, s.eps, subtract_mean=False),
    }
    return {"value": values, "target_value": targets, "rho": rho, **outs}, Averages(adv, td)


class ValueState(NamedTuple):
    """All that changes as the value function learns."""

    params: Tensors
    opt: AdamState
    adv_ema: Moments
    td_ema: Moments


def estimates(
    params: Tensors, averages: Averages, rollout: Tensors, pi_logits: Array, s: Settings
) -> tuple[Tensors, Array, Averages]:
    """What the value function says of an actor's rollout, its output [T+1, B, 1], and the averages carried on.

    The last reward and the last end are left out, and none is shifted.

    Reference: disco_rl/value_fns/value_fn.py::ValueFunction.get_value_outs
    """
    seen = rollout["observations"].reshape(*rollout["observations"].shape[:2], -1)
    embedded = mlp(params, "value_fn/~_embedding_pass/torso", seen)
    out = mlp(params, "value_fn/~_head_pass/torso_head", embedded)
    e = {
        **{"value_out": out, "target_value_out": out, "pi_logits": pi_logits, "mu_logits": rollout["logits"]},
        **{"actions": rollout["actions"], "rewards": rollout["rewards"][:-1], "continues": rollout["discounts"][:-1]},
    }
    form = ValueForm(1.0, categorical=False, nonlinear=True)
    settings = ValueSettings(
        form, s["discount_factor"], s["td_lambda"], s["ema_decay"], s["ema_eps"], s.get("axis_name")
    )
    outs, averages = value_outs_v(e, averages, settings)
    return outs, out, averages


def value_update(state: ValueState, rollout: Tensors, pi_logits: Array, s: Settings) -> tuple[ValueState, Tensors]:
    """One update of the value function toward its targets, in units of its TD errors' deviation.

    Reference: disco_rl/value_fns/value_fn.py::ValueFunction.update
    """

    def loss(params: Tensors) -> tuple[Array, tuple[Tensors, Averages]]:
        outs, out, averages = estimates(params, Averages(state.adv_ema, state.td_ema), rollout, pi_logits, s)
        td = jax.lax.stop_gradient(outs["normalized_td"])
        losses = value_loss_from_td(out[:-1], td, ValueForm(1.0, categorical=False, nonlinear=False))
        return jnp.mean(s["outer_value_cost"] * losses), (outs, averages)

    (total, (outs, averages)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    grads = over_devices(grads, s.get("axis_name"))
    updates, opt = update(grads, state.opt, s["value_learning_rate"], s["value_max_abs_update"])
    logs = {"value_loss": total, "td": outs["td"], "normalized_td": outs["normalized_td"]}
    return ValueState(add(state.params, updates), opt, *averages), logs


def target_regulariser(meta_out: Tensors) -> Array:
    """Of one inner update: squared means of the rule's targets, and how far its policy is from the target network's."""
    means = sum(jnp.square(jnp.mean(meta_out[name])) for name in ("pi", "y", "z"))
    policy = jax.lax.stop_gradient(meta_out["target_out/logits"][:-1])
    distance = jnp.mean(kl(policy, meta_out["pi"]))
    return REGULARISERS["target_mean"] * means + REGULARISERS["target_kl"] * distance


def outer_loss(
    meta_params: Tensors,
    learner: LearnerState,
    value: ValueState,
    train: Tensors,
    valid: Tensors,
    s: Settings,
) -> tuple[Array, tuple[LearnerState, ValueState, Tensors]]:
    """The loss on a validation rollout after updates by the rule, one per rollout of `train`; states after them; logs.

    Notebook: colabs/meta_train.ipynb::calculate_meta_gradient
    """

    def step(carry: tuple[LearnerState, ValueState], rollout: Tensors) -> tuple[tuple[LearnerState, ValueState], Array]:
        before, judge = carry
        after, logs = learner_step(before, rollout, meta_params, {**s, "is_meta_training": True}, keep_meta_out=True)
        pi_logits = agent_network(before.params, rollout["observations"])["logits"]
        judge, _ = value_update(judge, rollout, pi_logits, s)
        return (after, judge), target_regulariser(under("meta_out", logs))

    (learner, value), regularisers = jax.lax.scan(step, (learner, value), train)
    out = agent_network(learner.params, valid["observations"])
    outs, _, _ = estimates(value.params, Averages(value.adv_ema, value.td_ema), valid, out["logits"], s)
    logits, actions = out["logits"][:-1], valid["actions"][:-1]
    log_pi = lookup(jax.nn.log_softmax(logits), actions)
    pg_loss = -jnp.mean(log_pi * jax.lax.stop_gradient(outs["normalized_adv"]))
    policy_entropy = jnp.mean(entropy(logits))
    predictions = jnp.mean(entropy(out["y"])) + jnp.mean(entropy(lookup(out["z"][:-1], actions)))
    reg_loss = jnp.mean(regularisers) - REGULARISERS["entropy"] * policy_entropy
    reg_loss -= REGULARISERS["prediction_entropy"] * predictions
    logs = {name: jnp.mean(outs[name]) for name in ("adv", "normalized_adv", "value")}
    logs |= {"entropy": policy_entropy, "val_importance_weight": jnp.mean(jnp.minimum(outs["rho"], 1.0))}
    logs |= {"meta_loss": pg_loss + reg_loss, "pg_loss": pg_loss, "reg_loss": reg_loss}
    return pg_loss + reg_loss, (learner, value, logs)


def meta_update(params: Tensors, grads: list[Tensors], state: AdamState, learning_rate: float) -> Tensors:
    """New meta-parameters, Adam's state and norms, by name, from the meta-gradients of all agents.

    Notebook: colabs/meta_train.ipynb::meta_update
    """
    mean = {name: sum(g[name] for g in grads) / len(grads) for name in params}
    updates, new = update(mean, state, learning_rate, float("inf"))
    norms = {"meta_grad_norm": optax.tree.norm(mean), "meta_up_norm": optax.tree.norm(updates)}
    return below("meta_params", add(params, updates)) | below("opt", flat_state(new)) | below("log", norms)


def _outs_v(x: Tensors, s: Settings) -> Tensors:
    ends = x["is_terminal"][:-1] if s["drop_last"] else x["is_terminal"]
    rewards = x["rewards"][:-1] if s["drop_last"] else x["rewards"]
    e = {**x, "rewards": rewards, "continues": 1.0 - ends}
    numbers = ValueSettings(form(s), s["discount"], s["lambda"], s["decay"], s["eps"])
    outs, averages = value_outs_v(e, read_state(Averages, x), numbers)
    return outs | flat_state(averages)


def _vtrace(x: Tensors, s: Settings) -> Tensors:
    steps = Transitions(x["rewards"], x["continues"], x["rho"])
    return vtrace(steps, x["values"], x["target_values"], s["discount"], s["lambda"])


def _value_fn(x: Tensors, s: Settings) -> Tensors:
    state, logs = value_update(read_state(ValueState, x), under("rollout", x), x["pi_logits"], s)
    return flat_state(state) | logs


def _states(x: Tensors) -> tuple[LearnerState, ValueState, Tensors, Tensors]:
    value = read_state(ValueState, under("value", x))
    return read_state(LearnerState, x), value, under("train", x), under("valid", x)


def _outer_loss(x: Tensors, s: Settings) -> Tensors:
    states = _states(x)
    grads, (learner, value, logs) = jax.grad(outer_loss, has_aux=True)(under("meta_params", x), *states, s)
    grads, logs = over_devices((grads, logs), s.get("axis_name"))
    new = flat_state(learner) | below("value", flat_state(value))
    return below("meta_grads", grads) | new | below("log", logs)


def _second_derivative(x: Tensors, s: Settings) -> Tensors:
    states = _states(x)
    gradient = jax.grad(lambda meta_params: outer_loss(meta_params, *states, s)[0])
    return below("meta_grads", jax.jvp(gradient, (under("meta_params", x),), (under("direction", x),))[1])


def _meta_update(x: Tensors, s: Settings) -> Tensors:
    grads = [under(f"grads/{i}", x) for i in range(s["N"])]
    adam = read_state(AdamState, under("opt", x))
    return meta_update(under("meta_params", x), grads, adam, s["meta_learning_rate"])


LAYERS = {
    "values/vtrace": _vtrace,
    "values/outs_v": _outs_v,
    "meta_train/value_fn": _value_fn,
    "meta_train/outer_loss": _outer_loss,
    "meta_train/second_derivative": _second_derivative,
    "meta_train/update": _meta_update,
}
