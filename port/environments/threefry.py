"""JAX's random numbers without JAX: its default generator, Threefry-2x32 with partitionable counters, in NumPy.

What the original draws follows from its seeds alone. With these functions the port draws the same: seeds that a batched
environment gives to its parts, columns in which balls start, uniform noise. A key is two unsigned 32-bit numbers;
leading axes of keys are the caller's.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Keys: TypeAlias = np.ndarray  # [*I, 2], uint32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)
GROUPS = 5  # of four rounds each


def prng_key(seed: int) -> Keys:
    """The key of a seed, [2], as JAX makes it where integers have 32 bits.

    Reference: jax/_src/random.py::PRNGKey
    """
    if not -(2**31) <= seed < 2**32:
        raise ValueError(f"Seed {seed} does not fit into 32 bits; give one from -2147483648 to 4294967295.")
    return np.array([0, seed % 2**32], np.uint32)


def _hash(keys: Keys, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 of the counters (high, low) under each key: [*I, 2] and [N] to two of [*I, N].

    Reference: jax/_src/prng.py::threefry_2x32
    """
    first, second = keys[..., :1], keys[..., 1:]
    schedule = (first, second, first ^ second ^ PARITY)
    x, y = high + first, low + second
    for group in range(GROUPS):
        for turn in ROTATIONS[group % 2]:
            x = x + y
            y = (y << np.uint32(turn) | y >> np.uint32(32 - turn)) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _counted(keys: Keys, count: int) -> tuple[np.ndarray, np.ndarray]:
    keys = np.asarray(keys)
    if keys.dtype != np.uint32 or keys.ndim == 0 or keys.shape[-1] != 2:
        raise ValueError(f"Keys are [..., 2] of uint32; got {list(keys.shape)} of {keys.dtype}.")
    low = np.arange(count, dtype=np.uint32)
    return _hash(keys, np.zeros_like(low), low)


def split(keys: Keys, num: int = 2) -> Keys:
    """Makes `num` keys out of each: [*I, 2] to [*I, num, 2].

    Reference: jax/_src/random.py::split
    """
    return np.stack(_counted(keys, num), axis=-1)


def bits(keys: Keys, count: int) -> np.ndarray:
    """Random 32-bit numbers: [*I, 2] to [*I, count], uint32.

    Reference: jax/_src/random.py::bits
    """
    x, y = _counted(keys, count)
    return x ^ y


def randint(keys: Keys, count: int, below: int) -> np.ndarray:
    """Integers in [0, below): [*I, 2] to [*I, count], int32.

    64 random bits are taken modulo `below`, by halves; for a bound above 65,536 JAX's product wraps around to 0, and
    the lower 32 bits decide alone.

    Reference: jax/_src/random.py::randint
    """
    if not 1 <= below <= 2**31 - 1:
        raise ValueError(f"The bound of random integers is {below}; give one from 1 to 2147483647.")
    pair = split(keys)
    higher, lower = (bits(pair[..., i, :], count) for i in (0, 1))
    span = np.uint32(below)
    weight = np.uint32((2**16 % below) ** 2 % 2**32 % below)
    return ((higher % span * weight + lower % span) % span).astype(np.int32)


def uniform(keys: Keys, count: int) -> np.ndarray:
    """Numbers in [0, 1): [*I, 2] to [*I, count], float32.

    Reference: jax/_src/random.py::uniform
    """
    mantissas = bits(keys, count) >> np.uint32(9) | np.float32(1.0).view(np.uint32)
    return mantissas.view(np.float32) - np.float32(1.0)
