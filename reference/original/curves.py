"""Training runs of the original, for learning curves: the loop of its `eval` notebook over the package's own functions.

As in the notebook, a rollout and a learner step are compiled whole. The notebook spreads both over devices; with one
device that is the same as compiling them, and the keys are split in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from disco_rl import agent as agent_lib
from disco_rl import types
from disco_rl.environments import jittable_envs
from ml_collections import config_dict

from parity.runs.curves import Step
from parity.runs.spec import RunSpec

NET = ("head_mlp_hiddens", "lstm_size")
META_NET = ("prediction_size", "hidden_size")


def agent_settings(spec: RunSpec) -> config_dict.ConfigDict:
    """The original's own settings of the rule, with what the run changes."""
    sizes = spec.agent
    if spec.rule == "actor_critic":
        config = agent_lib.get_settings_actor_critic()
        config.hyper_params.entropy_cost = sizes["entropy_cost"]
        config.update_rule = config_dict.ConfigDict({"normalize_adv": sizes["normalize_adv"]})
    else:
        config = agent_lib.get_settings_disco()
        config.update_rule.num_bins, config.update_rule.max_abs_value = sizes["num_bins"], sizes["max_abs_value"]
        for name in META_NET:
            config.update_rule.net[name] = sizes[name]
        config.update_rule.net.meta_rnn_kwargs.hidden_size = sizes["meta_hidden_size"]
        for name in NET:
            config.net_settings.net_args.model_kwargs[name] = sizes[name]
    config.net_settings.net_args.dense = tuple(sizes["dense"])
    config.learning_rate = sizes["learning_rate"]
    return config


def meta_params(spec: RunSpec) -> dict[str, dict[str, np.ndarray]]:
    """The weights of the rule, by module; empty for a rule without any."""
    nested: dict[str, dict[str, np.ndarray]] = {}
    for name, value in spec.meta_params().items():
        module, _, leaf = name.rpartition("/")
        nested.setdefault(module, {})[leaf] = value
    return nested


class World(NamedTuple):
    """What a rollout carries on."""

    env_state: Any
    timestep: Any
    actor_state: Any


class Loop:
    """The original's agent and environments, and its two compiled functions."""

    def __init__(self, spec: RunSpec):
        """Makes them; nothing is compiled yet."""
        self.length, self.num_envs = spec.rollout_shape
        board = config_dict.ConfigDict({"rows": spec.loop.rows, "columns": spec.loop.columns})
        self.env = jittable_envs.CatchJittableEnvironment(self.num_envs, board)
        self.agent = agent_lib.Agent(
            agent_settings=agent_settings(spec),
            single_observation_spec=self.env.single_observation_spec(),
            single_action_spec=self.env.single_action_spec(),
            batch_axis_name=None,
        )
        self.act = jax.jit(self._act)
        self.learn = jax.jit(self.agent.learner_step, static_argnums=5)

    def _act(self, params: Any, world: World, key: jax.Array) -> tuple[World, types.ActorRollout]:
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


def train(spec: RunSpec) -> Iterator[Step]:
    """A run in float32: after each step the frames so far, which episodes that ended were caught, the value loss."""
    loop, weights, key = Loop(spec), meta_params(spec), jax.random.PRNGKey(spec.seed)
    world, learner = loop.start(key)
    batch_size = spec.loop.batch_size
    buffer: deque[Any] = deque(maxlen=spec.loop.capacity)
    draws = np.random.default_rng(spec.loop.replay_seed)
    for step in range(spec.num_steps):
        key, actor_key, learner_key = jax.random.split(key, 3)
        world, rollout = loop.act(learner.params, world, jax.random.split(actor_key, 1)[0])
        acted = jax.device_get(rollout)
        buffer.extend(jax.tree.map(lambda x, i=i: x[:, i], acted) for i in range(loop.num_envs))
        logs: dict[str, Any] = {}
        if len(buffer) >= batch_size:
            drawn = [buffer[i] for i in draws.integers(len(buffer), size=batch_size)]
            batch = jax.tree.map(lambda *x: np.stack(x, axis=1), *drawn)
            learner_key = jax.random.split(learner_key, 1)[0]
            learner, _, logs = loop.learn(learner_key, batch, learner, world.actor_state, weights, False)
        caught = (acted.rewards[acted.discounts == 0] > 0).tolist()
        yield (step + 1) * loop.length * loop.num_envs, caught, float(logs["q_loss"]) if "q_loss" in logs else None
