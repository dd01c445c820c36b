"""The original's transforms, lookups, distributions and moving averages as layers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import distrax
import haiku as hk
import jax.numpy as jnp
import rlax
from disco_rl import types, utils
from disco_rl.update_rules import input_transforms
from disco_rl.value_fns import value_utils

from reference.flat_dict import LayerFn, Settings, Tensors, below, under

EMAS = ("adv_ema", "td_ema")


def transform(x: Tensors, s: Settings, name: str) -> Tensors:
    """A transform without a state."""
    out = input_transforms.TRANSFORMS[name]()(x["x"], x.get("actions"), x.get("policy"), None)
    return {"out": out}


def normalize(x: Tensors, s: Settings) -> Tensors:
    """The transform that keeps a state, with the state passed in and given out."""
    fn = hk.transform_with_state(
        lambda v: input_transforms.TRANSFORMS["normalize"]()(v, None, None, s.get("axis_name"))
    )
    moments = {
        f"normalize/ema_norm/~/{m}_ema": {
            "hidden": x[f"state/{m}/hidden"],
            "average": jnp.zeros_like(x[f"state/{m}/hidden"]),
            "counter": x[f"state/{m}/counter"],
        }
        for m in ("m1", "m2")
    }
    out, state = fn.apply({}, moments, None, x["x"])
    new = {
        f"state/{m}/{part}": state[f"normalize/ema_norm/~/{m}_ema"][part]
        for m in ("m1", "m2")
        for part in ("hidden", "counter")
    }
    return {"out": out, **new}


def lookup(x: Tensors, s: Settings) -> Tensors:
    """Batched table lookup."""
    return {"out": utils.batch_lookup(x["table"], x["index"])}


def two_hot(x: Tensors, s: Settings) -> Tensors:
    """Scalar to weights on bins."""
    return {"probs": value_utils.scalar_to_categorical_value(s["K"], x["value"], s["max_abs_value"])}


def from_two_hot(x: Tensors, s: Settings) -> Tensors:
    """Mean of the bins, as `value_logits_to_scalar` calls it after its softmax."""
    limit = s["max_abs_value"]
    return {"value": rlax.transform_from_2hot(x["probs"], min_value=-limit, max_value=limit, num_bins=s["K"])}


def entropy(x: Tensors, s: Settings) -> Tensors:
    """Entropy as the rule logs it."""
    return {"out": distrax.Softmax(x["p_logits"]).entropy()}


def importance_weight(x: Tensors, s: Settings) -> Tensors:
    """Ratios of the policies for the actions taken."""
    return {"rho": value_utils.importance_weight(x["pi_logits"], x["mu_logits"], x["actions"])}


def ema_state(prefix: str, x: Tensors) -> types.EmaState:
    """A moving average's state from its three scalars."""
    return types.EmaState(**under(prefix, x))


def flat_ema(prefix: str, state: types.EmaState) -> Tensors:
    """The inverse of `ema_state`."""
    return below(prefix, {part: state[part] for part in ("moment1", "moment2", "decay_product")})


def ema_states(x: Tensors) -> dict[str, types.EmaState]:
    """Both moving averages of a rule, by the original's names."""
    return {f"{name}_state": ema_state(name, x) for name in EMAS}


def flat_emas(states: Mapping[str, Any]) -> Tensors:
    """The inverse of `ema_states`."""
    adv, td = (flat_ema(name, states[f"{name}_state"]) for name in EMAS)
    return adv | td


def average(decay: float, eps: float) -> utils.MovingAverage:
    """The original's moving average over a single array."""
    return utils.MovingAverage(jnp.zeros(()), decay=decay, eps=eps)


def ema_update(x: Tensors, s: Settings) -> Tensors:
    """One update of a moving average."""
    new = average(s["decay"], s["eps"]).update_state(x["values"], ema_state("state", x), s.get("axis_name"))
    return flat_ema("state", new)


def ema_normalize(x: Tensors, s: Settings) -> Tensors:
    """Normalisation by a moving average."""
    ema = average(s["decay"], s["eps"])
    return {"out": ema.normalize(x["values"], ema_state("state", x), subtract_mean=s["subtract_mean"])}


LAYERS: dict[str, LayerFn] = {
    **{
        f"transforms/{name}": functools.partial(transform, name=name)
        for name in input_transforms.TRANSFORMS
        if name != "normalize"
    },
    "transforms/normalize": normalize,
    "ops/lookup": lookup,
    "ops/signed_hyperbolic": lambda x, s: {"out": rlax.SIGNED_HYPERBOLIC_PAIR[0](x["x"])},
    "ops/signed_parabolic": lambda x, s: {"out": rlax.SIGNED_HYPERBOLIC_PAIR[1](x["x"])},
    "ops/two_hot": two_hot,
    "ops/from_two_hot": from_two_hot,
    "ops/kl": lambda x, s: {"out": rlax.categorical_kl_divergence(x["p_logits"], x["q_logits"])},
    "ops/entropy": entropy,
    "ops/importance_weight": importance_weight,
    "moving_average/update": ema_update,
    "moving_average/normalize": ema_normalize,
}
