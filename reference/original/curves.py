"""Training runs of the original, for learning curves: the loop of its `eval` notebook over the package's own functions.

As in the notebook, a rollout and a learner step are compiled whole. The notebook spreads both over devices; with one
device that is the same as compiling them, and the keys are split in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
from disco_rl import types

from parity.runs.curves import Step
from parity.runs.spec import RunSpec
from reference.flat_dict import below, nested
from reference.original import learning, rules
from reference.original.environments import vectorised_catch
from reference.original.notebook import Replay


class World(NamedTuple):
    """What a rollout carries on."""

    env_state: Any
    timestep: Any
    actor_state: Any


class Loop:
    """An agent of the original on its vectorised Catch, and two compiled functions: a rollout and a learner step."""

    def __init__(self, agent: Any, num_envs: int, board: tuple[int, int], length: int):
        """Takes the agent, and the sizes of a rollout; nothing is compiled yet."""
        self.agent, self.num_envs, self.length = agent, num_envs, length
        self.env = vectorised_catch(num_envs, *board)
        self.act = jax.jit(self.rollout)
        self.learn = jax.jit(agent.learner_step, static_argnums=5)

    def rollout(self, params: Any, world: World, key: jax.Array) -> tuple[World, types.ActorRollout]:
        """The world afterwards, and what was recorded."""

        def step(world: World, key: jax.Array) -> tuple[World, Any]:
            acted, actor_state = self.agent.actor_step(params, key, world.timestep, world.actor_state)
            env_state, timestep = self.env.step(world.env_state, acted.actions)
            return World(env_state, timestep, actor_state), acted

        world, steps = jax.lax.scan(step, world, jax.random.split(key, self.length))
        return world, types.ActorRollout.from_timestep(steps)

    def start(self, key: jax.Array) -> tuple[World, Any]:
        """The world and the learner at the beginning of a run."""
        env_state, timestep = self.env.reset(key)
        world = World(env_state, timestep, self.agent.initial_actor_state(key))
        return world, self.agent.initial_learner_state(key)


def agent_for(spec: RunSpec) -> Any:
    """The original's agent for a run."""
    return (learning if spec.rule == "disco" else rules).agent_for(spec.settings)


def loop_for(spec: RunSpec) -> Loop:
    """The loop of a run."""
    length, num_envs = spec.rollout_shape
    return Loop(agent_for(spec), num_envs, (spec.loop.rows, spec.loop.columns), length)


def meta_params(spec: RunSpec) -> Any:
    """The weights of the rule, by module; empty for a rule without any."""
    return nested("meta_params", below("meta_params", spec.meta_params()))


def train(spec: RunSpec) -> Iterator[Step]:
    """A run in float32: after each step the frames so far, which episodes that ended were caught, the value loss."""
    loop, weights, key = loop_for(spec), meta_params(spec), jax.random.PRNGKey(spec.seed)
    world, learner = loop.start(key)
    replay = Replay(spec.loop.capacity, spec.loop.replay_seed)
    for step in range(spec.num_steps):
        key, actor_key, learner_key = jax.random.split(key, 3)
        world, rollout = loop.act(learner.params, world, jax.random.split(actor_key, 1)[0])
        acted = jax.device_get(rollout)
        replay.add(acted)
        logs: dict[str, Any] = {}
        if len(replay) >= spec.loop.batch_size:
            batch, _ = replay.sample(spec.loop.batch_size)
            learner_key = jax.random.split(learner_key, 1)[0]
            learner, _, logs = loop.learn(learner_key, batch, learner, world.actor_state, weights, False)
        caught = (acted.rewards[acted.discounts == 0] > 0).tolist()
        yield (step + 1) * loop.length * loop.num_envs, caught, float(logs["q_loss"]) if "q_loss" in logs else None
