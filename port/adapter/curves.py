"""Training runs of the port, for learning curves: the words of `parity.runs.spec` in the port's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from port import weights
from port.adapter import inputs, rules
from port.agent import Agent
from port.config import AgentConfig
from port.environments import Catch
from port.evaluate.eval_loop import EvalConfig, EvalLoop
from port.types import Params

Step: TypeAlias = tuple[int, list[bool], float | None]


class RunSpec(Protocol):
    """What is read of a run's spec."""

    @property
    def rule(self) -> str:
        """`disco` or `actor_critic`."""

    @property
    def weights(self) -> str | None:
        """A name; None for a rule without weights."""

    @property
    def seed(self) -> int:
        """Of parameters, actions and balls."""

    @property
    def loop(self) -> Any:
        """Of the evaluation; a dataclass."""

    @property
    def settings(self) -> dict[str, Any]:
        """Of the learner step, as the registry names them."""

    def weights_path(self) -> Path:
        """The file of weights."""


def agent_config(spec: RunSpec) -> AgentConfig:
    """The agent of a run."""
    agent_for = inputs.agent if spec.rule == "disco" else rules.actor_critic_agent
    return agent_for(spec.settings).config


def train(spec: RunSpec) -> Iterator[Step]:
    """A run in float32: after each step the frames so far, which episodes that ended were caught, the value loss."""
    torch.set_num_threads(1)
    loop = EvalConfig(**asdict(spec.loop), seed=spec.seed)
    env, config = Catch(loop.rows, loop.columns), agent_config(spec)
    meta_params: Params = weights.load_npz(spec.weights_path(), config.meta_net) if spec.weights else {}
    agent = Agent(config, env.observation_shape, env.num_actions)
    run = EvalLoop(agent, meta_params, loop)
    for _ in range(loop.num_steps):
        report = run.step()
        yield report.frames, [value > 0 for value in report.episode_returns], report.logs.get("q_loss")
