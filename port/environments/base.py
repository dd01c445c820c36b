"""What the port asks of an environment: a batch of them, stepped by one call, with specs of one observation and action.

Randomness is the environment's own affair here (a seed, a generator, given columns); `reset` and `step` take none.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from port import ops
from port.types import FIRST_STEP, LAST_STEP, MID_STEP, Timestep

__all__ = ["FIRST_STEP", "LAST_STEP", "MID_STEP", "ActionSpec", "ArraySpec", "Environment"]


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def batched(self, batch_size: int) -> ArraySpec:
        """The same for a batch.

        Reference: disco_rl/utils.py::broadcast_specs
        """
        return replace(self, shape=(batch_size, *self.shape))


@dataclass(frozen=True)
class ActionSpec(ArraySpec):
    """Actions are 0 to `num_actions` - 1."""

    num_actions: int


class Environment(abc.ABC):
    """A batch of environments that start over by themselves.

    Where an episode ends, step type and reward are those of its last step, and the observation is already the first of
    the next episode.

    Attributes:
        batch_size: B.
        observation_spec: of one environment.
        action_spec: of one environment.

    Reference: disco_rl/environments/base.py::Environment
    """

    batch_size: int
    observation_spec: ArraySpec
    action_spec: ActionSpec

    @abc.abstractmethod
    def reset(self) -> Timestep:
        """Starts every environment anew, [B, ...]."""

    @abc.abstractmethod
    def step(self, actions: Tensor) -> Timestep:
        """Takes one action [B] in each environment."""

    def check_actions(self, actions: Tensor) -> None:
        """Raises ValueError or TypeError unless there is one action per environment, each of them possible."""
        ops.check_tensors(actions=actions)
        if tuple(actions.shape) != (self.batch_size,):
            raise ValueError(f"There are {self.batch_size} environments; got actions of {tuple(actions.shape)}.")
        ops.check_actions(actions, self.action_spec.num_actions)
