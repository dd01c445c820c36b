"""Catch on tensors behind the common interface, with a source of columns of its own."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from port.environments import threefry
from port.environments.base import ActionSpec, ArraySpec, Environment
from port.environments.catch import NUM_ACTIONS, Catch, CatchState
from port.types import Timestep


class ColumnSource(abc.ABC):
    """Where the columns of new balls come from: asked for one row of columns per step, whether they are used or not."""

    @abc.abstractmethod
    def draw(self, steps: int) -> Tensor:
        """Columns for the next steps, [steps, B]."""

    def first(self) -> Tensor:
        """Columns of the first balls, [B]."""
        return self.draw(1)[0]


class DrawnColumns(ColumnSource):
    """Columns from a torch generator."""

    def __init__(self, env: Catch, batch_size: int, generator: torch.Generator) -> None:
        """Takes the generator, which moves on with every draw."""
        self._env, self._batch_size, self._generator = env, batch_size, generator

    def draw(self, steps: int) -> Tensor:
        """Columns for the next steps, [steps, B]."""
        return self._env.draw_columns(self._generator, steps, self._batch_size)


class OriginalColumns(ColumnSource):
    """The columns that the original draws: each environment splits its key at every step, and one half draws.

    Reference: disco_rl/environments/wrappers/batched_jittable_env.py::BatchedJittableEnvironment
    """

    def __init__(self, env: Catch, batch_size: int, seed: int) -> None:
        """Starts as `reset(PRNGKey(seed))` does."""
        self._columns = env.columns
        self._keys = threefry.split(threefry.prng_key(seed), batch_size)  # [B, 2]

    def draw(self, steps: int) -> Tensor:
        """Columns for the next steps, [steps, B]."""
        return torch.stack([self._next() for _ in range(steps)])

    def _next(self) -> Tensor:
        pair = threefry.split(self._keys)  # [B, 2, 2]
        self._keys = pair[:, 0]
        return torch.from_numpy(threefry.randint(pair[:, 1], 1, self._columns)[:, 0]).long()


class VectorisedCatch(Environment):
    """A batch of boards on tensors.

    Reference: disco_rl/environments/jittable_envs.py::CatchJittableEnvironment
    """

    def __init__(self, env: Catch, batch_size: int, source: ColumnSource) -> None:
        """Takes the game and where its columns come from."""
        if batch_size < 1:
            raise ValueError(f"A batch needs at least one environment; got {batch_size}.")
        self._env, self._source, self.batch_size = env, source, batch_size
        self._state: CatchState | None = None
        self.observation_spec = ArraySpec(env.observation_shape, env.dtype)
        self.action_spec = ActionSpec((), torch.int32, NUM_ACTIONS)

    def reset(self) -> Timestep:
        """Starts every environment anew."""
        columns = self._source.first()
        if tuple(columns.shape) != (self.batch_size,):
            raise ValueError(
                f"There are {self.batch_size} environments; their source gives {tuple(columns.shape)} columns."
            )
        self._state, timestep = self._env.reset(columns)
        return timestep

    def step(self, actions: Tensor) -> Timestep:
        """Takes one action [B] in each environment."""
        self.check_actions(actions)
        if self._state is None:
            raise ValueError("No episode has begun; call reset before the first step.")
        self._state, timestep = self._env.step(self._state, actions, self._source.draw(1)[0])
        return timestep
