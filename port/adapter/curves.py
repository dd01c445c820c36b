"""Training runs of the port, for learning curves: the words of `parity.runs.spec` in the port's own.

A spec is read by name alone: the port imports nothing of the harness but the helpers for adapters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, TypeAlias

import torch

from port import weights
from port.adapter import inputs
from port.agent import Agent
from port.config import AgentConfig
from port.environments import Catch
from port.evaluate.eval_loop import EvalConfig, EvalLoop
from port.types import Params

Step: TypeAlias = tuple[int, list[bool], float | None]


def agent_config(spec: Any) -> AgentConfig:
    """The agent of a run."""
    return inputs.agent(spec.settings).config


def train(spec: Any) -> Iterator[Step]:
    """A run in float32: after each step the frames so far, which episodes that ended were caught, the value loss."""
    torch.set_num_threads(1)
    loop = EvalConfig(**asdict(spec.loop), seed=spec.seed)
    env, config = Catch(loop.rows, loop.columns), agent_config(spec)
    meta_params: Params = weights.load_npz(spec.meta_params(), config.meta_net) if spec.weights else {}
    agent = Agent(config, env.observation_shape, env.num_actions)
    run = EvalLoop(agent, meta_params, loop)
    for _ in range(loop.num_steps):
        report = run.step()
        yield report.frames, [value > 0 for value in report.episode_returns], report.logs.get("q_loss")
