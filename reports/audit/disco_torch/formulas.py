"""Transforms, lookups, two-hot, KL, moving averages and the value path of `disco-torch` as layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from disco_torch import transforms, utils, value_utils
from disco_torch.types import EmaState
from disco_torch.utils import MovingAverage

from reports.audit.disco_torch.inputs import LayerFn, Settings, Tensors, rollout

NEED_ACTIONS_OR_POLICY = ("select_a", "pi_weighted_avg")
ESTIMATES = ("q_target", "value_target", "adv", "td", "q_td", "qv_adv")


def _transform(name: str, x: Tensors, s: Settings) -> Any:
    nothing = torch.zeros(())
    values = x.x if x.x.is_floating_point() else x.x.to(x.dtype)
    return transforms.apply_transform(name, values, x.get("actions", nothing), x.get("policy", nothing))


def _average(s: Settings) -> Any:
    return MovingAverage(decay=s["decay"], eps=s["eps"])


def _from_logits(x: Tensors, s: Settings) -> Any:
    form = {"categorical_value": s["categorical"], "nonlinear_transform": s["nonlinear"]}
    return value_utils.get_values_from_net_outs(x.net_out, max_abs_value=s["max_abs_value"], **form)


def _estimates(x: Tensors, s: Settings) -> Any:
    inputs = {"values": x.target_values, "q_values": x.target_q_values, **x}
    discounts = {"env_discounts": inputs.pop("continues"), "discount": s["discount"], "lambda_": s["lambda"]}
    outs = value_utils.estimate_q_values(**inputs, **discounts)
    return {name: getattr(outs, name) for name in ESTIMATES}


def _outs(x: Tensors, s: Settings) -> Any:
    policies = {"agent_out": {"logits": x.pi_logits}, "behaviour_agent_out": {"logits": x.mu_logits}}
    averages = {name: x.record(EmaState, name) for name in ("adv_ema_state", "td_ema_state")}
    outs, adv_ema, td_ema = value_utils.get_value_outs(
        q_net_out=x.q_logits,
        target_q_net_out=x.target_q_logits,
        rollout=rollout(x, **policies),
        pi_logits=x.pi_logits,
        discount=s["discount"],
        lambda_=s["lambda"],
        max_abs_value=s["max_abs_value"],
        adv_ema_fn=_average(s),
        td_ema_fn=_average(s),
        **averages,
    )
    return {**vars(outs), "adv_ema_state": adv_ema, "td_ema_state": td_ema}


def _q_and_v(x: Tensors, s: Settings) -> Any:
    """Q and V have no function of their own in the package; they are two of its value outputs."""
    fresh = vars(MovingAverage().init_state())
    blank = {f"{name}_ema_state/{field}": value for name in ("adv", "td") for field, value in fresh.items()}
    blank |= {"target_q_logits": x.q_logits, "mu_logits": x.pi_logits}
    blank["actions"] = torch.zeros(x.pi_logits.shape[:2], dtype=torch.int64)
    outs = _outs(x | blank, {**s, "discount": 1.0, "lambda": 1.0, "decay": 0.5, "eps": 1.0})
    return outs["q_value"], outs["value"]


def _vtrace(x: Tensors, s: Settings) -> Any:
    """Targets, advantages and TD errors, as `estimate_values` of the original makes them of V-trace.

    The package's function takes one trajectory at a time. The original clips ratios at 1, and so does the package
    by default.
    """
    values, discounts = x.target_values, x.continues * s["discount"]
    columns = [
        value_utils.vtrace_td_error_and_advantage(
            values[:-1, b], values[1:, b], x.rewards[:, b], discounts[:, b], x.rho[:, b], lambda_=s["lambda"]
        )
        for b in range(values.shape[1])
    ]
    errors, advantages = (torch.stack(parts, dim=1) for parts in zip(*columns, strict=True))
    target = errors + values[:-1]
    return target, advantages, target - x["values"][:-1]


def _limits(s: Settings) -> tuple[float, float]:
    return -s["max_abs_value"], s["max_abs_value"]


LAYERS: dict[str, LayerFn] = {  # `sign_hyp` and `normalize` are not among the package's transforms
    **{f"transforms/{k}": partial(_transform, k) for k in (*transforms.SIMPLE_TRANSFORMS, *NEED_ACTIONS_OR_POLICY)},
    "ops/lookup": lambda x, s: utils.batch_lookup(x.table, x.index),
    "ops/signed_hyperbolic": lambda x, s: utils.signed_hyperbolic_tx(x.x),
    "ops/signed_parabolic": lambda x, s: utils.signed_hyperbolic_inv(x.x),
    "ops/two_hot": lambda x, s: utils.transform_to_2hot(x.value, *_limits(s), s["K"]),
    "ops/from_two_hot": lambda x, s: utils.transform_from_2hot(x.probs, *_limits(s), s["K"]),
    "ops/kl": lambda x, s: utils.categorical_kl_divergence(x.p_logits, x.q_logits),
    "ops/importance_weight": lambda x, s: value_utils.importance_weight(x.pi_logits, x.mu_logits, x.actions),
    "moving_average/update": lambda x, s: {"state": _average(s).update_state(x["values"], x.record(EmaState, "state"))},
    "moving_average/normalize": lambda x, s: _average(s).normalize(
        x["values"], x.record(EmaState, "state"), subtract_mean=s["subtract_mean"]
    ),
    "values/from_logits": _from_logits,
    "values/q_and_v": _q_and_v,
    "values/retrace": lambda x, s: _estimates(x, s)["q_target"],
    "values/estimate_q": _estimates,
    "values/outs": _outs,
    "values/vtrace": _vtrace,
}
