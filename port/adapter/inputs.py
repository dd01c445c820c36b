"""What the layers share: parameters, states and configurations out of flat dicts of named tensors, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from port.agent import Agent
from port.config import AgentConfig, AgentNetConfig, DiscoConfig, HyperParams, MetaNetConfig, MetaRnnConfig
from port.networks import param_names
from port.types import EmaState, LstmState, Params, RuleInputs

Tensors = dict[str, Tensor]
Settings = Mapping[str, Any]
LayerFn = Callable[[Tensors, Settings], Tensors]

LAYERS: dict[str, LayerFn] = {}


def layer(name: str) -> Callable[[LayerFn], LayerFn]:
    """Registers a layer under its name."""

    def keep(fn: LayerFn) -> LayerFn:
        LAYERS[name] = fn
        return fn

    return keep


def under(prefix: str, x: Mapping[str, Tensor]) -> Tensors:
    """The entries below `prefix/`, without it."""
    return {name[len(prefix) + 1 :]: value for name, value in x.items() if name.startswith(prefix + "/")}


def below(prefix: str, x: Mapping[str, Tensor]) -> Tensors:
    """The inverse of `under`."""
    return {f"{prefix}/{name}": value for name, value in x.items()}


def meta_config(s: Settings) -> MetaNetConfig:
    """The meta-network's configuration for the harness's settings."""
    stds = ("output_stddev", "aux_stddev", "policy_target_stddev", "state_stddev")
    return MetaNetConfig(
        prediction_size=s["P"],
        hidden_size=s["H"],
        embedding_size=tuple(s["embedding_size"]),
        policy_channels=tuple(s["policy_channels"]),
        policy_target_channels=tuple(s["policy_target_channels"]),
        **{name: s[name] for name in stds if name in s},
        meta_rnn=MetaRnnConfig(
            policy_channels=tuple(s["meta_policy_channels"]),
            embedding_size=tuple(s["meta_embedding_size"]),
            pred_embedding_size=tuple(s["meta_pred_embedding_size"]),
            hidden_size=s["M"],
        ),
    )


def net_config(s: Settings) -> AgentNetConfig:
    """The agent network's configuration."""
    std = {"head_w_init_std": s["head_w_init_std"]} if "head_w_init_std" in s else {}
    return AgentNetConfig(
        dense=tuple(s["dense"]),
        head_mlp_hiddens=tuple(s["head_mlp_hiddens"]),
        lstm_size=s["lstm_size"],
        **std,
    )


def hyper_params(s: Settings) -> HyperParams:
    """Costs and speeds; what a layer does not set stays at its default."""
    return HyperParams(**{name: s[name] for name in HyperParams.__dataclass_fields__ if name in s})


def rule_config(s: Settings) -> DiscoConfig:
    """Value estimation inside the rule."""
    fields = {name: s[name] for name in DiscoConfig.__dataclass_fields__ if name in s}
    return DiscoConfig(**fields, **({"num_bins": s["K"]} if "K" in s else {}))


def agent(s: Settings) -> Agent:
    """An agent for the harness's settings."""
    speeds = {name: s[name] for name in ("learning_rate", "max_abs_update") if name in s}
    meta = meta_config(s) if "H" in s else MetaNetConfig(prediction_size=s["P"])
    config = AgentConfig(**speeds, hyper=hyper_params(s), rule=rule_config(s), meta_net=meta, net=net_config(s))
    return Agent(config, tuple(s["obs"]), s["A"], averaging=s.get("averaging"), path=s.get("path", "auto"))


def to_ours(prefix: str, x: Tensors, table: Mapping[str, str]) -> Params:
    """Parameters in our names, as many of them as there are."""
    given = under(prefix, x)
    return {ours: given[original] for ours, original in table.items() if original in given}


def to_original(prefix: str, params: Params, table: Mapping[str, str]) -> Tensors:
    """Parameters in the original's names."""
    return {f"{prefix}/{table[ours]}": value for ours, value in params.items()}


def agent_params(x: Tensors, s: Settings, prefix: str = "params") -> Params:
    """Agent parameters among the inputs."""
    return to_ours(prefix, x, param_names.agent_names(net_config(s)))


def meta_params(x: Tensors, s: Settings) -> Params:
    """Meta-parameters among the inputs."""
    return to_ours("meta_params", x, param_names.meta_names(meta_config(s)))


def ema(prefix: str, x: Tensors) -> EmaState:
    """A moving average among the inputs."""
    return EmaState(**{field: x[f"{prefix}/{field}"] for field in EmaState._fields})


def flat_ema(prefix: str, state: EmaState) -> Tensors:
    """A moving average as outputs."""
    return below(prefix, state._asdict())


def experience(x: Tensors) -> RuleInputs:
    """The rule's inputs among the layer's; what a layer does not have is left empty."""
    scalars = ("v_scalar", "adv", "normalized_adv", "q", "qv_adv", "normalized_qv_adv")
    extra: dict[str, Any] = {name: x[name] for name in scalars if name in x}
    agent_out, actions = under("agent_out", x), x["actions"]
    like = next(iter(agent_out.values()))
    return RuleInputs(
        observations=x.get("observations", like),
        actions=actions,
        rewards=x.get("rewards", like.new_zeros(actions[1:].shape)),
        is_terminal=x.get("is_terminal", torch.zeros_like(actions[1:], dtype=torch.bool)),
        agent_out=agent_out,
        behaviour_agent_out=under("behaviour_out", x),
        extra_from_rule={**extra, "target_out": under("target_out", x)},
    )


def rnn_state(prefix: str, x: Tensors) -> LstmState:
    """An LSTM's state among the inputs."""
    return LstmState(x[f"{prefix}/hidden"], x[f"{prefix}/cell"])
