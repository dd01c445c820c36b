"""A whole meta-update of the original's `meta_train` notebook as one jitted function: acting, meta-gradients, Adam.

The notebook is no part of the package; this calls the package's functions in the notebook's order, at its sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from disco_rl import utils

from parity.layers import REGISTRY, params
from reference.flat_dict import Tensors, below, flattened, nested
from reference.original import learning, metatraining
from reference.original.curves import Loop, World

SIZES: dict[str, Any] = {
    **{name: value for name, value in params.FULL_SIZE.items() if name != "obs"},
    **{"A": 3, "head_mlp_hiddens": (256,), "lstm_size": 256, "max_abs_value": 300.0, "learning_rate": 5e-4},
    **{"T": 15, "B": 32, "S": 2, "value_dense": (256, 256), "value_learning_rate": 1e-3},
}
META_LEARNING_RATE = 5e-4


def settings(rows: int, columns: int) -> dict[str, Any]:
    """The outer loss's settings at the notebook's sizes."""
    return {**REGISTRY["meta_train/outer_loss"].settings, **SIZES, "obs": (rows, columns, 1)}


class Agent(NamedTuple):
    """What an agent of the population carries on."""

    state: Tensors
    world: World


class Notebook:
    """A population on one board size, and the jitted meta-update."""

    def __init__(self, agents: int = 2, rows: int = 5, columns: int = 5) -> None:
        """Makes fresh agents and random meta-parameters."""
        self.s = settings(rows, columns)
        rollouts_length = (self.s["T"] + 1) * (self.s["S"] + 2)  # one for each inner update, and twice that to validate
        self.loop = Loop(learning.agent_for(self.s), self.s["B"], (rows, columns), rollouts_length)
        self.value_fn = metatraining.value_function(self.s)
        meta_params, _ = self.loop.agent.update_rule.init_params(jax.random.PRNGKey(1))
        self.meta_params = flattened("meta_params", meta_params)
        self.optimiser = optax.adam(learning_rate=META_LEARNING_RATE)
        self.opt_state = self.optimiser.init(self.meta_params)
        self.agents = [self._fresh(key) for key in jax.random.split(jax.random.PRNGKey(4), agents)]
        self.key, self.meta_update = jax.random.PRNGKey(5), jax.jit(self._meta_update)

    def _fresh(self, key: jax.Array) -> Agent:
        world, learner = self.loop.start(key)
        seen = utils.zeros_like_spec(self.loop.env.single_observation_spec(), prepend_shape=(self.s["B"],))
        value = metatraining.flat_value_state(self.value_fn.initial_state(key, seen))
        return Agent({**learning.flat_learner_state(learner), **below("value", value)}, world)

    def _rollouts(self, agent: Agent, key: jax.Array) -> tuple[Tensors, Agent]:
        """A rollout for each inner update and a validation rollout of twice the length."""
        length, count = self.s["T"] + 1, self.s["S"]
        world, whole = self.loop.rollout(nested("params", agent.state), agent.world, key)
        named = {name: whole[name] for name in ("observations", "actions", "rewards", "discounts", "logits")}
        train = {k: x[: count * length].reshape(count, length, *x.shape[1:]) for k, x in named.items()}
        valid = {k: x[count * length :] for k, x in named.items()}
        return {**below("train", train), **below("valid", valid)}, Agent(agent.state, world)

    def _meta_update(self, meta_params: Any, opt_state: Any, agents: list[Agent], key: jax.Array) -> Any:
        grads, after = [], []
        for agent, agent_key in zip(agents, jax.random.split(key, len(agents)), strict=True):
            rollouts, agent = self._rollouts(agent, agent_key)
            gradient = jax.grad(metatraining.outer_loss_at, has_aux=True)
            own, new = gradient(meta_params, {**agent.state, **rollouts}, self.s)
            grads.append(own)
            after.append(Agent({name: new[name] for name in agent.state}, agent.world))
        mean = jax.tree.map(lambda *g: jnp.stack(g).mean(axis=0), *grads)
        updates, opt_state = self.optimiser.update(mean, opt_state)
        return optax.apply_updates(meta_params, updates), opt_state, after

    def advance(self) -> None:
        """One meta-update, done when this returns; the first compiles."""
        self.key, key = jax.random.split(self.key)
        done = self.meta_update(self.meta_params, self.opt_state, self.agents, key)
        self.meta_params, self.opt_state, self.agents = jax.block_until_ready(done)
