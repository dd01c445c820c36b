"""The original's V-trace, value function, and the meta-training of its `meta_train` notebook as layers.

The notebook is no part of the package, so its outer loss is put together here from the package's own functions, in the
order in which the notebook calls them.
"""

from __future__ import annotations

import distrax
import jax
import jax.numpy as jnp
import optax
import rlax
from disco_rl import types, utils
from disco_rl.value_fns import value_fn, value_utils

from reference.flat_dict import Settings, Tensors, below, flattened, nested, only, under
from reference.original.elementary import ema_states, flat_emas
from reference.original.learning import (
    adam_state,
    agent_for,
    chain_state,
    flat_adam,
    learner_step,
    once_for_settings,
    rollout,
)
from reference.original.values import value_outs


def vtrace(x: Tensors, s: Settings) -> Tensors:
    """Targets, advantages and TD errors."""
    outs = value_utils.estimate_values(
        rewards=x["rewards"],
        actions=jnp.zeros(x["rewards"].shape, jnp.int32),
        env_discounts=x["continues"],
        rho=x["rho"],
        values=x["values"],
        target_values=x["target_values"],
        discount=s["discount"],
        lambda_=s["lambda"],
    )
    return {name: outs[name] for name in ("value_target", "adv", "td")}


def _recorded(x: Tensors, s: Settings) -> types.ActorRollout | types.UpdateRuleInputs:
    """The experience as an actor records it, or as a rule sees it."""
    same = {"observations": None, "actions": x["actions"], "rewards": x["rewards"]}
    if s["drop_last"]:
        going_on, logits = jnp.logical_not(x["is_terminal"]), x["mu_logits"]
        return types.ActorRollout(**same, discounts=going_on, agent_outs=None, states=None, logits=logits)
    behaviour = {"logits": x["mu_logits"]}
    return types.UpdateRuleInputs(**same, is_terminal=x["is_terminal"], agent_out=None, behaviour_agent_out=behaviour)


def outs_v(x: Tensors, s: Settings) -> Tensors:
    """All value outputs that mean something without action values, and both moving averages."""
    nets = {"value_net_out": x["value_out"], "target_value_net_out": x["target_value_out"]}
    nets |= {"q_net_out": None, "target_q_net_out": None}
    result, averages = value_outs(x, s, rollout=_recorded(x, s), drop_last=s["drop_last"], **nets)
    names = ("value", "target_value", "rho", "adv", "normalized_adv", "value_target", "td", "normalized_td")
    return {**{name: result[name] for name in (*names, "normalized_qv_adv")}, **averages}


@once_for_settings
def value_function(s: Settings) -> value_fn.ValueFunction:
    """The original's value function for our settings."""
    config = types.ValueFnConfig(
        net="mlp",
        net_args={"dense": tuple(s["value_dense"]), "head_w_init_std": 1e-2, "action_spec": ()},
        learning_rate=s["value_learning_rate"],
        max_abs_update=s["value_max_abs_update"],
        **{name: s[name] for name in ("discount_factor", "td_lambda", "outer_value_cost", "ema_decay", "ema_eps")},
    )
    return value_fn.ValueFunction(config, axis_name=s.get("axis_name"))


def _value_state(x: Tensors, function: value_fn.ValueFunction) -> types.ValueState:
    optimiser = chain_state(x, function._value_opt)
    return types.ValueState(params=nested("params", x), state={}, opt_state=optimiser, **ema_states(x))


def flat_value_state(state: types.ValueState) -> Tensors:
    """What a value function's learner carries on."""
    return {**flattened("params", state.params), **flat_adam(state.opt_state[0]), **flat_emas(state)}


def value_update(x: Tensors, s: Settings) -> Tensors:
    """One update of the value function."""
    function = value_function(s)
    state, _, log = function.update(_value_state(x, function), rollout(under("rollout", x)), x["pi_logits"])
    logs = {"value_loss": log["value_loss"], "td": log["value_td"], "normalized_td": log["value_normalized_td"]}
    return {**flat_value_state(state), **logs}


def _inner_updates(x: Tensors, s: Settings) -> tuple[Tensors, Tensors, Tensors]:
    """States of agent and value function after all inner updates, and what the rule gave at each of them."""
    agent, rollouts = agent_for(s), under("train", x)
    meta_params, apart = only("meta_params", x), ("train/", "valid/", "value/", "meta_params/")
    start = {name: value for name, value in x.items() if not name.startswith(apart)}

    def step(carry: tuple[Tensors, Tensors], taken: Tensors) -> tuple[tuple[Tensors, Tensors], Tensors]:
        learner, value = carry
        named = below("rollout", taken)
        out = learner_step({**learner, **named, **meta_params}, {**s, "is_meta_training": True}, keep_meta_out=True)
        agent_out, _ = agent.unroll_net(nested("params", learner), {}, rollout(taken))
        new_value = value_update({**value, **named, "pi_logits": agent_out["logits"]}, s)
        new = {name: out[name] for name in learner}, {name: new_value[name] for name in value}
        return new, under("meta_out", out)

    (learner, value), meta_out = jax.lax.scan(step, (start, under("value", x)), rollouts)
    return learner, value, meta_out


def outer_loss_at(meta_params: Tensors, x: Tensors, s: Settings) -> tuple[jax.Array, Tensors]:
    """The notebook's outer loss; new states and logs beside it."""
    learner, value, meta_out = _inner_updates({**x, **meta_params}, s)
    valid = rollout(under("valid", x))
    out, _ = agent_for(s)._network.unroll(nested("params", learner), {}, valid.observations, None)
    function = value_function(s)
    value_outs, _, _, _ = function.get_value_outs(_value_state(value, function), valid, out["logits"])
    actions, logits = valid.actions[:-1], out["logits"][:-1]
    adv = jax.lax.stop_gradient(value_outs.normalized_adv)
    pg_loss = utils.differentiable_policy_gradient_loss(logits, actions, adv_t=adv, backprop=False).mean()
    entropy = distrax.Softmax(logits).entropy().mean()
    y_entropy = distrax.Softmax(out["y"]).entropy().mean()
    z_entropy = distrax.Softmax(utils.batch_lookup(out["z"][:-1], actions)).entropy().mean()
    reg_loss = -1e-2 * entropy - 1e-3 * (y_entropy + z_entropy)
    for name in ("y", "z", "pi"):
        reg_loss += 1e-3 * jnp.mean(jnp.square(jnp.mean(meta_out[name], axis=(1, 2, 3))))
    target_logits = jax.lax.stop_gradient(meta_out["target_out/logits"][:, :-1])
    reg_loss += 1e-2 * jnp.mean(rlax.categorical_kl_divergence(target_logits, meta_out["pi"]))
    loss = pg_loss + reg_loss
    logs = {
        "adv": value_outs.adv.mean(),
        "normalized_adv": value_outs.normalized_adv.mean(),
        "entropy": entropy,
        "value": value_outs.value.mean(),
        "val_importance_weight": jnp.mean(jnp.minimum(value_outs.rho, 1.0)),
        **{"meta_loss": loss, "pg_loss": pg_loss, "reg_loss": reg_loss},
    }
    return loss, {**learner, **below("value", value), **below("log", logs)}


def outer_loss(x: Tensors, s: Settings) -> Tensors:
    """The outer loss's gradient for the meta-parameters."""
    grads, rest = jax.grad(outer_loss_at, has_aux=True)(only("meta_params", x), x, s)
    if s.get("axis_name"):
        grads, logs = jax.lax.pmean((grads, only("log", rest)), s["axis_name"])
        rest |= logs
    return {**below("meta_grads", under("meta_params", grads)), **rest}


def second_derivative(x: Tensors, s: Settings) -> Tensors:
    """How that gradient changes along a direction, by JVP."""
    rest = {name: value for name, value in x.items() if not name.startswith("direction/")}
    gradient = jax.grad(lambda meta_params: outer_loss_at(meta_params, rest, s)[0])
    along = below("meta_params", under("direction", x))
    _, change = jax.jvp(gradient, (only("meta_params", x),), (along,))
    return below("meta_grads", under("meta_params", change))


def meta_update(x: Tensors, s: Settings) -> Tensors:
    """The notebook's meta-update on given meta-gradients: their mean, through `optax.adam`."""
    optimiser = optax.adam(learning_rate=s["meta_learning_rate"])
    params = nested("meta_params", x)
    grads = utils.tree_stack([nested(f"grads/{i}", x) for i in range(s["N"])])
    mean = jax.tree.map(lambda g: g.mean(axis=0), grads)
    updates, (new, *_) = optimiser.update(mean, (adam_state(x), *optimiser.init(params)[1:]))
    return {
        **flattened("meta_params", optax.apply_updates(params, updates)),
        **flat_adam(new),
        **{"log/meta_grad_norm": optax.global_norm(mean), "log/meta_up_norm": optax.global_norm(updates)},
    }


LAYERS = {
    "values/vtrace": vtrace,
    "values/outs_v": outs_v,
    "meta_train/value_fn": value_update,
    "meta_train/outer_loss": outer_loss,
    "meta_train/second_derivative": second_derivative,
    "meta_train/update": meta_update,
}
