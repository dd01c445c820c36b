"""Flat dicts of named arrays, and the parts of them below a prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax

Array: TypeAlias = jax.Array
Tensors: TypeAlias = dict[str, jax.Array]
Settings: TypeAlias = dict[str, Any]


def under(prefix: str, flat: Mapping[str, Array]) -> Tensors:
    """The entries below `prefix/`, without it."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in flat.items() if name.startswith(start)}


def below(prefix: str, flat: Mapping[str, Array]) -> Tensors:
    """The inverse of `under`: every name with `prefix/` before it."""
    return {f"{prefix}/{name}": value for name, value in flat.items()}
