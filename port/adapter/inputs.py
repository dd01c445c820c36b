"""What the layers share: where they are registered, the port's names of parameters, and configurations of settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from parity.adapters.torch import Adapter
from parity.adapters.torch import Tensors as Tensors
from port.agent import Agent
from port.config import (
    ActorCriticConfig,
    ActorCriticHyperParams,
    AgentConfig,
    AgentNetConfig,
    DiscoConfig,
    HyperParams,
    MetaNetConfig,
    MetaRnnConfig,
)
from port.networks import param_names
from port.types import Heads, LstmState, Rollout, RuleInputs
from port.update_rules.disco import Disco

Settings = dict[str, Any]
Config = TypeVar("Config")

VALUE_HEADS = Heads({"logits": 1, "v": 1}, {})  # of actor-critic agents, whose settings have no prediction size
LETTERS = {"P": "prediction_size", "H": "hidden_size", "K": "num_bins", "lambda": "lambda_"}
SCALARS = ("v_scalar", "adv", "normalized_adv", "q", "qv_adv", "normalized_qv_adv")


def names(s: Settings) -> Iterator[tuple[str, str]]:
    """The original's names of parameters, and the registry's of a learner's state, with the port's."""
    tables = [{"opt_state": "opt", "rnn_state": "rnn"}]
    if "dense" in s:
        tables.append(param_names.agent_names(config_of(AgentNetConfig, s), None if "P" in s else VALUE_HEADS))
    if "embedding_size" in s:
        tables.append(param_names.meta_names(meta_config(s)))
    if "value_dense" in s:
        tables.append(param_names.value_names(s["value_dense"]))
    return ((original, ours) for table in tables for ours, original in table.items())


registered = Adapter("port", names=names)
layer = registered.layer


def config_of(kind: type[Config], s: Settings, prefix: str = "", **known: Any) -> Config:
    """A configuration with those of its fields that the settings have, as lists or tuples; the others keep defaults.

    Args:
        kind: the class.
        s: the settings, which may call a field by a letter.
        prefix: what stands before the field's name in the settings, where that is there.
        known: fields that are not taken from the settings.
    """
    by_field = {
        LETTERS.get(name, name): tuple(value) if isinstance(value, list) else value for name, value in s.items()
    }
    fields = {name: by_field.get(prefix + name, by_field.get(name)) for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
    return kind(**({name: value for name, value in fields.items() if value is not None} | known))


def meta_config(s: Settings) -> MetaNetConfig:
    """The meta-network's configuration; of a layer without a meta-network, its prediction size."""
    rnn = config_of(MetaRnnConfig, s, "meta_", hidden_size=s["M"]) if "M" in s else MetaRnnConfig()
    return config_of(MetaNetConfig, s, meta_rnn=rnn)


def disco(s: Settings) -> Disco:
    """The Disco rule."""
    return Disco(config_of(HyperParams, s), config_of(DiscoConfig, s), meta_config(s))


def agent(s: Settings) -> Agent:
    """An agent: by Disco, or by actor-critic, whose settings have no prediction size."""
    kinds = (HyperParams, DiscoConfig) if "P" in s else (ActorCriticHyperParams, ActorCriticConfig)
    hyper, rule = (config_of(kind, s) for kind in kinds)
    config = config_of(
        AgentConfig, s, hyper=hyper, rule=rule, meta_net=meta_config(s), net=config_of(AgentNetConfig, s)
    )
    return Agent(config, tuple(s["obs"]), s["A"], averaging=s.get("averaging"), path=s.get("path", "auto"))


def by_our_names(x: Mapping[str, Tensor], s: Settings) -> Tensors:
    """Inputs that have the registry's names."""
    return registered.inside(Tensors(x), s)


def rnn_state(x: Tensors) -> LstmState:
    """The meta-RNN's state among the inputs."""
    return x.record(LstmState, "rnn_state")


def rollout(x: Tensors, prefix: str = "rollout") -> Rollout:
    """A rollout among the inputs."""
    return x.record(Rollout, prefix, agent_outs={"logits": x[f"{prefix}/logits"]})


def rollouts(x: Tensors, prefix: str, count: int) -> list[Rollout]:
    """Rollouts that are stacked along a leading axis."""
    stacked = x.under(prefix)
    return [rollout(x | {f"one/{name}": value[i] for name, value in stacked.items()}, "one") for i in range(count)]


def experience(x: Tensors, **known: Any) -> RuleInputs:
    """The rule's inputs among the layer's; what a layer does not have is left empty, or as it is `known`."""
    agent_out = known.get("agent_out", x.under("agent_out"))
    like, steps = next(iter(agent_out.values())), x.actions[1:]
    blank = {
        "observations": like,
        "rewards": like.new_zeros(steps.shape),
        "is_terminal": torch.zeros_like(steps, dtype=torch.bool),
    }
    extra: dict[str, Any] = {name: x[name] for name in SCALARS if name in x}
    known = {"behaviour_agent_out": x.under("behaviour_out"), **known}
    extra["target_out"] = x.under("target_out")
    return Tensors(blank | x).record(RuleInputs, extra_from_rule=extra, **known)
