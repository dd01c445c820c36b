"""Flat dicts of named arrays (`"params/mlp/linear_0/w"`), the parts of them below a prefix, and Haiku's nested ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, get_type_hints

import jax

Array: TypeAlias = jax.Array
Tensors: TypeAlias = dict[str, jax.Array]
Settings: TypeAlias = dict[str, Any]
LayerFn: TypeAlias = Callable[[Tensors, Settings], Tensors]
State = TypeVar("State")


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


def flat_state(state: Any) -> Tensors:
    """A named tuple, of arrays, flat dicts and named tuples, as one flat dict: `opt/count`, `opt/mu/...`."""
    flat: Tensors = {}
    for name, part in state._asdict().items():
        if hasattr(part, "_asdict"):
            part = flat_state(part)
        flat |= below(name, part) if isinstance(part, dict) else {name: part}
    return flat


def read_state(kind: Callable[..., State], flat: Mapping[str, Array]) -> State:
    """The inverse of `flat_state` for a class of named tuples; what else is in the flat dict is left out."""
    parts: dict[str, Any] = {}
    for name, of_kind in get_type_hints(kind).items():
        if hasattr(of_kind, "_fields"):
            parts[name] = read_state(of_kind, under(name, flat))
        else:
            parts[name] = flat[name] if of_kind is Array else under(name, flat)
    return kind(**parts)
