"""The original, made ready to be timed: its functions compiled whole, as its `eval` notebook does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from reference.flat_dict import below, nested
from reference.original import curves
from reference.original.learning import rollout


class Ready:
    """Work that can be done again and again; it is done when `run` returns."""

    pids: tuple[int, ...] = ()

    def __init__(self, run: Callable[[], object]):
        """Takes the work."""
        self.run = run

    def close(self) -> None:
        """There is nothing to put away."""


def _params(work: Any) -> Any:
    return jax.tree.map(jnp.asarray, nested("params", below("params", work.params)))


class Original:
    """DeepMind's code."""

    tasks = ("learner_step", "actor_unroll", "meta_update", "catch_run")

    def __init__(self, threads: int):
        """The compiler uses the processors that the process may run on; there is nothing to set."""

    def job(self, task: str, work: Any) -> Ready:
        """A task made ready."""
        return Ready(getattr(self, f"_{task}")(work))

    def _learner_step(self, work: Any) -> Callable[[], object]:
        """A learner that takes a step each time, always on the same batch, which lies ready."""
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

    def _actor_unroll(self, work: Any) -> Callable[[], object]:
        """Environments in which a policy acts for a rollout each time."""
        loop, key, params = curves.loop_for(work.setting), jax.random.PRNGKey(work.seed), _params(work)
        world, _ = loop.start(key)

        def unroll() -> None:
            nonlocal world
            world, _ = jax.block_until_ready(loop.act(params, world, key))

        return unroll

    def _catch_run(self, work: Any) -> Callable[[], object]:
        run = curves.train(work.setting)
        return lambda: next(run)

    def _meta_update(self, work: Any) -> Callable[[], object]:
        from reference.original.meta_update import Notebook

        return Notebook().advance
