"""Gymnasium's vector environments as a world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from port import trees
from port.train.world import Step, to_tensors, tree_map
from port.types import Observations

SEEDS_BELOW = 2**31 - 1
MODES = ("next_step", "same_step")
PROBE_STEPS = 4


def is_vector_env(env: Any) -> bool:
    """Whether something is one of Gymnasium's vector environments, or behaves like one."""
    return all(hasattr(env, name) for name in ("single_action_space", "single_observation_space", "num_envs", "step"))


def autoreset_mode(env: Any) -> str:
    """How an environment starts over: `next_step` or `same_step`; ValueError for any other way."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:
        raise ValueError(
            f"{env} does not say how it starts over after an episode; set env.metadata['autoreset_mode'] to a "
            "gymnasium.vector.AutoresetMode."
        )
    name = str(getattr(mode, "name", mode)).lower()
    if name not in MODES:
        raise ValueError(
            f"{env} has the autoreset mode {name}: nobody would start its episodes over. Make it with "
            "autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP or SAME_STEP."
        )
    return name


def num_actions(env: Any) -> int:
    """A; ValueError where actions are not 0, 1, ..., A-1 (from wherever they start)."""
    space = env.single_action_space
    kind = type(space).__name__
    if kind == "Discrete":
        return int(space.n)
    hint = {
        "Box": "Actions are continuous; Disco chooses among a few. Wrap the environment so that it offers some "
        "values to choose from (gymnasium.Wrapper with a Discrete action_space).",
        "MultiDiscrete": "Actions are made of several choices; wrap the environment so that each combination is one.",
        "MultiBinary": "Actions are made of several choices; wrap the environment so that each combination is one.",
    }
    raise ValueError(f"{env} takes actions of {space}; a Discrete space is needed. {hint.get(kind, '')}".rstrip())


class GymWorld:
    """A Gymnasium vector environment with discrete actions.

    With NEXT_STEP the last observation of an episode is shown; the action after it is ignored, and the agent learns
    nothing from that step. With SAME_STEP the first observation of the next episode is shown instead; as in the
    original, the agent then does not learn from the first step of an episode. Where each episode stands cannot be
    saved, so a trainer starts all of them over, from seeds of its own, at each checkpoint.
    """

    def __init__(self, env: Any, dtype: torch.dtype = torch.float32) -> None:
        """Takes a `gymnasium.vector.VectorEnv`, and the dtype of rewards and observations that are floats.

        ValueError says what does not fit.
        """
        self.num_actions, self._mode = num_actions(env), autoreset_mode(env)
        self.env, self._dtype, self.num_envs = env, dtype, int(env.num_envs)
        self._first_action = int(env.single_action_space.start)
        self._space = env.single_observation_space
        example = encode(self._space, _batch([self._space.sample()] * self.num_envs), dtype)
        self.example: Observations = tree_map(torch.zeros_like, example)
        spec = getattr(env, "spec", None)
        self.title = str(getattr(spec, "id", None) or type(getattr(env, "unwrapped", env)).__name__)
        self._was_last = np.zeros(self.num_envs, bool)

    def reset(self, generator: torch.Generator) -> Observations:
        """Starts every environment anew, from a seed that the generator gives."""
        seed = int(torch.randint(SEEDS_BELOW, (), generator=generator, device=generator.device))
        observations, _ = self.env.reset(seed=seed)
        self._was_last = np.zeros(self.num_envs, bool)
        return encode(self._space, observations, self._dtype)

    def step(self, actions: Tensor, generator: torch.Generator) -> Step:
        """Takes one action [B] in each environment; the generator is not drawn from."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions.cpu().numpy() + self._first_action)
        is_over, was_ignored = np.asarray(terminated) | np.asarray(truncated), self._was_last
        final = None
        if self._mode == "next_step":
            self._was_last = is_over
        elif np.any(truncated):
            final = self._final(observations, infos, np.asarray(truncated))
        return Step(
            observations=encode(self._space, observations, self._dtype),
            rewards=to_tensors(np.asarray(rewards, np.float64), self._dtype),
            is_terminal=torch.from_numpy(np.array(terminated, bool)),
            is_truncated=torch.from_numpy(np.array(truncated, bool)),
            final_observations=final,
            was_ignored=torch.from_numpy(was_ignored.copy()),
        )

    def _final(self, observations: Any, infos: Mapping[str, Any], is_cut: np.ndarray) -> Observations:
        """Last observations of the episodes that were cut off; other rows are filled with anything."""
        if "final_obs" not in infos:
            raise ValueError(f"{self.env} cut an episode off but gives no infos['final_obs'], its last observation.")
        known = infos["final_obs"]
        some = next(known[i] for i in np.flatnonzero(is_cut))
        rows = [known[i] if is_cut[i] else some for i in range(self.num_envs)]
        return encode(self._space, _batch(rows), self._dtype)

    def save(self) -> dict[str, Tensor] | None:
        """Nothing: environments in general cannot be saved."""
        return None

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Nothing was saved."""
        raise ValueError("A Gymnasium environment cannot be restored; reset it.")

    def check_repeats(self) -> None:
        """Raises ValueError where the same seed does not bring the same episode: such a run could not be resumed."""
        first, second = self._probe(), self._probe()
        for i, (a, b) in enumerate(zip(first, second, strict=True)):
            if not np.array_equal(a, b, equal_nan=True):
                raise ValueError(
                    f"{self.env} does not show the same twice for the same seed (it differs {i} steps after a "
                    "reset), so a run that was interrupted could not go on to the same numbers. It may ignore the seed "
                    "of reset, or keep statistics, as NormalizeObservation does; or set checkpoint_every to 0."
                )

    def _probe(self) -> list[np.ndarray]:
        """What the first steps after a reset show: a tree of observations and rewards for each."""
        generator = torch.Generator().manual_seed(0)
        shown = [{"observations": self.reset(generator), "rewards": torch.zeros(0)}]
        for i in range(PROBE_STEPS):
            step = self.step(torch.full((self.num_envs,), i % self.num_actions), generator)
            shown.append({"observations": step.observations, "rewards": step.rewards})
        return [torch.cat([x.double().ravel() for x in trees.flatten(tree).values()]).numpy() for tree in shown]


def encode(space: Any, batch: Any, dtype: torch.dtype) -> Any:
    """Observations [B, ...] as tensors: choices one-hot, dicts and tuples as dicts, all else unchanged."""
    kind = type(space).__name__
    if kind == "Dict":
        return {key: encode(part, batch[key], dtype) for key, part in space.spaces.items()}
    if kind == "Tuple":
        return {str(i): encode(part, batch[i], dtype) for i, part in enumerate(space.spaces)}
    if kind == "Discrete":
        return torch.from_numpy(np.eye(int(space.n))[np.asarray(batch) - int(space.start)]).to(dtype)
    if kind == "MultiDiscrete":
        flat = (np.asarray(batch) - space.start).reshape(len(batch), -1)
        columns = [np.eye(int(n))[flat[:, i]] for i, n in enumerate(np.ravel(space.nvec))]
        return torch.from_numpy(np.concatenate(columns, axis=1)).to(dtype)
    if kind not in ("Box", "MultiBinary"):
        raise ValueError(f"Observations of {space} cannot be fed to a network; wrap the environment.")
    tensor = to_tensors(batch, dtype)
    return tensor.unsqueeze(-1) if tensor.ndim == 1 else tensor  # a scalar is a feature


def _batch(rows: list[Any]) -> Any:
    """Single observations as a batch."""
    if isinstance(rows[0], Mapping):
        return {key: _batch([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(_batch([row[i] for row in rows]) for i in range(len(rows[0])))
    return np.stack(rows)
