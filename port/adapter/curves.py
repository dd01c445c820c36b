"""Whole lives of the port, for learning curves: the settings of `parity.runs.curves` in the port's own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from port import weights
from port.agent import Agent
from port.config import (
    ActorCriticConfig,
    ActorCriticHyperParams,
    AgentConfig,
    AgentNetConfig,
    DiscoConfig,
    MetaNetConfig,
    MetaRnnConfig,
    get_settings_actor_critic,
    get_settings_disco,
)
from port.environments import Catch
from port.evaluate import eval_loop
from port.evaluate.eval_loop import EvalConfig
from port.types import Params

Step: TypeAlias = tuple[int, list[bool], float | None]


class Setting(Protocol):
    """What is read of a setting."""

    rule: str
    weights: str | None
    agent: Any
    loop: Any

    def weights_path(self) -> Path:
        """The file of weights."""


def _disco(sizes: dict[str, Any]) -> AgentConfig:
    return replace(
        get_settings_disco(),
        learning_rate=sizes["learning_rate"],
        rule=DiscoConfig(num_bins=sizes["num_bins"], max_abs_value=sizes["max_abs_value"]),
        net=AgentNetConfig(**{name: sizes[name] for name in ("dense", "head_mlp_hiddens", "lstm_size")}),
        meta_net=MetaNetConfig(
            prediction_size=sizes["prediction_size"],
            hidden_size=sizes["hidden_size"],
            meta_rnn=MetaRnnConfig(hidden_size=sizes["meta_hidden_size"]),
        ),
    )


def _actor_critic(sizes: dict[str, Any]) -> AgentConfig:
    config = get_settings_actor_critic()
    return replace(
        config,
        learning_rate=sizes["learning_rate"],
        rule=ActorCriticConfig(normalize_adv=sizes["normalize_adv"]),
        hyper=ActorCriticHyperParams(entropy_cost=sizes["entropy_cost"]),
        net=replace(config.net, dense=sizes["dense"]),
    )


def agent_config(setting: Setting) -> AgentConfig:
    """The agent of a setting."""
    return {"disco": _disco, "actor_critic": _actor_critic}[setting.rule](dict(setting.agent))


def live(setting: Setting, seed: int) -> Iterator[Step]:
    """A life in float32: after each step the frames so far, which episodes that ended were caught, the value loss."""
    torch.set_num_threads(1)
    loop = EvalConfig(**setting.loop, seed=seed)
    env, config = Catch(loop.rows, loop.columns), agent_config(setting)
    meta_params: Params = weights.load_npz(setting.weights_path(), config.meta_net) if setting.weights else {}
    agent = Agent(config, env.observation_shape, env.num_actions)
    for report in eval_loop.live(agent, meta_params, loop):
        yield report.frames, [value > 0 for value in report.episode_returns], report.logs.get("q_loss")
