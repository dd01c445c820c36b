"""Worlds whose state is plain tensors, so that a checkpoint holds all of them: step functions, and Catch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from port import trees
from port.environments.base import LAST_STEP
from port.environments.catch import Catch, CatchState
from port.train.world import Step, to_tensors, tree_map
from port.types import Observations

Reset = Callable[[torch.Generator], tuple[Any, Any]]
StepFn = Callable[[Any, Tensor, torch.Generator], tuple[Any, Any, Any, Any, Any]]


class StepFunctions:
    """A batch of environments given as two functions, whose state is a tensor, or a dict or record of tensors [B, ...].

    Episodes that end are started over with rows of a fresh `reset`; the functions need not do that.
    """

    def __init__(
        self, reset: Reset, step: StepFn, num_actions: int, dtype: torch.dtype = torch.float32, title: str = "functions"
    ) -> None:
        """Takes the functions, and tries `reset` once.

        Args:
            reset: from a generator, the only source of chance, to (state, observations), [B, ...] each.
            step: from (state, actions [B], generator) to (state, observations, rewards, is_terminal, is_truncated).
            num_actions: A.
            dtype: of observations that are floats, and of rewards.
            title: for logs.
        """
        if not isinstance(num_actions, int) or num_actions < 1:
            raise ValueError(f"An agent chooses among num_actions actions, an integer from 1 on; got {num_actions!r}.")
        self._reset, self._step, self._dtype = reset, step, dtype
        self.num_actions, self.title = num_actions, title
        self._state: Any = None
        example = self.reset(torch.Generator().manual_seed(0))
        self.example: Observations = tree_map(torch.zeros_like, example)
        self.num_envs = len(next(iter(trees.flatten({"observations": example}).values())))
        for name, x in trees.flatten({"state": self._state, "observations": example}).items():
            if x.ndim < 1 or len(x) != self.num_envs:
                raise ValueError(
                    f"State and observations must have one row per environment; there are {self.num_envs} "
                    f"observations, but {name} is {tuple(x.shape)}."
                )

    def reset(self, generator: torch.Generator) -> Observations:
        """Starts every environment anew."""
        self._state, observations = self._reset(generator)
        return _features(to_tensors(observations, self._dtype))

    def step(self, actions: Tensor, generator: torch.Generator) -> Step:
        """Takes one action [B] in each environment, and starts over where an episode ended."""
        state, observations, rewards, is_terminal, is_truncated = self._step(self._state, actions, generator)
        seen = _features(to_tensors(observations, self._dtype))
        is_terminal, is_truncated = (torch.as_tensor(x).bool().cpu() for x in (is_terminal, is_truncated))
        step = Step(seen, to_tensors(rewards, self._dtype), is_terminal, is_truncated, seen)
        is_over = is_terminal | is_truncated
        if bool(is_over.any()):
            fresh_state, fresh = self._reset(generator)
            fresh = _features(to_tensors(fresh, self._dtype))
            mixed = _pick(is_over, {"state": fresh_state, "seen": fresh}, {"state": state, "seen": seen})
            state, step = mixed["state"], step._replace(observations=mixed["seen"])
        self._state = state
        return step

    def save(self) -> dict[str, Tensor] | None:
        """The state."""
        return trees.flatten({"state": self._state})

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Goes back to a state."""
        self._state = trees.unflatten({"state": self._state}, saved)["state"]


def _features(observations: Any) -> Any:
    """Scalars become features."""
    return tree_map(lambda x: x.unsqueeze(-1) if x.ndim == 1 else x, observations)


def _pick(is_over: Tensor, fresh: Any, old: Any) -> Any:
    """Rows of `fresh` where an episode is over, else of `old`."""
    new, kept = trees.flatten(fresh), trees.flatten(old)
    if new.keys() != kept.keys():
        raise ValueError(f"reset and step give states of other parts: {', '.join(sorted(new.keys() ^ kept.keys()))}.")
    rows = {
        name: torch.where(is_over.to(x.device).reshape(-1, *[1] * (x.ndim - 1)), new[name], x)
        for name, x in kept.items()
    }
    return trees.unflatten(old, rows)


class CatchWorld:
    """The port's own Catch, any number of boards; what they show and pay is as in `port.evaluate.eval_loop`."""

    def __init__(self, env: Catch, num_envs: int) -> None:
        """Takes the game and the number of boards."""
        if num_envs < 1:
            raise ValueError(f"A batch needs at least one environment; got {num_envs}.")
        self._env, self.num_envs, self.num_actions = env, num_envs, env.num_actions
        self.title = f"Catch {env.rows}x{env.columns}"
        self._state, timestep = env.reset(torch.zeros(num_envs, dtype=torch.long))
        self.example: Observations = tree_map(torch.zeros_like, timestep.observation)

    def reset(self, generator: torch.Generator) -> Observations:
        """New balls on all boards."""
        self._state, timestep = self._env.reset(self._env.draw_columns(generator, self.num_envs))
        return timestep.observation

    def step(self, actions: Tensor, generator: torch.Generator) -> Step:
        """Takes one action [B] on each board."""
        columns = self._env.draw_columns(generator, self.num_envs)
        self._state, timestep = self._env.step(self._state, actions, columns)
        is_last = timestep.step_type == LAST_STEP
        return Step(timestep.observation, timestep.reward.cpu(), is_last.cpu(), torch.zeros_like(is_last).cpu())

    def save(self) -> dict[str, Tensor] | None:
        """Where balls and paddles are."""
        return trees.flatten(self._state)

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Puts balls and paddles back."""
        self._state = CatchState(**saved)
