"""Transforms, lookups, distributions, moving averages and value estimates as layers."""

from __future__ import annotations

import torch

from port import input_transforms, moving_average, ops
from port.adapter.inputs import LAYERS, LayerFn, Settings, Tensors, ema, flat_ema, layer
from port.types import RuleInputs
from port.value_fns import value_utils


def _transform(name: str) -> LayerFn:
    def run(x: Tensors, s: Settings) -> Tensors:
        policy = x.get("policy", torch.zeros((), dtype=s["torch_dtype"]))
        return {"out": input_transforms.apply(name, x["x"], x.get("actions", x["x"]), policy)}

    return run


LAYERS |= {f"transforms/{name}": _transform(name) for name in input_transforms.TRANSFORMS}


@layer("transforms/normalize")
def _normalize(x: Tensors, s: Settings) -> Tensors:
    def average(name: str) -> input_transforms.DebiasedAverage:
        hidden = x[f"state/{name}/hidden"]
        return input_transforms.DebiasedAverage(hidden, torch.zeros_like(hidden), x[f"state/{name}/counter"])

    given = input_transforms.NormalizeState(average("m1"), average("m2"))
    out, state = input_transforms.normalize(x["x"], given, averaging=s.get("averaging"))
    new = {"m1": state.m1, "m2": state.m2}
    return {
        "out": out,
        **{f"state/{name}/hidden": value.hidden for name, value in new.items()},
        **{f"state/{name}/counter": value.counter for name, value in new.items()},
    }


LAYERS |= {
    "ops/lookup": lambda x, s: {"out": ops.batch_lookup(x["table"], x["index"])},
    "ops/signed_hyperbolic": lambda x, s: {"out": ops.signed_hyperbolic(x["x"])},
    "ops/signed_parabolic": lambda x, s: {"out": ops.signed_parabolic(x["x"])},
    "ops/two_hot": lambda x, s: {"probs": ops.two_hot(x["value"], s["K"], s["max_abs_value"])},
    "ops/from_two_hot": lambda x, s: {"value": ops.from_two_hot(x["probs"], s["max_abs_value"])},
    "ops/kl": lambda x, s: {"out": ops.categorical_kl(x["p_logits"], x["q_logits"])},
    "ops/entropy": lambda x, s: {"out": ops.categorical_entropy(x["p_logits"])},
    "ops/importance_weight": lambda x, s: {"rho": ops.importance_weights(x["pi_logits"], x["mu_logits"], x["actions"])},
    "moving_average/update": lambda x, s: flat_ema(
        "state", moving_average.update(ema("state", x), x["values"], s["decay"], s.get("averaging"))
    ),
    "moving_average/normalize": lambda x, s: {
        "out": moving_average.normalize(x["values"], ema("state", x), s["eps"], subtract_mean=s["subtract_mean"])
    },
}


def _form(s: Settings) -> value_utils.ValueForm:
    """Heads are categorical and nonlinear unless a layer sets it."""
    return value_utils.ValueForm(**{name: s[name] for name in value_utils.ValueForm._fields if name in s})


@layer("values/q_and_v")
def _q_and_v(x: Tensors, s: Settings) -> Tensors:
    q = value_utils.values_from_logits(x["q_logits"], _form(s))
    return {"q": q, "v": value_utils.policy_mean(q, x["pi_logits"])}


@layer("values/estimate_q")
def _estimate_q(x: Tensors, s: Settings) -> Tensors:
    own = {"values": x["target_values"], "q_values": x["target_q_values"], **x}
    outs = value_utils.estimate_q_values(**own, discount=s["discount"], lambda_=s["lambda"])
    return {name: getattr(outs, name) for name in ("q_target", "value_target", "adv", "td", "q_td", "qv_adv")}


def value_settings(s: Settings) -> value_utils.ValueSettings:
    """The numbers of the value estimates."""
    options = {name: s[name] for name in ("discount", "decay", "eps") if name in s}
    return value_utils.ValueSettings(_form(s), lambda_=s["lambda"], **options)


@layer("values/outs")
def _value_outs(x: Tensors, s: Settings) -> Tensors:
    q, target_q = (value_utils.values_from_logits(x[name], _form(s)) for name in ("q_logits", "target_q_logits"))
    outs, adv_ema, td_ema = value_utils.value_outs(
        q,
        target_q,
        RuleInputs(
            observations=x["rewards"],
            actions=x["actions"],
            rewards=x["rewards"],
            is_terminal=x["is_terminal"],
            agent_out={"logits": x["pi_logits"]},
            behaviour_agent_out={"logits": x["mu_logits"]},
        ),
        (ema("adv_ema", x), ema("td_ema", x)),
        value_settings(s),
    )
    return {**outs._asdict(), **flat_ema("adv_ema", adv_ema), **flat_ema("td_ema", td_ema)}


LAYERS |= {
    "values/from_logits": lambda x, s: {"value": value_utils.values_from_logits(x["net_out"], _form(s))},
    "values/retrace": lambda x, s: {"q_target": _estimate_q(x, s)["q_target"]},
    "values/loss_from_target": lambda x, s: {
        "loss": value_utils.value_loss_from_target(x["net_out"], x["target"], _form(s))
    },
    "values/loss_from_td": lambda x, s: {"loss": value_utils.value_loss_from_td(x["net_out"], x["td"], _form(s))},
}
