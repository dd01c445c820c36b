"""V-trace, the value function and the meta-gradient as layers."""

from __future__ import annotations

from port.adapter.elementary import value_settings
from port.adapter.inputs import (
    Settings,
    Tensors,
    agent,
    below,
    ema,
    flat_ema,
    layer,
    meta_config,
    meta_params,
    to_original,
    to_ours,
    under,
)
from port.adapter.learning import adam_state, flat_adam, flat_learner_state, learner_state, rollout
from port.meta_train import meta_gradient
from port.networks import param_names
from port.types import Rollout
from port.value_fns import value_fn, vtrace


@layer("values/vtrace")
def _vtrace(x: Tensors, s: Settings) -> Tensors:
    outs = vtrace.estimate_values(**x, discount=s["discount"], lambda_=s["lambda"])
    return {name: getattr(outs, name) for name in ("value_target", "adv", "td")}


@layer("values/outs_v")
def _outs_v(x: Tensors, s: Settings) -> Tensors:
    outs, adv_ema, td_ema = vtrace.value_outs(
        x["value_out"],
        x["pi_logits"],
        x["mu_logits"],
        x["actions"],
        x["rewards"],
        continues=1.0 - x["is_terminal"].to(x["rewards"].dtype),
        averages=(ema("adv_ema", x), ema("td_ema", x)),
        settings=value_settings(s),
        drop_last=s["drop_last"],
        target_value_net_out=x["target_value_out"],
    )
    about_actions = ("qv_adv", "q_value", "target_q_value", "q_target", "q_td", "normalized_q_td")
    kept = {name: value for name, value in outs._asdict().items() if name not in about_actions}
    return {**kept, **flat_ema("adv_ema", adv_ema), **flat_ema("td_ema", td_ema)}


def value_config(s: Settings) -> value_fn.ValueFnConfig:
    """The value function's configuration for the harness's settings."""
    same = ("discount_factor", "td_lambda", "outer_value_cost", "ema_decay", "ema_eps")
    return value_fn.ValueFnConfig(
        dense=tuple(s["value_dense"]),
        learning_rate=s["value_learning_rate"],
        max_abs_update=s["value_max_abs_update"],
        **{name: s[name] for name in same},
    )


def value_state(x: Tensors, s: Settings) -> value_fn.ValueState:
    """The value function's state among the inputs."""
    table = param_names.value_names(s["value_dense"])
    return value_fn.ValueState(to_ours("params", x, table), adam_state(x, table), ema("adv_ema", x), ema("td_ema", x))


def flat_value_state(state: value_fn.ValueState, s: Settings) -> Tensors:
    """The value function's state as outputs."""
    table = param_names.value_names(s["value_dense"])
    return {
        **to_original("params", state.params, table),
        **flat_adam(state.opt_state, table),
        **flat_ema("adv_ema", state.adv_ema),
        **flat_ema("td_ema", state.td_ema),
    }


@layer("meta_train/value_fn")
def _value_update(x: Tensors, s: Settings) -> Tensors:
    given = (value_state(x, s), rollout(x), x["pi_logits"], value_config(s))
    state, _, logs = value_fn.update(*given, keep_graph=True, averaging=s.get("averaging"))
    return {
        **flat_value_state(state, s),
        **{"value_loss": logs["value_loss"], "td": logs["value_td"], "normalized_td": logs["value_normalized_td"]},
    }


def _train_rollouts(x: Tensors, s: Settings) -> list[Rollout]:
    given = below("rollout", under("train", x))
    return [rollout({name: value[i] for name, value in given.items()}) for i in range(s["S"])]


def _inner_problem(x: Tensors, s: Settings) -> meta_gradient.InnerProblem:
    return meta_gradient.InnerProblem(
        agent(s),
        value_config(s),
        meta_gradient.OuterLossConfig(),
        meta_params(x, s),
        meta_gradient.LearningState(learner_state(x, s), value_state(under("value", x), s)),
        _train_rollouts(x, s),
        rollout(below("rollout", under("valid", x))),
    )


@layer("meta_train/outer_loss")
def _outer_loss(x: Tensors, s: Settings) -> Tensors:
    result = meta_gradient.meta_gradient(_inner_problem(x, s))
    return {
        **to_original("meta_grads", result.grads, param_names.meta_names(meta_config(s))),
        **flat_learner_state(result.state.learner, s),
        **below("value", flat_value_state(result.state.value, s)),
        **below("log", result.meta_log),
    }


@layer("meta_train/second_derivative")
def _second_derivative(x: Tensors, s: Settings) -> Tensors:
    table = param_names.meta_names(meta_config(s))
    along = meta_gradient.meta_gradient_along(to_ours("direction", x, table), _inner_problem(x, s))
    return to_original("meta_grads", along, table)


@layer("meta_train/update")
def _meta_update(x: Tensors, s: Settings) -> Tensors:
    params = under("meta_params", x)
    same = {name: name for name in params}
    grads = [under(f"grads/{i}", x) for i in range(s["N"])]
    new, opt_state, logs = meta_gradient.meta_update(params, adam_state(x, same), grads, s["meta_learning_rate"])
    return {**below("meta_params", new), **flat_adam(opt_state, same), **below("log", logs)}
