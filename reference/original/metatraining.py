"""The original's V-trace, value function, and the meta-training of its `meta_train` notebook as layers.

The notebook is no part of the package, so its outer loss is put together here from the package's own functions, in the
order in which the notebook calls them.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import distrax
import jax
import jax.numpy as jnp
import optax
import rlax
from disco_rl import types, utils
from disco_rl.value_fns import value_fn, value_utils

from reference.original.elementary import average, ema_state, flat_ema
from reference.original.learning import agent_for, learner_step
from reference.original.trees import flattened, nested, under

Tensors = dict[str, jax.Array]
Settings = dict[str, Any]


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
    ema = average(s["decay"], s["eps"])
    result, adv_ema, td_ema = value_utils.get_value_outs(
        value_net_out=x["value_out"],
        target_value_net_out=x["target_value_out"],
        q_net_out=None,
        target_q_net_out=None,
        rollout=_recorded(x, s),
        pi_logits=x["pi_logits"],
        discount=s["discount"],
        lambda_=s["lambda"],
        nonlinear_transform=s["nonlinear"],
        categorical_value=s["categorical"],
        max_abs_value=s["max_abs_value"],
        drop_last=s["drop_last"],
        adv_ema_state=ema_state("adv_ema", x),
        adv_ema_fn=ema,
        td_ema_state=ema_state("td_ema", x),
        td_ema_fn=ema,
    )
    names = ("value", "target_value", "rho", "adv", "normalized_adv", "value_target", "td", "normalized_td")
    outs = {name: result[name] for name in (*names, "normalized_qv_adv")}
    return {**outs, **flat_ema("adv_ema", adv_ema), **flat_ema("td_ema", td_ema)}


@functools.cache
def _value_function(settings: str) -> value_fn.ValueFunction:
    s = json.loads(settings)
    config = types.ValueFnConfig(
        net="mlp",
        net_args={"dense": tuple(s["value_dense"]), "head_w_init_std": 1e-2, "action_spec": ()},
        learning_rate=s["value_learning_rate"],
        max_abs_update=s["value_max_abs_update"],
        **{name: s[name] for name in ("discount_factor", "td_lambda", "outer_value_cost", "ema_decay", "ema_eps")},
    )
    return value_fn.ValueFunction(config, axis_name=s.get("axis_name"))


def value_function(s: Settings) -> value_fn.ValueFunction:
    """The original's value function for our settings."""
    return _value_function(json.dumps(s, sort_keys=True))


def _value_state(x: Tensors, function: value_fn.ValueFunction) -> types.ValueState:
    params = nested("params", x)
    adam = optax.ScaleByAdamState(count=x["opt/count"], mu=nested("opt/mu", x), nu=nested("opt/nu", x))
    return types.ValueState(
        params=params,
        state={},
        opt_state=(adam, *function._value_opt.init(params)[1:]),
        adv_ema_state=ema_state("adv_ema", x),
        td_ema_state=ema_state("td_ema", x),
    )


def _flat_value_state(state: types.ValueState) -> Tensors:
    adam = state.opt_state[0]
    return {
        **flattened("params", state.params),
        **{"opt/count": adam.count, **flattened("opt/mu", adam.mu), **flattened("opt/nu", adam.nu)},
        **flat_ema("adv_ema", state.adv_ema_state),
        **flat_ema("td_ema", state.td_ema_state),
    }


def _rollout(x: Tensors) -> types.ActorRollout:
    fields = {name: x[name] for name in ("observations", "actions", "rewards", "discounts", "logits")}
    return types.ActorRollout(**fields, agent_outs={"logits": x["logits"]}, states={})


def value_update(x: Tensors, s: Settings) -> Tensors:
    """One update of the value function."""
    function = value_function(s)
    state, _, log = function.update(_value_state(x, function), _rollout(under("rollout", x)), x["pi_logits"])
    logs = {"value_loss": log["value_loss"], "td": log["value_td"], "normalized_td": log["value_normalized_td"]}
    return {**_flat_value_state(state), **logs}


def _inner_updates(x: Tensors, s: Settings) -> tuple[Tensors, Tensors, Tensors]:
    """States of agent and value function after all inner updates, and what the rule said at each of them."""
    agent, rollouts = agent_for(s), under("train", x)
    meta_params = {name: value for name, value in x.items() if name.startswith("meta_params/")}
    apart = ("train/", "valid/", "value/", "meta_params/")
    start = {name: value for name, value in x.items() if not name.startswith(apart)}

    def step(carry: tuple[Tensors, Tensors], taken: Tensors) -> tuple[tuple[Tensors, Tensors], Tensors]:
        learner, value = carry
        named = {f"rollout/{name}": part for name, part in taken.items()}
        out = learner_step({**learner, **named, **meta_params}, {**s, "is_meta_training": True}, keep_meta_out=True)
        agent_out, _ = agent.unroll_net(nested("params", learner), {}, _rollout(taken))
        new_value = value_update({**value, **named, "pi_logits": agent_out["logits"]}, s)
        new = {name: out[name] for name in learner}, {name: new_value[name] for name in value}
        return new, under("meta_out", out)

    (learner, value), meta_out = jax.lax.scan(step, (start, under("value", x)), rollouts)
    return learner, value, meta_out


def _outer_loss(meta_params: Tensors, x: Tensors, s: Settings) -> tuple[jax.Array, Tensors]:
    """The notebook's outer loss; new states and logs beside it."""
    learner, value, meta_out = _inner_updates({**x, **meta_params}, s)
    valid = _rollout(under("valid", x))
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
    new_value = {f"value/{name}": part for name, part in value.items()}
    return loss, {**learner, **new_value, **{f"log/{name}": part for name, part in logs.items()}}


def outer_loss(x: Tensors, s: Settings) -> Tensors:
    """The outer loss's gradient for the meta-parameters."""
    meta_params = {name: value for name, value in x.items() if name.startswith("meta_params/")}
    grads, rest = jax.grad(_outer_loss, has_aux=True)(meta_params, x, s)
    if s.get("axis_name"):
        logs = {name: value for name, value in rest.items() if name.startswith("log/")}
        grads, logs = jax.lax.pmean((grads, logs), s["axis_name"])
        rest |= logs
    return {**{name.replace("meta_params/", "meta_grads/", 1): value for name, value in grads.items()}, **rest}


def second_derivative(x: Tensors, s: Settings) -> Tensors:
    """How that gradient changes along a direction, by JVP."""
    at = {name: value for name, value in x.items() if name.startswith("meta_params/")}
    along = {name: x[name.replace("meta_params/", "direction/", 1)] for name in at}
    rest = {name: value for name, value in x.items() if not name.startswith("direction/")}
    gradient = jax.grad(lambda meta_params: _outer_loss(meta_params, rest, s)[0])
    _, change = jax.jvp(gradient, (at,), (along,))
    return {name.replace("meta_params/", "meta_grads/", 1): value for name, value in change.items()}


def meta_update(x: Tensors, s: Settings) -> Tensors:
    """The notebook's meta-update on given meta-gradients: their mean, through `optax.adam`."""
    optimiser = optax.adam(learning_rate=s["meta_learning_rate"])
    params = nested("meta_params", x)
    grads = utils.tree_stack([nested(f"grads/{i}", x) for i in range(s["N"])])
    mean = jax.tree.map(lambda g: g.mean(axis=0), grads)
    adam = optax.ScaleByAdamState(count=x["opt/count"], mu=nested("opt/mu", x), nu=nested("opt/nu", x))
    updates, (new, *_) = optimiser.update(mean, (adam, *optimiser.init(params)[1:]))
    return {
        **flattened("meta_params", optax.apply_updates(params, updates)),
        **{"opt/count": new.count, **flattened("opt/mu", new.mu), **flattened("opt/nu", new.nu)},
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
