"""The value function and the meta-gradient as layers."""

from __future__ import annotations

from typing import Any

from port.adapter.inputs import Settings, Tensors, agent, config_of, layer, rollout, rollouts
from port.adapter.learning import learner_state_inside
from port.meta_train import meta_gradient
from port.meta_train.meta_gradient import InnerProblem
from port.types import AdamState, EmaState
from port.value_fns import value_fn
from port.value_fns.value_fn import ValueFnConfig, ValueState


def _value_state(x: Tensors, prefix: str = "") -> ValueState:
    return x.record(ValueState, prefix, opt_state=AdamState, adv_ema=EmaState, td_ema=EmaState)


@layer("meta_train/value_fn")
def _value_update(x: Tensors, s: Settings) -> dict[str, Any]:
    inputs = (_value_state(x), rollout(x), x.pi_logits, config_of(ValueFnConfig, s, "value_"))
    state, _, logs = value_fn.update(*inputs, keep_graph=True, averaging=s.get("averaging"))
    errors = {"td": logs["value_td"], "normalized_td": logs["value_normalized_td"]}
    return {**state._asdict(), "value_loss": logs["value_loss"], **errors}


def _inner_problem(x: Tensors, s: Settings) -> InnerProblem:
    return InnerProblem(
        agent(s),
        config_of(ValueFnConfig, s, "value_"),
        meta_gradient.OuterLossConfig(),
        x.under("meta_params"),
        meta_gradient.LearningState(learner_state_inside(x), _value_state(x, "value")),
        rollouts(x, "train", s["S"]),
        rollout(x, "valid"),
    )


@layer("meta_train/outer_loss")
def _outer_loss(x: Tensors, s: Settings) -> dict[str, Any]:
    result = meta_gradient.meta_gradient(_inner_problem(x, s))
    learner, value = result.state
    return {"meta_grads": result.grads, **learner._asdict(), "value": value, "log": result.meta_log}


@layer("meta_train/second_derivative")
def _second_derivative(x: Tensors, s: Settings) -> dict[str, Any]:
    return {"meta_grads": meta_gradient.meta_gradient_along(x.under("direction"), _inner_problem(x, s))}


@layer("meta_train/update")
def _meta_update(x: Tensors, s: Settings) -> dict[str, Any]:
    before, grads = x.record(AdamState, "opt_state"), [x.under(f"grads/{i}") for i in range(s["N"])]
    new, state, logs = meta_gradient.meta_update(x.under("meta_params"), before, grads, s["meta_learning_rate"])
    return {"meta_params": new, "opt_state": state, "log": logs}
