"""A short training run of the original on Catch: what really reaches each layer, for teacher-forced goldens.

An agent of small sizes with a random meta-network acts on 5x5 Catch and learns for a few steps, in float32, as the
original does by default. What the last learner step is given is where teacher forcing starts.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from disco_rl import types
from disco_rl.environments import jittable_envs
from ml_collections import config_dict

from parity.layers import REGISTRY
from reference.jax_runtime import precision
from reference.original.learning import _flat_learner_state, agent_for
from reference.original.trees import flattened

Arrays = dict[str, np.ndarray]
SEED = 20
LEARNER_STEPS = 3


def run_settings() -> dict[str, Any]:
    """The learner step's settings, on 5x5 boards."""
    return {**REGISTRY["agent/learner_step"].settings, "T": 9, "B": 4, "obs": (5, 5, 1)}


def _unroll(agent: Any, env: Any, params: Any, env_state: Any, timestep: Any, keys: jax.Array) -> Any:
    def step(carry: Any, key: jax.Array) -> Any:
        env_state, timestep = carry
        actor_timestep, _ = agent.actor_step(params, key, timestep, {})
        return env.step(env_state, actor_timestep.actions), actor_timestep

    return jax.lax.scan(step, (env_state, timestep), keys)


def root() -> tuple[Arrays, dict[str, Any]]:
    """Returns the inputs of a learner step as the original met them (exact in float32), and its settings."""
    s = run_settings()
    with precision("float32"):
        agent = agent_for(s)
        config = config_dict.ConfigDict({"rows": s["obs"][0], "columns": s["obs"][1]})
        env = jittable_envs.CatchJittableEnvironment(s["B"], config)
        key = jax.random.PRNGKey(SEED)
        env_state, timestep = env.reset(key)
        state = agent.initial_learner_state(key)
        meta_params, _ = agent.update_rule.init_params(key)
        unroll = jax.jit(lambda *args: _unroll(agent, env, *args))
        learn = jax.jit(lambda *args: agent.learner_step(None, *args, is_meta_training=False))
        rollouts = []
        for _ in range(LEARNER_STEPS + 1):
            key, actor_key = jax.random.split(key)
            keys = jax.random.split(actor_key, s["T"] + 1)
            (env_state, timestep), steps = unroll(state.params, env_state, timestep, keys)
            rollouts.append(types.ActorRollout.from_timestep(steps))
            if len(rollouts) <= LEARNER_STEPS:
                state, _, _ = learn(rollouts[-1], state, {}, meta_params)
        rollout = rollouts[-2]  # older than the parameters, so that the importance weights are not all 1
        named = {
            "rollout/observations": rollout.observations,
            "rollout/actions": rollout.actions,
            "rollout/rewards": rollout.rewards,
            "rollout/discounts": rollout.discounts,
            "rollout/logits": rollout.logits,
            **_flat_learner_state(state),
            **flattened("meta_params", meta_params),
        }
        return {name: _widened(value) for name, value in named.items()}, s


def _widened(value: jax.Array) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array
