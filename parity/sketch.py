"""What is stored and compared of a large array: sums of its elements with random signs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from parity.layers.draw import generator

SKETCH_WIDTH = 256
SKETCH_ABOVE = 2_048


def sketch(array: np.ndarray, width: int = SKETCH_WIDTH) -> np.ndarray:
    """Folds a large array into 256 (or `width`) sums of its elements with random signs.

    An error in any single element shows, undiminished, in one of the sums.
    """
    flat = np.asarray(array, np.float64).reshape(-1)
    signs = _signs(flat.size)
    padded = np.zeros(-(-flat.size // width) * width)
    padded[: flat.size] = flat * signs
    return padded.reshape(-1, width).sum(axis=0)


@lru_cache(maxsize=64)
def _signs(size: int) -> np.ndarray:
    return generator("sketch", str(size)).integers(0, 2, size) * 2.0 - 1.0


def reduced(array: np.ndarray) -> np.ndarray:
    """What is stored and compared of an array: itself, or its sketch if it is a large float array."""
    is_large = array.size > SKETCH_ABOVE and np.issubdtype(array.dtype, np.floating)
    return sketch(array) if is_large else array
