"""What a trainer asks of its environments: a batch of them, stepped by one call.

Truncation (a time limit) is kept apart from termination, because only a terminated episode is worth nothing afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from port import trees
from port.networks.param_names import ObsSpec
from port.types import Observations


class Step(NamedTuple):
    """What one step of all environments brings.

    Attributes:
        observations: [B, ...], to act on next. Where an episode ended this is either its last observation, and the next
            step ignores the action and starts over, or already the first of the next episode.
        rewards: [B].
        is_terminal: [B], booleans: the episode came to its end.
        is_truncated: [B], booleans: the episode was cut off.
        final_observations: [B, ...], the last observation of the episodes that were cut off; other rows are not read.
            None where none was.
        was_ignored: [B], booleans: the action was not used, and an episode began instead. None means nowhere.
    """

    observations: Observations
    rewards: Tensor
    is_terminal: Tensor
    is_truncated: Tensor
    final_observations: Observations | None = None
    was_ignored: Tensor | None = None


class World(Protocol):
    """A batch of environments.

    Attributes:
        num_envs: B.
        num_actions: A.
        example: zeros [B, ...] like the observations.
        title: what it is, in a word or two.
    """

    num_envs: int
    num_actions: int
    example: Observations
    title: str

    def reset(self, generator: torch.Generator) -> Observations:
        """Starts every environment anew, by nothing but the generator's numbers."""
        ...

    def step(self, actions: Tensor, generator: torch.Generator) -> Step:
        """Takes one action [B] in each environment."""
        ...

    def save(self) -> dict[str, Tensor] | None:
        """Where the environments stand; None where that cannot be saved."""
        ...

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Goes back to what was saved."""
        ...


def tree_map(function: Callable[[Tensor], Any], tree: Observations) -> Any:
    """Applies a function to each tensor of an observation."""
    if isinstance(tree, Mapping):
        return {key: tree_map(function, x) for key, x in tree.items()}
    return function(tree)


def obs_spec(world: World) -> ObsSpec:
    """The shape of one observation, or a dict of shapes."""
    spec: ObsSpec = tree_map(lambda x: tuple(x.shape[1:]), world.example)
    return spec


def to_tensors(tree: Any, dtype: torch.dtype) -> Any:
    """Arrays as tensors: floats in the given dtype, integers as they are; nothing shares memory with what was given."""
    if isinstance(tree, Mapping):
        return {key: to_tensors(x, dtype) for key, x in tree.items()}
    if isinstance(tree, Tensor):
        return tree.detach().to(dtype) if tree.is_floating_point() else tree.detach()
    array = np.array(tree)
    if array.dtype.kind == "f":
        return torch.from_numpy(array).to(dtype)
    if array.dtype.kind in "iub":
        is_plain = array.dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64, np.bool_)
        return torch.from_numpy(array if is_plain else array.astype(np.int64))
    raise ValueError(f"Observations and rewards must be numbers; got {array.dtype}.")


def check_step(step: Step, world: World, where: str) -> None:
    """Raises ValueError where a step has other shapes than the world announced, or a number that is none."""
    check_shapes(step, world)
    check_finite({"reward": step.rewards, **trees.flatten({"observation": step.observations})}, where)


def check_shapes(step: Step, world: World) -> None:
    """Raises ValueError where a step does not have one row per environment, or observations of another shape."""
    want = trees.flatten({"observation": world.example})
    for tree in (step.observations, step.final_observations):
        if tree is None:
            continue
        got = trees.flatten({"observation": tree})
        if got.keys() != want.keys():
            raise ValueError(f"The environment shows {', '.join(got)}; it announced {', '.join(want)}.")
        for name, x in got.items():
            if x.shape != want[name].shape or x.dtype != want[name].dtype:
                raise ValueError(
                    f"The environment's {name} is {x.dtype} {tuple(x.shape)}; it announced {want[name].dtype} "
                    f"{tuple(want[name].shape)}."
                )
    B = world.num_envs
    for name in ("rewards", "is_terminal", "is_truncated"):
        x = getattr(step, name)
        if tuple(x.shape) != (B,):
            raise ValueError(f"There are {B} environments, but {name} is {tuple(x.shape)}; it must be ({B},).")


def check_finite(parts: Mapping[str, Tensor], where: str) -> None:
    """Raises ValueError, naming the part and the environment, where a number is NaN or infinite."""
    for name, x in parts.items():
        if x.is_floating_point() and not bool(x.isfinite().all()):
            rows = x.reshape(len(x), -1)
            env = int((~rows.isfinite().all(-1)).nonzero()[0])
            bad = rows[env][~rows[env].isfinite()][0]
            raise ValueError(
                f"The {name} of environment {env} is {float(bad)} {where}; nothing was learned from this rollout."
            )
