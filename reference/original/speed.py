"""The original, made ready to be timed: its functions compiled whole, as its notebooks do.

A function for each task takes the work and returns a callable that does the task once, and is done when it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from reference.flat_dict import below, nested
from reference.original import curves
from reference.original.learning import rollout
from reference.original.meta_update import Notebook


def _params(work: Any) -> Any:
    return jax.tree.map(jnp.asarray, nested("params", below("params", work.params)))


def learner_step(work: Any) -> Callable[[], object]:
    """A step of the learner, always on the same batch, which lies ready."""
    loop, key = curves.loop_for(work.setting), jax.random.PRNGKey(work.seed)
    (world, fresh), params = loop.start(key), _params(work)
    state = fresh.replace(params=params, meta_state={**fresh.meta_state, "target_params": params})
    arrays = jax.tree.map(jnp.asarray, (work.rollout, curves.meta_params(work.setting)))
    batch, weights = jax.block_until_ready(arrays)

    def step() -> None:
        nonlocal state
        learned = loop.learn(key, rollout(batch), state, world.actor_state, weights, False)
        state = jax.block_until_ready(learned)[0]

    return step


def actor_unroll(work: Any) -> Callable[[], object]:
    """A rollout of the actor."""
    loop, key, params = curves.loop_for(work.setting), jax.random.PRNGKey(work.seed), _params(work)
    world, _ = loop.start(key)

    def unroll() -> None:
        nonlocal world
        world, _ = jax.block_until_ready(loop.act(params, world, key))

    return unroll


def catch_run(work: Any) -> Callable[[], object]:
    """A step of a whole run."""
    run = curves.train(work.setting)
    return lambda: next(run)


def meta_update(work: Any) -> Callable[[], object]:
    """A meta-update at the notebook's size."""
    return Notebook().advance
