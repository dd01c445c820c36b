"""What the original defines in `colabs/eval.ipynb` and not in its package: the replay buffer and accumulated returns.

A notebook is not installed with a package, so both are written here from its text; `tests/test_notebook.py` runs the
notebook's own cells beside them wherever DISCO_RL_CHECKOUT names a checkout of the original.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import numpy as np

from reference.flat_dict import Settings, Tensors
from reference.jax_runtime import on_host


class Replay:
    """Trajectories enter one by one and push out the oldest; NumPy draws uniformly among those that are there.

    Reference: colabs/eval.ipynb::SimpleReplayBuffer
    """

    def __init__(self, capacity: int, seed: int):
        """Takes how many trajectories there may be."""
        self._kept: deque[Any] = deque(maxlen=capacity)
        self._rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        """How many trajectories there are."""
        return len(self._kept)

    def add(self, rollout: Any) -> None:
        """Takes the trajectories of a rollout, a tree of arrays [L, B, ...]."""
        count = jax.tree.leaves(rollout)[0].shape[1]
        self._kept.extend(jax.tree.map(lambda x, i=i: x[:, i], rollout) for i in range(count))

    def sample(self, count: int) -> tuple[Any, np.ndarray]:
        """A batch, a tree of arrays [L, count, ...], and which trajectories are in it."""
        indices: Any = self._rng.integers(len(self), size=count)
        return jax.tree.map(lambda *x: np.stack(x, axis=1), *(self._kept[i] for i in indices)), indices


@on_host
def replay_sample(x: Tensors, s: Settings) -> Tensors:
    """A batch after each rollout that enters."""
    replay, batches, indices, sizes = Replay(s["capacity"], int(x["seed"])), [], [], []
    for added in np.asarray(x["trajectories"]):  # [L, E]
        replay.add(added)
        batch, drawn = replay.sample(s["G"])
        batches.append(batch)
        indices.append(drawn)
        sizes.append(len(replay))
    return {"sampled": np.stack(batches), "indices": np.stack(indices), "size": np.array(sizes)}


def accumulate_returns(x: Tensors, s: Settings) -> Tensors:
    """Each step adds its reward and shows the sum; a discount of 0 then makes it start over.

    Reference: colabs/eval.ipynb::accumulate_rewards
    """

    def step(total: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, discount = now
        total = total + reward
        return discount * total, total

    so_far, returns = jax.lax.scan(step, x["so_far"], (x["rewards"], x["discounts"]))
    return {"so_far": so_far, "returns": returns}
