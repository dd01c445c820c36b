"""The original, made ready to be timed: its functions compiled whole, as its notebooks do.

A function for each task takes the work and returns a callable that does the task once, and is done when it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from disco_rl import types

from reference.original import curves
from reference.original.meta_update import Notebook
from reference.original.trees import nested


def _params(work: Any) -> Any:
    return nested("params", {f"params/{name}": jnp.asarray(x) for name, x in work.params.items()})


def _batch(arrays: dict[str, Any]) -> types.ActorRollout:
    x = {name: jnp.asarray(value) for name, value in arrays.items()}
    fields = {name: x[name] for name in ("observations", "actions", "rewards", "discounts", "logits")}
    return types.ActorRollout(**fields, agent_outs={"logits": x["logits"]}, states={})


def learner_step(work: Any) -> Callable[[], object]:
    """A step of the learner, always on the same batch, which lies ready."""
    loop, key = curves.Loop(work.setting), jax.random.PRNGKey(work.seed)
    world, fresh = loop.start(key)
    params = _params(work)
    state = fresh.replace(params=params, meta_state={**fresh.meta_state, "target_params": params})
    weights = jax.tree.map(jnp.asarray, curves.meta_params(work.setting))
    inputs = (_batch(work.rollout), state, world.actor_state, weights)
    batch, state, actor_state, weights = jax.block_until_ready(inputs)

    def step() -> None:
        nonlocal state
        state = jax.block_until_ready(loop.learn(key, batch, state, actor_state, weights, False))[0]

    return step


def actor_unroll(work: Any) -> Callable[[], object]:
    """A rollout of the actor."""
    loop, key = curves.Loop(work.setting), jax.random.PRNGKey(work.seed)
    params = _params(work)
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
