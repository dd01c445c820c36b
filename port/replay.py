"""A replay buffer of trajectories: first in, first out, sampled uniformly with replacement.

Trajectories lie along one axis of tensors that are made once. NumPy draws which of them are sampled, so that it is
the same as in the original's evaluation notebook for the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from port import trees
from port.rollout_checks import check_rollout
from port.types import Rollout


def to_rollout(fields: Mapping[str, Tensor]) -> Rollout:
    """The inverse of `trees.flatten` for a rollout."""
    tree: dict[str, Any] = {"agent_outs": {}}
    for name, x in fields.items():
        *path, leaf = name.split("/")
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[leaf] = x
    return Rollout(**tree)


class ReplayBuffer:
    """Keeps the newest trajectories; `len` says how many."""

    def __init__(self, capacity: int, seed: int) -> None:
        """Makes an empty buffer for `capacity` trajectories; when it is full, the oldest are dropped."""
        if capacity < 1:
            raise ValueError(f"A replay buffer needs room for at least one trajectory; got capacity {capacity}.")
        self.capacity = capacity
        self._rng = np.random.default_rng(seed)
        self._kept: dict[str, Tensor] = {}  # [L, capacity, ...] each
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self.capacity)

    def add(self, rollout: Rollout) -> None:
        """Takes each trajectory of a rollout [L, B], in the order of the batch."""
        check_rollout(rollout)
        fields = {name: x.detach() for name, x in trees.flatten(rollout).items()}
        self._make_room(fields)
        B = rollout.rewards.shape[1]
        first = max(0, B - self.capacity)  # of a batch larger than the buffer, the last ones stay
        places = (torch.arange(first, B) + self._added) % self.capacity
        for name, x in fields.items():
            self._kept[name].index_copy_(1, places.to(x.device), x[:, first:])
        self._added += B

    def draw(self, count: int) -> np.ndarray:
        """Draws `count` indices of trajectories, 0 being the oldest."""
        if not len(self):
            raise ValueError("The replay buffer is empty; add a rollout before sampling.")
        return self._rng.integers(len(self), size=count)

    def take(self, indices: np.ndarray) -> Rollout:
        """The trajectories at the given indices, counted from the oldest, as a rollout [L, len(indices)]."""
        if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < len(self)):
            raise IndexError(f"The buffer holds {len(self)} trajectories; got an index outside of them.")
        oldest = self._added - len(self)
        places = torch.from_numpy((np.asarray(indices) + oldest) % self.capacity)
        return to_rollout({name: x.index_select(1, places.to(x.device)) for name, x in self._kept.items()})

    def sample(self, count: int) -> Rollout:
        """Draws `count` trajectories, with replacement, as a rollout [L, count]."""
        return self.take(self.draw(count))

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What is kept, [L, len, ...] each, and the rest as numbers that JSON can hold."""
        kept = {name: x[:, : len(self)] for name, x in self._kept.items()}
        return kept, {"added": self._added, "draws": self._rng.bit_generator.state}

    def restore(self, kept: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """Goes back to what was saved from a buffer of the same capacity."""
        self._kept, self._added = {}, int(rest["added"])
        self._rng.bit_generator.state = rest["draws"]
        if self._added:
            self._make_room(kept)
        for name, x in kept.items():
            self._kept[name][:, : len(self)] = x

    def _make_room(self, fields: Mapping[str, Tensor]) -> None:
        """Makes the tensors at the first call, and checks at later ones that a rollout fits."""
        if not self._kept:
            self._kept = {
                name: x.new_empty((x.shape[0], self.capacity, *x.shape[2:])).zero_() for name, x in fields.items()
            }
        if fields.keys() != self._kept.keys():
            odd = ", ".join(sorted(fields.keys() ^ self._kept.keys()))
            raise ValueError(f"The rollout differs from those in the buffer: {odd} is only in one of them.")
        for name, x in fields.items():
            kept = self._kept[name]
            if (x.shape[0], *x.shape[2:]) != (kept.shape[0], *kept.shape[2:]) or x.dtype != kept.dtype:
                raise ValueError(
                    f"The buffer keeps {name} as {kept.shape[0]} steps of {tuple(kept.shape[2:])} in {kept.dtype}; got "
                    f"{tuple(x.shape)} in {x.dtype}."
                )
