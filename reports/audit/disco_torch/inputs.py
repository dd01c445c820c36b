"""What the layers of this adapter share: precision, rollouts and moving averages in the package's own types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from disco_torch.types import EmaState, UpdateRuleInputs
from torch import Tensor

Tensors = dict[str, Tensor]
Settings = Mapping[str, Any]
SCALARS = ("v_scalar", "adv", "normalized_adv", "q", "qv_adv", "normalized_qv_adv")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets torch's default dtype for a while."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def under(prefix: str, x: Mapping[str, Tensor]) -> Tensors:
    """The entries below `prefix/`, without it."""
    return {name[len(prefix) + 1 :]: value for name, value in x.items() if name.startswith(prefix + "/")}


def below(prefix: str, x: Mapping[str, Tensor]) -> Tensors:
    """The inverse of `under`."""
    return {f"{prefix}/{name}": value for name, value in x.items()}


def ema(prefix: str, x: Tensors) -> EmaState:
    """A moving average among the inputs."""
    return EmaState(**{name: x[f"{prefix}/{name}"] for name in ("moment1", "moment2", "decay_product")})


def flat_ema(prefix: str, state: EmaState) -> Tensors:
    """A moving average as outputs."""
    return {f"{prefix}/{name}": getattr(state, name) for name in ("moment1", "moment2", "decay_product")}


def rollout(x: Tensors, s: Settings, **given: Any) -> UpdateRuleInputs:
    """The package's rollout from a layer's inputs; what a layer does not have is zero, or as `given`."""
    T, B, dtype = s["T"], s["B"], s["torch_dtype"]
    extra: dict[str, Any] = {name: x[name] for name in SCALARS if name in x}
    fields: dict[str, Any] = {
        "observations": x.get("observations", torch.zeros(T + 1, B)),
        "actions": x.get("actions", torch.zeros(T + 1, B, dtype=torch.int64)),
        "rewards": x.get("rewards", torch.zeros(T, B)),
        "is_terminal": x["is_terminal"].to(dtype) if "is_terminal" in x else torch.zeros(T, B),
        "agent_out": under("agent_out", x),
        "behaviour_agent_out": under("behaviour_out", x),
        "extra_from_rule": {**extra, "target_out": under("target_out", x)},
    }
    return UpdateRuleInputs(**(fields | given))
