"""The original's value functions as layers."""

from __future__ import annotations

from typing import Any

from disco_rl import types
from disco_rl.value_fns import value_utils

from reference.flat_dict import Settings, Tensors
from reference.original.elementary import average, ema_states, flat_emas


def _net_options(s: Settings) -> dict[str, Any]:
    return {
        "categorical_value": s.get("categorical", True),
        "nonlinear_transform": s.get("nonlinear", True),
        "max_abs_value": s["max_abs_value"],
    }


def value_outs(x: Tensors, s: Settings, **arguments: Any) -> tuple[types.ValueOuts, Tensors]:
    """The original's `get_value_outs`, and both moving averages."""
    ema = average(s["decay"], s["eps"])
    result, adv_ema, td_ema = value_utils.get_value_outs(
        pi_logits=x["pi_logits"],
        discount=s["discount"],
        lambda_=s["lambda"],
        adv_ema_fn=ema,
        td_ema_fn=ema,
        **ema_states(x),
        **_net_options(s),
        **arguments,
    )
    return result, flat_emas({"adv_ema_state": adv_ema, "td_ema_state": td_ema})


def from_logits(x: Tensors, s: Settings) -> Tensors:
    """Scalar values."""
    return {"value": value_utils.get_values_from_net_outs(x["net_out"], **_net_options(s))}


def q_and_v(x: Tensors, s: Settings) -> Tensors:
    """Action values, and state values under the policy."""
    v, q = value_utils.extract_scalar_values_from_net_out(None, x["q_logits"], x["pi_logits"], **_net_options(s))
    return {"q": q, "v": v}


def estimate_q(x: Tensors, s: Settings) -> Tensors:
    """Targets, advantages and TD errors."""
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
    return {name: outs[name] for name in ("q_target", "value_target", "adv", "td", "q_td", "qv_adv")}


def outs(x: Tensors, s: Settings) -> Tensors:
    """All value outputs and both moving averages."""
    rollout = types.UpdateRuleInputs(
        observations=None,
        actions=x["actions"],
        rewards=x["rewards"],
        is_terminal=x["is_terminal"],
        agent_out=None,
        behaviour_agent_out={"logits": x["mu_logits"]},
    )
    nets = {"value_net_out": None, "target_value_net_out": None}
    nets |= {"q_net_out": x["q_logits"], "target_q_net_out": x["target_q_logits"]}
    result, averages = value_outs(x, s, rollout=rollout, drop_last=False, **nets)
    return {**result, **averages}


LAYERS = {
    "values/from_logits": from_logits,
    "values/q_and_v": q_and_v,
    "values/retrace": lambda x, s: {"q_target": estimate_q(x, s)["q_target"]},
    "values/estimate_q": estimate_q,
    "values/outs": outs,
    "values/loss_from_target": lambda x, s: {
        "loss": value_utils.value_loss_from_target(x["net_out"], x["target"], **_net_options(s))
    },
    "values/loss_from_td": lambda x, s: {
        "loss": value_utils.value_loss_from_td(x["net_out"], x["td"], **_net_options(s))
    },
}
