"""What the original defines in `colabs/eval.ipynb` and not in its package: the replay buffer and accumulated returns.

A notebook is not installed with a package, so both are written here from its text; `tests/test_notebook.py` runs the
notebook's own cells beside them wherever DISCO_RL_CHECKOUT names a checkout of the original.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from reference.jax_runtime import on_host

Tensors = dict[str, jax.Array]
Settings = dict[str, Any]


@on_host
def replay_sample(x: Tensors, s: Settings) -> Tensors:
    """Trajectories enter one by one and push out the oldest; NumPy draws uniformly among those that are there.

    Reference: colabs/eval.ipynb::SimpleReplayBuffer
    """
    rng = np.random.default_rng(int(x["seed"]))
    kept: list[np.ndarray] = []
    sampled, indices, sizes = [], [], []
    for added in np.asarray(x["trajectories"]):  # [L, E]
        kept = [*kept, *added.T][-s["capacity"] :]
        drawn: Any = rng.integers(len(kept), size=s["G"])
        sampled.append(np.stack([kept[i] for i in drawn], axis=1))
        indices.append(drawn)
        sizes.append(len(kept))
    return {"sampled": np.stack(sampled), "indices": np.stack(indices), "size": np.array(sizes)}


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
