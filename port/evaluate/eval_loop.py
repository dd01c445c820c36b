"""The evaluation loop of the original's `eval` notebook: a fresh agent learns Catch by a rule.

Each step acts for one rollout in a few environments, adds it to a replay buffer, and learns from a batch out of the
buffer, once that is large enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from port.agent import Agent
from port.command_line import setting
from port.config import AgentConfig, PolicyGradientConfig, check_sizes
from port.environments import Catch
from port.evaluate import acting
from port.networks.param_names import ObsSpec
from port.replay import ReplayBuffer
from port.rollout_checks import check_learned
from port.types import LearnerState, Logs, Params, Rollout

LAST_EPISODES = 100  # over which the catch rate is taken


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How to act and learn, here and in `port.train`; the defaults are those of the original's evaluation notebook."""

    batch_size: int = setting(64, "trajectories per learner step")
    rollout_length: int = setting(29, "acted steps per rollout; a learner sees one transition less")
    capacity: int = setting(1024, "trajectories in the replay buffer")
    seed: int = setting(0, "of the agent's parameters, its actions and the environments")
    replay_seed: int = setting(17, "of what is drawn from the replay buffer")

    def __post_init__(self) -> None:
        check_sizes(self, "batch_size", "capacity")
        if self.rollout_length < 2:
            name = f"{type(self).__name__}.rollout_length"
            raise ValueError(f"{name} is {self.rollout_length}; one transition takes 2 steps.")
        if self.capacity < self.batch_size:
            raise ValueError(
                f"A buffer of {self.capacity} never holds a batch of {self.batch_size}; nothing would learn."
            )


@dataclass(frozen=True, kw_only=True)
class EvalConfig(LoopConfig):
    """Settings of the evaluation loop; the defaults are those of the original's notebook."""

    num_steps: int = 1000  # rollouts, and nearly as many learner steps
    replay_ratio: int = 32  # learned trajectories per acted one
    rows: int = 8
    columns: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "num_steps", "replay_ratio")
        if self.batch_size % self.replay_ratio:
            raise ValueError(
                f"A batch of {self.batch_size} is no multiple of the replay ratio {self.replay_ratio}; the number of "
                "environments is their quotient."
            )

    @property
    def num_envs(self) -> int:
        """Environments that act in parallel."""
        return self.batch_size // self.replay_ratio

    @property
    def min_buffer_size(self) -> int:
        """Trajectories that must be there before learning starts."""
        return self.batch_size


class Randomness(Protocol):
    """All that the loop leaves to chance, but for parameters and replay; that of a recorded run can be given again."""

    def first_columns(self) -> Tensor:
        """Columns of the first balls, [B]."""

    def rollout(self) -> tuple[Tensor, Tensor]:
        """For the next rollout: Gumbel noise [L, B, A], and columns of new balls [L, B]."""


class DrawnRandomness:
    """Noise from a torch generator."""

    def __init__(self, config: EvalConfig, env: Catch, generator: torch.Generator) -> None:
        """Takes the generator, which moves on with every draw."""
        self._shape = (config.rollout_length, config.num_envs)
        self._env, self._generator = env, generator

    def first_columns(self) -> Tensor:
        """Columns of the first balls, [B]."""
        return self._env.draw_columns(self._generator, self._shape[1])

    def rollout(self) -> tuple[Tensor, Tensor]:
        """Gumbel noise [L, B, A], and columns of new balls [L, B]."""
        return acting.draw_noise(self._env, self._generator, *self._shape)


def accumulate_returns(so_far: Tensor, rewards: Tensor, discounts: Tensor) -> tuple[Tensor, Tensor]:
    """Adds rewards up within episodes, over the borders of rollouts.

    Args:
        so_far: [B], what the running episodes have brought before.
        rewards: [L, B].
        discounts: [L, B], zero at the last step of an episode.

    Returns:
        What the episodes that run on have brought, [B], and the sum up to each step, its reward included, [L, B].
    """
    if not (rewards.ndim == 2 and rewards.shape == discounts.shape and so_far.shape == rewards.shape[1:]):
        shapes = [tuple(x.shape) for x in (so_far, rewards, discounts)]
        raise ValueError(f"Returns take sums of [B], rewards and discounts of [L, B]; got {shapes}.")
    returns = []
    for reward, discount in zip(rewards.unbind(), discounts.to(rewards.dtype).unbind(), strict=True):
        total = so_far + reward
        returns.append(total)
        so_far = total * discount
    return so_far, torch.stack(returns)


class StepReport(NamedTuple):
    """What a caller sees of each step of the loop.

    Attributes:
        step: from 0.
        frames: acted in all environments so far.
        rollout: what was acted, [L, B].
        episode_returns: of the episodes that ended in it, in the order in which they ended.
        catch_rate: over the last 100 episodes so far, NaN before the first has ended.
        logs: of the learner step, scalars; empty while the buffer fills.
        state: of the learner afterwards.
    """

    step: int
    frames: int
    rollout: Rollout
    episode_returns: list[float]
    catch_rate: float
    logs: Logs
    state: LearnerState


@dataclass(frozen=True)
class EvalResult:
    """How a run went, without its parameters.

    Attributes:
        config: of the loop.
        frames: [num_steps], frames acted up to each step.
        average_returns: [num_steps], of the episodes that ended in each rollout.
        catch_rates: [num_steps], over the last 100 episodes up to each step, NaN before the first has ended.
        episode_returns: [episodes], in the order in which they ended.
        logs: name -> [num_steps], NaN while the buffer filled.
    """

    config: EvalConfig
    frames: np.ndarray
    average_returns: np.ndarray
    catch_rates: np.ndarray
    episode_returns: np.ndarray
    logs: dict[str, np.ndarray]

    @property
    def catch_rate(self) -> float:
        """Share of the last 100 episodes in which the ball was caught."""
        return catch_rate(self.episode_returns)

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Name -> [num_steps], all that is known of each step."""
        first = {"frames": self.frames, "average_return": self.average_returns}
        return {**first, **self.logs, "catch_rate": self.catch_rates}

    def solved_at(self, bar: float) -> int | None:
        """The first step after which at least that share of the last 100 episodes was caught, counted from 1."""
        reached = np.flatnonzero(self.catch_rates >= bar)
        return int(reached[0]) + 1 if len(reached) else None


def catch_rate(episode_returns: Sequence[float] | np.ndarray) -> float:
    """Share of the last 100 episodes in which the ball was caught; NaN where none has ended."""
    last = np.asarray(episode_returns[-LAST_EPISODES:])
    return float((last > 0).mean()) if len(last) else float("nan")


def scalars(logs: Logs) -> Logs:
    """The logs that are single numbers."""
    return {name: float(x) for name, x in logs.items() if isinstance(x, Tensor) and x.ndim == 0}


class EvalLoop:
    """An agent that learns Catch, step by step; it can be looked into and changed between steps.

    Attributes:
        config: of the loop.
        state: of the learner.
        buffer: of what was acted.
    """

    def __init__(
        self,
        agent: Agent,
        meta_params: Params,
        config: EvalConfig | None = None,
        dtype: torch.dtype = torch.float32,
        state: LearnerState | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        """Sets everything up.

        Args:
            agent: for boards of `config`.
            meta_params: of its rule; an empty dict for a rule without any.
            config: of the loop.
            dtype: of parameters, observations and noise.
            state: of the learner to start with; a fresh one from the seed if left out.
            randomness: for acting; drawn from the seed if left out.
        """
        self.config = config = config or EvalConfig()
        self._env = Catch(config.rows, config.columns, dtype)
        check_rule(agent.config)
        check_agent(agent, self._env.observation_shape, self._env.num_actions)
        agent.rule.check_meta_params(meta_params)
        self._agent, self._meta_params = agent, meta_params
        generator = torch.Generator().manual_seed(config.seed)
        self.state = state or agent.initial_learner_state(generator, dtype)
        self._chance = randomness or DrawnRandomness(config, self._env, generator)
        self._stream = acting.start(self._env, self._chance.first_columns())
        self.buffer = ReplayBuffer(config.capacity, config.replay_seed)
        self._so_far = torch.zeros(config.num_envs, dtype=dtype)  # rewards of the episodes that run on
        self._returns: list[float] = []
        self._steps = 0

    def step(self) -> StepReport:
        """Acts for one rollout, and learns from a batch once there are enough; the caller counts the steps."""
        config = self.config
        rollout, self._stream = acting.unroll(self._env, self.state.params, self._stream, *self._chance.rollout())
        self.buffer.add(rollout)
        self._so_far, returns = accumulate_returns(self._so_far, rollout.rewards, rollout.discounts)
        ended: list[float] = returns[rollout.discounts == 0].tolist()
        self._returns += ended
        logs: Logs = {}
        if len(self.buffer) >= config.min_buffer_size:
            batch = self.buffer.sample(config.batch_size)
            state, logs = self._agent.learner_step(batch, self.state, self._meta_params)
            check_learned(state, logs, f"in step {self._steps}")
            self.state = state
        step, self._steps = self._steps, self._steps + 1
        frames = self._steps * config.rollout_length * config.num_envs
        return StepReport(step, frames, rollout, ended, catch_rate(self._returns), scalars(logs), self.state)

    def run(self, on_step: Callable[[StepReport], None] | None = None) -> EvalResult:
        """All steps; `on_step` is called after each."""
        frames, averages, rates, logs = [], [], [], []  # not the reports: each holds a whole learner
        for _ in range(self.config.num_steps):
            report = self.step()
            frames.append(report.frames)
            averages.append(mean(report.episode_returns))
            rates.append(report.catch_rate)
            logs.append(report.logs)
            if on_step:
                on_step(report)
        names = dict.fromkeys(name for one in logs for name in one)
        return EvalResult(
            config=self.config,
            frames=np.array(frames),
            average_returns=np.array(averages),
            catch_rates=np.array(rates),
            episode_returns=np.array(self._returns),
            logs={name: np.array([one.get(name, np.nan) for one in logs]) for name in names},
        )


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of no values."""
    return float(np.mean(values)) if values else float("nan")


def check_rule(config: AgentConfig) -> None:
    """Raises ValueError where an agent cannot learn by itself."""
    if isinstance(config.rule, PolicyGradientConfig):
        raise ValueError("The policy-gradient rule needs a value function beside the agent; this loop has none.")


def check_agent(agent: Agent, obs_spec: ObsSpec, num_actions: int) -> None:
    """Raises ValueError where an agent was made for other environments."""
    if agent.obs_spec != obs_spec or agent.num_actions != num_actions:
        raise ValueError(
            f"The agent was made for observations of {agent.obs_spec} and {agent.num_actions} actions; these "
            f"environments show {obs_spec} and take {num_actions}."
        )
