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


class Learner:
    """A learner that takes a step whenever it is asked to, always on the same batch, which lies ready."""

    def __init__(self, work: Any):
        """Starts from the given parameters."""
        loop = curves.Loop(work.setting)
        key = jax.random.PRNGKey(work.seed)
        self.world, fresh = loop.start(key)
        params = _params(work)
        self.state = fresh.replace(params=params, meta_state={**fresh.meta_state, "target_params": params})
        weights = jax.tree.map(jnp.asarray, curves.meta_params(work.setting))
        given = (_batch(work.rollout), self.state, self.world.actor_state, weights)
        self.batch, _, self.actor_state, self.weights = jax.block_until_ready(given)
        self.key, self.learn = key, loop.learn

    def step(self) -> None:
        """Learns."""
        found = self.learn(self.key, self.batch, self.state, self.actor_state, self.weights, False)
        self.state = jax.block_until_ready(found)[0]


class Actor:
    """Environments in which a policy acts for a rollout whenever it is asked to."""

    def __init__(self, work: Any):
        """Starts the environments."""
        loop, self.key = curves.Loop(work.setting), jax.random.PRNGKey(work.seed)
        self.world, _ = loop.start(self.key)
        self.params, self.act = _params(work), loop.act

    def unroll(self) -> None:
        """Acts."""
        self.world, _ = jax.block_until_ready(self.act(self.params, self.world, self.key))


def learner_step(work: Any) -> Callable[[], object]:
    """A step of the learner."""
    return Learner(work).step


def actor_unroll(work: Any) -> Callable[[], object]:
    """A rollout of the actor."""
    return Actor(work).unroll


def catch_run(work: Any) -> Callable[[], object]:
    """A step of a whole run."""
    run = curves.train(work.setting)
    return lambda: next(run)


def meta_update(work: Any) -> Callable[[], object]:
    """A meta-update at the notebook's size."""
    return Notebook().advance
