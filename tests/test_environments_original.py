"""The port's environments beside the original's own, seed for seed; and its random numbers beside JAX's."""

import numpy as np
import pytest
import torch

from port.environments import Catch, OriginalColumns, VectorisedCatch, host_catch, spread_seed, threefry

jax = pytest.importorskip("jax", reason="JAX is not installed; `pip install 'disco-parity[jax]'` brings it")
SEEDS = (0, 1, 17, 2**31 - 1, 2**31, 2**32 - 1, -1)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_numbers_are_those_of_jax(seed):
    key = np.asarray(jax.random.PRNGKey(seed))
    assert np.array_equal(threefry.prng_key(seed), key)
    assert np.array_equal(threefry.split(key, 5), jax.random.split(key, 5))
    assert np.array_equal(threefry.uniform(key, 9), jax.random.uniform(key, (9,)))
    for below in (1, 3, 8, 65536, 65537, 2**31 - 1):
        assert np.array_equal(threefry.randint(key, 9, below), jax.random.randint(key, (9,), 0, below)), below


def test_every_key_of_a_batch_draws_for_itself():
    keys = threefry.split(threefry.prng_key(3), 6)
    drawn = jax.vmap(lambda key: jax.random.randint(key, (), 0, 8))(keys)
    assert np.array_equal(threefry.randint(keys, 1, 8)[:, 0], drawn)


@pytest.fixture(scope="module")
def original():
    environments = pytest.importorskip(
        "disco_rl.environments", reason="the original is not installed; `make original` brings it"
    )
    del environments
    from disco_rl.environments import catch, jittable_envs
    from ml_collections import config_dict

    return {"host": catch.CatchEnvironment, "jittable": jittable_envs.CatchJittableEnvironment}, config_dict.ConfigDict


def assert_shows_the_same(ref, got):
    for name in ("observation", "reward", "step_type"):
        expected, shown = np.asarray(getattr(ref, name)), getattr(got, name).numpy()
        assert np.array_equal(expected, shown), name
        assert expected.dtype == shown.dtype or expected.dtype.kind == "i"


@pytest.mark.parametrize(("rows", "columns", "batch", "seed"), [(8, 8, 2, 0), (5, 3, 4, 9), (2, 1, 3, 1)])
def test_the_vectorised_catch_plays_the_originals_episodes(original, rows, columns, batch, seed):
    classes, config = original
    ref = classes["jittable"](batch, config({"rows": rows, "columns": columns}))
    step, env = jax.jit(ref.step), Catch(rows, columns)
    got = VectorisedCatch(env, batch, OriginalColumns(env, batch, seed))
    state, shown = ref.reset(jax.random.PRNGKey(seed))
    assert_shows_the_same(shown, got.reset())
    rng = np.random.default_rng(seed)
    for _ in range(6 * rows):
        actions = rng.integers(0, 3, batch).astype(np.int32)
        state, shown = step(state, actions)
        assert_shows_the_same(shown, got.step(torch.from_numpy(actions)))


@pytest.mark.parametrize(("rows", "columns", "batch", "seed"), [(8, 8, 3, 1), (4, 7, 2, 20)])
def test_the_hosts_catch_plays_the_originals_episodes(original, rows, columns, batch, seed):
    classes, config = original
    ref = classes["host"](batch, config({"rows": rows, "columns": columns, "random_seed": seed}))
    got = host_catch(batch, rows, columns, seed)
    assert_shows_the_same(ref.reset(None)[1], got.reset())
    rng = np.random.default_rng(seed)
    for _ in range(4 * rows):
        actions = rng.integers(0, 3, batch)
        assert_shows_the_same(ref.step(None, actions)[1], got.step(torch.from_numpy(actions)))


def test_seeds_spread_over_a_batch_as_in_the_original(original):
    del original
    from disco_rl.environments.wrappers import batched_env
    from ml_collections import config_dict

    from reference.original.environments import _Seeded

    settings = config_dict.ConfigDict({"random_seed": 42})
    env = batched_env.BatchedSingleStreamEnvironment(_Seeded, 9, settings)
    assert spread_seed(42, 9) == [part.seed for part in env._envs]
