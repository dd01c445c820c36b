"""Records of tensors as flat dicts with names such as `learning/learner/params/torso/0/w`, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

Tree = TypeVar("Tree")


def _children(tree: Any) -> Iterator[tuple[str, Any]]:
    """Name and value of each part of a record."""
    if isinstance(tree, Mapping):
        yield from tree.items()
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        yield from ((f.name, getattr(tree, f.name)) for f in dataclasses.fields(tree))
    elif hasattr(tree, "_asdict"):
        yield from tree._asdict().items()
    else:
        raise TypeError(f"A state holds tensors in dicts and records; got a {type(tree).__name__}.")


def flatten(tree: Any) -> dict[str, Tensor]:
    """All tensors by name; nothing is copied."""
    flat: dict[str, Tensor] = {}
    for name, value in _children(tree):
        if isinstance(value, Tensor):
            flat[name] = value
        else:
            flat |= {f"{name}/{key}": x for key, x in flatten(value).items()}
    return flat


def unflatten(like: Tree, flat: Mapping[str, Tensor]) -> Tree:
    """A record like `like` with the tensors of `flat`, whose names, shapes and dtypes must be the same."""
    check_same(flat, flatten(like), "The saved state")
    return _rebuild(like, lambda name, _: flat[name])


def check_same(got: Mapping[str, Tensor], ref: Mapping[str, Tensor], what: str, remedy: str = "") -> None:
    """Raises ValueError where `what` has other names, shapes or dtypes than `ref`; the numbers are not looked at."""
    if odd := sorted(got.keys() ^ ref.keys()):
        raise ValueError(f"{what} does not fit: {', '.join(odd[:5])} is only in one of the two{remedy}.")
    for name, x in ref.items():
        if got[name].shape != x.shape or got[name].dtype != x.dtype:
            was, needed = (f"{t.dtype} {tuple(t.shape)}" for t in (got[name], x))
            raise ValueError(f"{what} has {name} as {was}; it must be {needed}{remedy}.")


def detached(tree: Tree) -> Tree:
    """The same record without a graph."""
    return _rebuild(tree, lambda _, x: x.detach())


def _rebuild(like: Any, replace: Callable[[str, Tensor], Tensor], prefix: str = "") -> Any:
    """The record with each tensor replaced by a function of its name and value."""
    if isinstance(like, Tensor):
        return replace(prefix[:-1], like)
    parts = {name: _rebuild(value, replace, f"{prefix}{name}/") for name, value in _children(like)}
    return parts if isinstance(like, Mapping) else type(like)(**parts)
