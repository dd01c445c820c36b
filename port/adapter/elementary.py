"""Transforms, lookups, distributions, moving averages and value estimates as layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from port import input_transforms, moving_average, ops
from port.adapter.inputs import Settings, Tensors, config_of, experience, layer, registered
from port.input_transforms import DebiasedAverage, NormalizeState
from port.types import EmaState
from port.value_fns import value_utils, vtrace
from port.value_fns.value_utils import ValueForm, ValueSettings


def _transform(name: str, x: Tensors, s: Settings) -> Tensor:
    policy = x.get("policy", torch.zeros((), dtype=x.dtype))
    return input_transforms.apply(name, x.x, x.get("actions", x.x), policy)


@layer("transforms/normalize")
def _normalize(x: Tensors, s: Settings) -> dict[str, Any]:
    def average(name: str) -> DebiasedAverage:
        return x.record(DebiasedAverage, f"state/{name}", average=torch.zeros_like(x[f"state/{name}/hidden"]))

    before = NormalizeState(average("m1"), average("m2"))
    out, after = input_transforms.normalize(x.x, before, averaging=s.get("averaging"))
    state = {name: {"hidden": m.hidden, "counter": m.counter} for name, m in after._asdict().items()}
    return {"out": out, "state": state}


def _form(s: Settings) -> ValueForm:
    """Heads are categorical and nonlinear unless a layer sets it."""
    return ValueForm(**{name: s[name] for name in ValueForm._fields if name in s})


def _value_settings(s: Settings) -> ValueSettings:
    return config_of(ValueSettings, s, form=_form(s))


@layer("values/q_and_v")
def _q_and_v(x: Tensors, s: Settings) -> dict[str, Any]:
    q = value_utils.values_from_logits(x.q_logits, _form(s))
    return {"q": q, "v": value_utils.policy_mean(q, x.pi_logits)}


@layer("values/estimate_q")
def _estimate_q(x: Tensors, s: Settings) -> dict[str, Any]:
    inputs = {"values": x.target_values, "q_values": x.target_q_values, **x}
    outs = value_utils.estimate_q_values(**inputs, discount=s["discount"], lambda_=s["lambda"])
    return {name: getattr(outs, name) for name in ("q_target", "value_target", "adv", "td", "q_td", "qv_adv")}


@layer("values/vtrace")
def _vtrace(x: Tensors, s: Settings) -> dict[str, Any]:
    outs = vtrace.estimate_values(**x, discount=s["discount"], lambda_=s["lambda"])
    return {name: getattr(outs, name) for name in ("value_target", "adv", "td")}


def _averages(x: Tensors) -> tuple[EmaState, EmaState]:
    return x.record(EmaState, "adv_ema"), x.record(EmaState, "td_ema")


@layer("values/outs")
def _value_outs(x: Tensors, s: Settings) -> dict[str, Any]:
    inputs = experience(x, agent_out={"logits": x.pi_logits}, behaviour_agent_out={"logits": x.mu_logits})
    q, target_q = (value_utils.values_from_logits(logits, _form(s)) for logits in (x.q_logits, x.target_q_logits))
    outs, adv_ema, td_ema = value_utils.value_outs(q, target_q, inputs, _averages(x), _value_settings(s))
    return {**outs._asdict(), "adv_ema": adv_ema, "td_ema": td_ema}


@layer("values/outs_v")
def _outs_v(x: Tensors, s: Settings) -> dict[str, Any]:
    outs, adv_ema, td_ema = vtrace.value_outs(
        x.value_out,
        x.pi_logits,
        x.mu_logits,
        x.actions,
        x.rewards,
        continues=1.0 - x.is_terminal.to(x.dtype),
        averages=_averages(x),
        settings=_value_settings(s),
        drop_last=s["drop_last"],
        target_value_net_out=x.target_value_out,
    )
    about_actions = ("qv_adv", "q_value", "target_q_value", "q_target", "q_td", "normalized_q_td")
    kept = {name: value for name, value in outs._asdict().items() if name not in about_actions}
    return {**kept, "adv_ema": adv_ema, "td_ema": td_ema}


registered.layers |= {
    **{f"transforms/{name}": partial(_transform, name) for name in input_transforms.TRANSFORMS},
    "ops/lookup": lambda x, s: ops.batch_lookup(x.table, x.index),
    "ops/signed_hyperbolic": lambda x, s: ops.signed_hyperbolic(x.x),
    "ops/signed_parabolic": lambda x, s: ops.signed_parabolic(x.x),
    "ops/two_hot": lambda x, s: ops.two_hot(x.value, s["K"], s["max_abs_value"]),
    "ops/from_two_hot": lambda x, s: ops.from_two_hot(x.probs, s["max_abs_value"]),
    "ops/kl": lambda x, s: ops.categorical_kl(x.p_logits, x.q_logits),
    "ops/entropy": lambda x, s: ops.categorical_entropy(x.p_logits),
    "ops/importance_weight": lambda x, s: ops.importance_weights(x.pi_logits, x.mu_logits, x.actions),
    "ops/policy_gradient_loss": lambda x, s: ops.policy_gradient_loss(x.logits, x.actions, x.advantages, s["backprop"]),
    "moving_average/update": lambda x, s: {
        "state": moving_average.update(x.record(EmaState, "state"), x["values"], s["decay"], s.get("averaging"))
    },
    "moving_average/normalize": lambda x, s: moving_average.normalize(
        x["values"], x.record(EmaState, "state"), s["eps"], subtract_mean=s["subtract_mean"]
    ),
    "values/from_logits": lambda x, s: value_utils.values_from_logits(x.net_out, _form(s)),
    "values/retrace": lambda x, s: _estimate_q(x, s)["q_target"],
    "values/loss_from_target": lambda x, s: value_utils.value_loss_from_target(x.net_out, x.target, _form(s)),
    "values/loss_from_td": lambda x, s: value_utils.value_loss_from_td(x.net_out, x.td, _form(s)),
}
