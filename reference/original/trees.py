"""Flat dicts of named arrays to Haiku's nested ones and back."""

from __future__ import annotations

from typing import Any

import jax

Tensors = dict[str, jax.Array]


def under(prefix: str, flat: Tensors) -> Tensors:
    """The entries below `prefix/`, without it."""
    return {name[len(prefix) + 1 :]: value for name, value in flat.items() if name.startswith(prefix + "/")}


def nested(prefix: str, flat: Tensors) -> dict[str, dict[str, jax.Array]]:
    """Haiku parameters `{module: {w, b}}` from `prefix/module/w`."""
    modules: dict[str, dict[str, jax.Array]] = {}
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
