"""The evaluation notebook's loop on the original itself: its agent, its environment, its learner step, its noise.

The agent computes in either precision, compiled as its users compile it; the environment always in float32, since the
vectorised Catch mixes integers of 32 and 64 bits otherwise. Noise and keys are those of the notebook on one device.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from dm_env import StepType

from parity.layers.spec import Arrays
from parity.runs.spec import RunSpec, gumbel
from reference.flat_dict import Tensors, below, only, under
from reference.jax_runtime import cast, precision
from reference.original import learning, rules
from reference.original.curves import agent_for
from reference.original.environments import vectorised_catch
from reference.original.notebook import Replay

COMPILER_OPTIONS: dict[str, Any] = {}  # XLA's own, as users have them
FIELDS = ("observations", "actions", "rewards", "discounts", "logits")


def noise(spec: RunSpec) -> Iterator[np.ndarray]:
    """The noise of each rollout, [L, B, A] in float32, from the notebook's chain of keys.

    Reference: colabs/eval.ipynb::unroll_jittable_actor
    """
    L, B = spec.rollout_shape
    key = jax.random.PRNGKey(spec.seed)
    shape = (1, B, spec.settings["A"])
    draw = jax.jit(jax.vmap(lambda step_key: jax.random.uniform(step_key, shape)[0]))
    while True:
        key, actor_key, _ = jax.random.split(key, 3)
        device_key = jax.random.split(actor_key, 1)[0]
        yield gumbel(np.asarray(draw(jax.random.split(device_key, L))))


@functools.cache
def _programs(rule: str, settings: str, options: str) -> tuple[Callable[..., Tensors], Callable[..., Tensors]]:
    """Actor and learner step, jitted; runs of the same sizes share them, and what is compiled of them."""
    s, home = json.loads(settings), learning if rule == "disco" else rules
    learner_step = home.LAYERS["agent/learner_step" if rule == "disco" else "agent/actor_critic_step"]

    def act(x: Tensors) -> Tensors:
        out = learning.act(home.agent_for(s), x)
        return {name: out[name] for name in ("actions", "discounts", "logits")}

    def learn(learner: Tensors, rollout: Tensors, meta: Tensors) -> Tensors:
        return learner_step({**learner, **rollout, **meta}, s)

    act, learn = (jax.jit(function, compiler_options=json.loads(options)) for function in (act, learn))
    return act, learn


class Step(NamedTuple):
    """One step of the loop: what was acted [L, B], and logs of the learner step if there was one."""

    rollout: Arrays
    noise: np.ndarray
    logs: dict[str, float]
    params: Arrays


def fresh_learner(spec: RunSpec) -> Arrays:
    """The learner's state as the notebook makes it from the seed, in float32."""
    with precision("float32"):
        state = agent_for(spec).initial_learner_state(jax.random.PRNGKey(spec.seed))
        flat = (learning if spec.rule == "disco" else rules).flat_learner_state(state)
        return {name: np.asarray(value) for name, value in flat.items()}


def initial_params(spec: RunSpec) -> Arrays:
    """The agent's first parameters by their names, float32."""
    return under("params", fresh_learner(spec))


def _started_from(learner: Arrays, params: Arrays) -> Arrays:
    """A fresh learner with other parameters, online and target."""
    replaced = below("params", params) | below("meta_state/target_params", params)
    return {name: replaced.get(name, value) for name, value in learner.items()}


def scores(logits: np.ndarray, gumbels: np.ndarray) -> np.ndarray:
    """What the actions [L, B] are the largest of: log-probabilities plus noise, [L, B, A]."""
    with precision(str(logits.dtype)):
        return np.asarray(jax.nn.log_softmax(logits) + gumbels)


class OriginalLoop:
    """A training run of the original in one precision, from given parameters."""

    def __init__(self, spec: RunSpec, dtype: str, params: Arrays):
        """Sets everything up; compiles when it first runs."""
        self.spec, self.dtype = spec, dtype
        with precision(dtype):
            self.learner = cast(_started_from(fresh_learner(spec), params), dtype)
            self._meta_params = cast(below("meta_params", spec.meta_params()), dtype)
        settings = json.dumps(spec.settings, sort_keys=True)
        self._act, self._learn = _programs(spec.rule, settings, json.dumps(COMPILER_OPTIONS))
        env = vectorised_catch(spec.loop.num_envs, spec.loop.rows, spec.loop.columns)
        self._env_step = jax.jit(env.step)
        self._env_state, self._shown = env.reset(jax.random.PRNGKey(spec.seed))

    def act(self, gumbels: np.ndarray) -> Arrays:
        """One step of the actor and of the environments, the noise [B, A] given."""
        seen = {
            "observation": np.asarray(self._shown.observation).astype(self.dtype),
            "is_last": np.asarray(self._shown.step_type) == int(StepType.LAST),
            "gumbel": gumbels.astype(self.dtype),
        }
        with precision(self.dtype):
            out = {
                name: np.asarray(x)
                for name, x in self._act({**cast(seen, self.dtype), **only("params", self.learner)}).items()
            }
        step = {
            "observations": seen["observation"],
            "rewards": np.asarray(self._shown.reward).astype(self.dtype),
            **out,
        }
        step["actions"] = out["actions"].astype(np.int32)
        self._env_state, self._shown = self._env_step(self._env_state, step["actions"])
        return {name: step[name] for name in FIELDS}

    def learn(self, batch: Arrays) -> dict[str, float]:
        """One learner step on a rollout [L, batch]; returns its logs."""
        with precision(self.dtype):
            rollout = cast(below("rollout", batch), self.dtype)
            out = self._learn(self.learner, rollout, self._meta_params)
            self.learner = {name: out[name] for name in self.learner}
        return {name: float(value) for name, value in under("log", out).items() if value.ndim == 0}

    def steps(self) -> Iterator[Step]:
        """Trains, step by step."""
        loop = self.spec.loop
        replay = Replay(loop.capacity, loop.replay_seed)
        for _, gumbels in zip(range(loop.num_steps), noise(self.spec), strict=False):
            acted = [self.act(step_gumbels) for step_gumbels in gumbels]
            rollout = {name: np.stack([step[name] for step in acted]) for name in FIELDS}
            replay.add(rollout)
            logs = self.learn(replay.sample(loop.batch_size)[0]) if len(replay) >= loop.batch_size else {}
            params = {name: np.asarray(value) for name, value in under("params", self.learner).items()}
            yield Step(rollout, gumbels, logs, params)
