"""Catch one board at a time, as an environment on the host would be, and the wrappers that make a batch of such.

A single environment follows dm_env: a step after the last one starts a new episode, whatever the action. `SingleStream`
leaves that extra step out, and `Batched` puts streams side by side, each with a seed of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from port.environments import threefry
from port.environments.base import FIRST_STEP, LAST_STEP, MID_STEP, ActionSpec, ArraySpec, Environment
from port.environments.catch import NUM_ACTIONS, check_board
from port.types import Timestep

SEEDS_BELOW = 2**31 - 1


class HostStep(NamedTuple):
    """What a single environment shows: observation, step type (0 first, 1 middle, 2 last), reward (0 at the first)."""

    observation: np.ndarray
    step_type: int
    reward: float


class HostEnvironment(Protocol):
    """A single environment on the host."""

    observation_spec: ArraySpec
    action_spec: ActionSpec

    def reset(self) -> HostStep:
        """The first step of a new episode."""

    def step(self, action: int) -> HostStep:
        """The next step; after a last one, the first of a new episode."""


class Columns(Protocol):
    """Where balls come from; NumPy's generators are such."""

    def randint(self, below: int) -> int:
        """A column in [0, below)."""


class HostCatch:
    """One board of Catch.

    Reference: disco_rl/environments/catch.py::SingleStreamCatch
    """

    def __init__(self, rows: int = 8, columns: int = 8, source: int | Columns = 1) -> None:
        """Makes a board on which no episode has begun.

        Args:
            rows: at least 2.
            columns: at least 1.
            source: a seed for NumPy's RandomState, or anything else that balls' columns can be drawn from.
        """
        check_board(rows, columns)
        self._rows, self._columns = rows, columns
        self._source: Columns = np.random.RandomState(source) if isinstance(source, int | np.integer) else source
        self._ball_row = self._ball_column = self._paddle_column = 0
        self._is_over = True
        self.observation_spec = ArraySpec((rows, columns), torch.float32)
        self.action_spec = ActionSpec((), torch.int32, NUM_ACTIONS)

    def reset(self) -> HostStep:
        """A new ball in the top row, the paddle in the middle.

        Reference: disco_rl/environments/catch.py::SingleStreamCatch.reset
        """
        self._is_over = False
        self._ball_row, self._ball_column = 0, int(self._source.randint(self._columns))
        self._paddle_column = self._columns // 2
        return HostStep(self._board(), FIRST_STEP, 0.0)

    def step(self, action: int) -> HostStep:
        """Moves paddle and ball; the last step still shows the ball in the paddle's row.

        Reference: disco_rl/environments/catch.py::SingleStreamCatch.step
        """
        if action not in range(NUM_ACTIONS):
            raise ValueError(f"Action {action} is none of 0 (left), 1 (stay), 2 (right).")
        if self._is_over:
            return self.reset()
        self._paddle_column = min(max(self._paddle_column + action - 1, 0), self._columns - 1)
        self._ball_row += 1
        self._is_over = self._ball_row == self._rows - 1
        if not self._is_over:
            return HostStep(self._board(), MID_STEP, 0.0)
        return HostStep(self._board(), LAST_STEP, 1.0 if self._paddle_column == self._ball_column else -1.0)

    def _board(self) -> np.ndarray:
        board = np.zeros((self._rows, self._columns), np.float32)
        board[self._ball_row, self._ball_column] = 1.0
        board[self._rows - 1, self._paddle_column] = 1.0
        return board


class SingleStream:
    """An environment whose episodes follow each other without an extra step.

    Reference: disco_rl/environments/wrappers/single_stream_env.py::SingleStreamEnv
    """

    def __init__(self, env: HostEnvironment) -> None:
        """Wraps an environment."""
        self._env = env
        self.observation_spec, self.action_spec = env.observation_spec, env.action_spec

    def reset(self) -> HostStep:
        """The first step of a new episode."""
        return self._env.reset()

    def step(self, action: int) -> HostStep:
        """The next step; a last one shows the board of the next episode.

        Reference: disco_rl/environments/wrappers/single_stream_env.py::SingleStreamEnv.step
        """
        step = self._env.step(action)
        if step.step_type != LAST_STEP:
            return step
        return step._replace(observation=self._env.step(action).observation)


def spread_seed(seed: int, batch_size: int) -> list[int]:
    """The seeds that the parts of a batch get, those that the original draws with JAX.

    Reference: disco_rl/environments/wrappers/batched_env.py::BatchedSingleStreamEnvironment.__init__
    """
    return [int(drawn) for drawn in threefry.randint(threefry.prng_key(seed), batch_size, SEEDS_BELOW)]


class Batched(Environment):
    """Single environments side by side, stepped one after the other.

    Reference: disco_rl/environments/wrappers/batched_env.py::BatchedSingleStreamEnvironment
    """

    def __init__(self, envs: Sequence[HostEnvironment]) -> None:
        """Takes the environments, and starts each of them once, as the original does."""
        if not envs:
            raise ValueError("A batch needs at least one environment.")
        self._envs = tuple(SingleStream(env) for env in envs)
        self.batch_size = len(envs)
        self.observation_spec, self.action_spec = envs[0].observation_spec, envs[0].action_spec
        self.reset()

    def reset(self) -> Timestep:
        """The first step of a new episode in each environment."""
        return self._stacked([env.reset() for env in self._envs])

    def step(self, actions: Tensor) -> Timestep:
        """Takes one action [B] in each environment.

        Reference: disco_rl/environments/wrappers/batched_env.py::BatchedSingleStreamEnvironment.step
        """
        self.check_actions(actions)
        return self._stacked([env.step(int(a)) for env, a in zip(self._envs, actions.tolist(), strict=True)])

    def _stacked(self, steps: Sequence[HostStep]) -> Timestep:
        observation = torch.from_numpy(np.stack([step.observation for step in steps]))
        step_type = torch.tensor([step.step_type for step in steps])
        return Timestep(observation, step_type, torch.tensor([step.reward for step in steps], dtype=torch.float32))


def host_catch(batch_size: int, rows: int = 8, columns: int = 8, seed: int = 1) -> Batched:
    """A batch of boards on the host, with the original's episodes for the same seed.

    Reference: disco_rl/environments/catch.py::CatchEnvironment
    """
    return Batched([HostCatch(rows, columns, drawn) for drawn in spread_seed(seed, batch_size)])
