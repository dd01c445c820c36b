"""Transforms, lookups, two-hot, KL and moving averages of `disco-torch` as layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from disco_torch import transforms, utils, value_utils

from reports.audit.disco_torch.inputs import Settings, Tensors, ema, flat_ema

NEED_ACTIONS_OR_POLICY = ("select_a", "pi_weighted_avg")


def _transform(name: str) -> Callable[[Tensors, Settings], Tensors]:
    def run(x: Tensors, s: Settings) -> Tensors:
        given = x["x"] if x["x"].is_floating_point() else x["x"].to(s["torch_dtype"])
        nothing = torch.zeros(())
        return {"out": transforms.apply_transform(name, given, x.get("actions", nothing), x.get("policy", nothing))}

    return run


def _two_hot(x: Tensors, s: Settings) -> Tensors:
    limit = s["max_abs_value"]
    return {"probs": utils.transform_to_2hot(x["value"], -limit, limit, s["K"])}


def _from_two_hot(x: Tensors, s: Settings) -> Tensors:
    limit = s["max_abs_value"]
    return {"value": utils.transform_from_2hot(x["probs"], -limit, limit, s["K"])}


def _update(x: Tensors, s: Settings) -> Tensors:
    average = utils.MovingAverage(decay=s["decay"], eps=s["eps"])
    return flat_ema("state", average.update_state(x["values"], ema("state", x)))


def _normalize(x: Tensors, s: Settings) -> Tensors:
    average = utils.MovingAverage(decay=s["decay"], eps=s["eps"])
    return {"out": average.normalize(x["values"], ema("state", x), subtract_mean=s["subtract_mean"])}


def layers() -> dict[str, Callable[[Tensors, Settings], Tensors]]:
    """The layers of this module; `sign_hyp` and `normalize` are not among the package's transforms."""
    names = (*transforms.SIMPLE_TRANSFORMS, *NEED_ACTIONS_OR_POLICY)
    return {
        **{f"transforms/{name}": _transform(name) for name in names},
        "ops/lookup": lambda x, s: {"out": utils.batch_lookup(x["table"], x["index"])},
        "ops/signed_hyperbolic": lambda x, s: {"out": utils.signed_hyperbolic_tx(x["x"])},
        "ops/signed_parabolic": lambda x, s: {"out": utils.signed_hyperbolic_inv(x["x"])},
        "ops/two_hot": _two_hot,
        "ops/from_two_hot": _from_two_hot,
        "ops/kl": lambda x, s: {"out": utils.categorical_kl_divergence(x["p_logits"], x["q_logits"])},
        "ops/importance_weight": lambda x, s: {
            "rho": value_utils.importance_weight(x["pi_logits"], x["mu_logits"], x["actions"])
        },
        "moving_average/update": _update,
        "moving_average/normalize": _normalize,
    }
