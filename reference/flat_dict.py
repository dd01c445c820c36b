"""Flat dicts of named arrays (`"params/mlp/linear_0/w"`), the parts of them below a prefix, and Haiku's nested ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax

Array: TypeAlias = jax.Array
Tensors: TypeAlias = dict[str, jax.Array]
Settings: TypeAlias = dict[str, Any]
LayerFn: TypeAlias = Callable[[Tensors, Settings], Tensors]


def under(prefix: str, flat: Mapping[str, Array]) -> Tensors:
    """The entries below `prefix/`, without it."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in only(prefix, flat).items()}


def below(prefix: str, flat: Mapping[str, Array]) -> Tensors:
    """The inverse of `under`: every name with `prefix/` before it."""
    return {f"{prefix}/{name}": value for name, value in flat.items()}


def only(prefix: str, flat: Mapping[str, Array]) -> Tensors:
    """The entries below `prefix/`, by their whole names."""
    return {name: value for name, value in flat.items() if name.startswith(f"{prefix}/")}


def nested(prefix: str, flat: Mapping[str, Array]) -> dict[str, Tensors]:
    """Haiku parameters `{module: {w, b}}` from `prefix/module/w`."""
    modules: dict[str, Tensors] = {}
    for name, value in under(prefix, flat).items():
        module, _, leaf = name.rpartition("/")
        modules.setdefault(module, {})[leaf] = value
    return modules


def flattened(prefix: str, tree: Any) -> Tensors:
    """The inverse of `nested`; dicts of any depth."""
    if not hasattr(tree, "items"):
        return {prefix: tree}
    flat: Tensors = {}
    for name, value in tree.items():
        flat |= flattened(f"{prefix}/{name}", value)
    return flat
