"""The value path of `disco-torch` as layers: scalar values, Retrace, V-trace, all value outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from disco_torch import value_utils
from disco_torch.utils import MovingAverage

from reports.audit.disco_torch.inputs import Settings, Tensors, ema, flat_ema, rollout

ESTIMATES = ("q_target", "value_target", "adv", "td", "q_td", "qv_adv")
OUTS = (
    *("value", "target_value", "rho", "adv", "normalized_adv", "value_target", "td", "normalized_td"),
    *("q_target", "q_td", "normalized_q_td", "qv_adv", "normalized_qv_adv", "q_value", "target_q_value"),
)


def _from_logits(x: Tensors, s: Settings) -> Tensors:
    value = value_utils.get_values_from_net_outs(
        x["net_out"],
        categorical_value=s["categorical"],
        max_abs_value=s["max_abs_value"],
        nonlinear_transform=s["nonlinear"],
    )
    return {"value": value}


def _estimates(x: Tensors, s: Settings) -> Tensors:
    outs = value_utils.estimate_q_values(
        rewards=x["rewards"],
        actions=x["actions"],
        env_discounts=x["continues"],
        rho=x["rho"],
        values=x.get("values", x["target_values"]),
        target_values=x["target_values"],
        q_values=x.get("q_values", x["target_q_values"]),
        target_q_values=x["target_q_values"],
        discount=s["discount"],
        lambda_=s["lambda"],
    )
    return {name: getattr(outs, name) for name in ESTIMATES}


def _outs(x: Tensors, s: Settings) -> Tensors:
    average = MovingAverage(decay=s["decay"], eps=s["eps"])
    outs, adv_ema, td_ema = value_utils.get_value_outs(
        q_net_out=x["q_logits"],
        target_q_net_out=x["target_q_logits"],
        rollout=rollout(x, s, behaviour_agent_out={"logits": x["mu_logits"]}),
        pi_logits=x["pi_logits"],
        discount=s["discount"],
        lambda_=s["lambda"],
        max_abs_value=s["max_abs_value"],
        adv_ema_state=ema("adv_ema", x),
        adv_ema_fn=average,
        td_ema_state=ema("td_ema", x),
        td_ema_fn=average,
    )
    return {
        **{name: getattr(outs, name) for name in OUTS},
        **flat_ema("adv_ema", adv_ema),
        **flat_ema("td_ema", td_ema),
    }


def _q_and_v(x: Tensors, s: Settings) -> Tensors:
    """Q and V have no function of their own in the package; they are two of its value outputs."""
    fresh = MovingAverage().init_state()
    state = {f"{name}_ema/{k}": v for name in ("adv", "td") for k, v in vars(fresh).items()}
    blank = {"target_q_logits": x["q_logits"], "mu_logits": x["pi_logits"], **state}
    outs = _outs({**x, **blank}, {**s, "discount": 1.0, "lambda": 1.0, "decay": 0.5, "eps": 1.0})
    return {"q": outs["q_value"], "v": outs["value"]}


def _vtrace(x: Tensors, s: Settings) -> Tensors:
    """Targets, advantages and TD errors, as `estimate_values` of the original makes them of V-trace.

    The package's function takes one trajectory at a time. The original clips ratios at 1, and so does the package
    unless told otherwise.
    """
    values, discounts = x["target_values"], x["continues"] * s["discount"]
    columns = [
        value_utils.vtrace_td_error_and_advantage(
            values[:-1, b], values[1:, b], x["rewards"][:, b], discounts[:, b], x["rho"][:, b], lambda_=s["lambda"]
        )
        for b in range(values.shape[1])
    ]
    errors, advantages = (torch.stack(parts, dim=1) for parts in zip(*columns, strict=True))
    target = errors + values[:-1]
    return {"value_target": target, "adv": advantages, "td": target - x["values"][:-1]}


def layers() -> dict[str, Callable[[Tensors, Settings], Tensors]]:
    """The layers of this module."""
    return {
        "values/from_logits": _from_logits,
        "values/q_and_v": _q_and_v,
        "values/retrace": lambda x, s: {"q_target": _estimates(x, s)["q_target"]},
        "values/estimate_q": _estimates,
        "values/outs": _outs,
        "values/vtrace": _vtrace,
    }
