"""The original's environments as layers, and what its evaluation notebook defines beside them.

A column is fed to the vectorised Catch through its key: while it is traced, splitting a key gives the key itself twice,
and drawing an integer gives the key's first word. The host's environments cannot be traced and run as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from disco_rl import types
from disco_rl.environments import catch, jittable_envs
from disco_rl.environments.wrappers import batched_env, batched_jittable_env
from ml_collections import config_dict

from reference.flat_dict import Settings, Tensors
from reference.jax_runtime import on_host, precision
from reference.original import notebook


def vectorised_catch(num_envs: int, rows: int, columns: int) -> jittable_envs.CatchJittableEnvironment:
    """The vectorised Catch on boards of a size."""
    board = config_dict.ConfigDict({"rows": rows, "columns": columns})
    return jittable_envs.CatchJittableEnvironment(num_envs, board)


def _split(key: jax.Array, num: int = 2) -> jax.Array:
    return key if key.ndim > 1 else jnp.stack([key] * num)


def _randint(key: jax.Array, *_: Any, **__: Any) -> jax.Array:
    return key[0]


def _keys(columns: jax.Array) -> jax.Array:
    return jnp.stack([columns, jnp.zeros_like(columns)], axis=1)


def _float_dtype() -> Any:
    return jnp.float64 if jax.config.jax_enable_x64 else jnp.float32


def _shown(state: Any, timestep: types.EnvironmentTimestep) -> Tensors:
    parts = jnp.asarray(state.state)
    return {
        "state/ball_row": parts[:, 0],
        "state/ball_column": parts[:, 1],
        "state/paddle_column": parts[:, 3],
        "observation": timestep.observation.astype(_float_dtype()),
        "reward": timestep.reward.astype(_float_dtype()),
        "step_type": timestep.step_type,
    }


def _given_columns() -> Any:
    """A context in which keys are columns."""
    return mock.patch.multiple(jax.random, split=_split, randint=_randint)


def catch_reset(x: Tensors, s: Settings) -> Tensors:
    """The vectorised Catch's start."""
    env = vectorised_catch(s["B"], s["fall"] + 1, s["columns"])
    with _given_columns():
        return _shown(*env.reset(_keys(x["ball_columns"])))


def catch_step(x: Tensors, s: Settings) -> Tensors:
    """The vectorised Catch's step."""
    env = vectorised_catch(s["B"], s["fall"] + 1, s["columns"])
    paddle_row = jnp.full_like(x["actions"], s["fall"])
    parts = (x["state/ball_row"], x["state/ball_column"], paddle_row, x["state/paddle_column"])
    state = batched_jittable_env.EnvState(state=jnp.stack(parts, axis=1), rng=_keys(x["ball_columns"]))
    with _given_columns():
        return _shown(*env.step(state, x["actions"]))


def _generator_of(columns: np.ndarray) -> Any:
    """Stands in for NumPy's generator in one environment: the columns of a list, one after the other."""
    following: Iterator[int] = iter(columns.tolist())
    return SimpleNamespace(randint=lambda below: next(following))


@on_host
def host_catch(x: Tensors, s: Settings) -> Tensors:
    """The host's Catch, its columns given."""
    generators = iter([_generator_of(column) for column in np.asarray(x["ball_columns"]).T])
    board = config_dict.ConfigDict({"rows": s["fall"] + 1, "columns": s["columns"], "random_seed": 0})
    with precision("float32"), mock.patch.object(np.random, "RandomState", lambda _: next(generators)):
        env = catch.CatchEnvironment(s["B"], board)
    steps = [env.reset(None)[1]]
    steps += [env.step(None, actions)[1] for actions in np.asarray(x["actions"])]
    fields = {name: np.stack([getattr(step, name) for step in steps]) for name in ("observation", "reward")}
    floats = {name: value.astype(_float_dtype()) for name, value in fields.items()}
    return {**floats, "step_type": np.stack([step.step_type for step in steps])}


class _Seeded:
    """An environment of which only the seed is wanted."""

    def __init__(self, env_settings: config_dict.ConfigDict):
        self.seed = env_settings.random_seed

    def single_action_spec(self) -> None:
        return None

    def single_observation_spec(self) -> None:
        return None

    def reset(self, key: Any) -> tuple[None, None]:
        return None, None


@on_host
def batched_seeds(x: Tensors, s: Settings) -> Tensors:
    """The seeds that the batching wrapper hands out, in 32 bits as in the original's own use."""
    settings = config_dict.ConfigDict({"random_seed": int(x["seed"])})
    with precision("float32"):
        env = batched_env.BatchedSingleStreamEnvironment(_Seeded, s["B"], settings)
    return {"seeds": np.array([part.seed for part in env._envs], np.int32)}


LAYERS = {
    "env/catch_reset": catch_reset,
    "env/catch_step": catch_step,
    "env/host_catch": host_catch,
    "env/batched_seeds": batched_seeds,
    "replay/sample": notebook.replay_sample,
    "eval/accumulate_returns": notebook.accumulate_returns,
}
