"""A short training run of the original on Catch: what really reaches each layer, for teacher-forced goldens.

An agent of small sizes with a random meta-network acts on 5x5 Catch and learns for a few steps, in float32, as the
original does by default. What the last learner step is given is where teacher forcing starts.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from parity.layers import REGISTRY
from parity.layers.spec import Arrays
from reference.flat_dict import below, flattened
from reference.jax_runtime import precision
from reference.original.curves import Loop
from reference.original.learning import agent_for, flat_learner_state

SEED = 20
LEARNER_STEPS = 3


def run_settings() -> dict[str, Any]:
    """The learner step's settings, on 5x5 boards."""
    return {**REGISTRY["agent/learner_step"].settings, "T": 9, "B": 4, "obs": (5, 5, 1)}


def root() -> tuple[Arrays, dict[str, Any]]:
    """Returns the inputs of a learner step as the original met them (exact in float32), and its settings."""
    s = run_settings()
    with precision("float32"):
        loop, key = Loop(agent_for(s), s["B"], s["obs"][:2], s["T"] + 1), jax.random.PRNGKey(SEED)
        world, state = loop.start(key)
        meta_params, _ = loop.agent.update_rule.init_params(key)
        rollouts = []
        for _ in range(LEARNER_STEPS + 1):
            key, actor_key = jax.random.split(key)
            world, rollout = loop.act(state.params, world, actor_key)
            rollouts.append(rollout)
            if len(rollouts) <= LEARNER_STEPS:
                state, _, _ = loop.learn(None, rollout, state, {}, meta_params, False)
        seen = rollouts[-2]  # older than the parameters, so that the importance weights are not all 1
        named = {
            **below("rollout", {name: seen[name] for name in ("observations", "actions", "rewards", "discounts")}),
            "rollout/logits": seen.logits,
            **flat_learner_state(state),
            **flattened("meta_params", meta_params),
        }
        return {name: _widened(value) for name, value in named.items()}, s


def _widened(value: jax.Array) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array
