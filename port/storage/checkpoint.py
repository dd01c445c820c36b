"""Checkpoints: one file, replaced as a whole, with everything that a training or meta-training run goes on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from port.storage.files import replace_file
from port.types import Params

FORMAT = "disco-parity training 1"
ODD = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)  # of odd content
ABOUT = "about"  # one entry: safetensors writes several in any order, and a file would not be the same bits again


class Checkpoint(NamedTuple):
    """Everything that a run needs to go on.

    Attributes:
        tensors: by name.
        numbers: counters and the like; JSON.
        settings: what the run was started with; JSON. A run continues only with the same.
    """

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    settings: dict[str, Any]


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint; a kill at any moment leaves the old one or the new one."""
    import safetensors.numpy

    about = {"format": FORMAT, "numbers": checkpoint.numbers, "settings": checkpoint.settings}
    arrays = {name: _array(x) for name, x in sorted(checkpoint.tensors.items())}
    replace_file(path, safetensors.numpy.save(arrays, {ABOUT: json.dumps(about)}))


def _array(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().cpu().numpy()
    return np.ascontiguousarray(array).reshape(array.shape)


class CheckpointError(ValueError):
    """A checkpoint that a run cannot go on from; the message names it and says what to do."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Makes CheckpointError of what reading a damaged checkpoint raises."""
    import safetensors

    try:
        yield
    except CheckpointError:
        raise
    except (*ODD, safetensors.SafetensorError) as problem:
        remedy = "Restore it from a copy, remove it to start over, or use another --out."
        raise CheckpointError(f"{path} is damaged ({type(problem).__name__}: {problem}). {remedy}") from None


def load(path: Path, settings: Mapping[str, Any], device: str = "cpu", free: Collection[str] = ()) -> Checkpoint:
    """Reads a checkpoint; ValueError if it belongs to other settings but for the free ones, or is none."""
    import safetensors

    with reading(path):
        with safetensors.safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            names = list(file.keys())
            tensors = {name: torch.from_numpy(np.array(file.get_tensor(name))).to(device) for name in names}
        if about.get("format") != FORMAT:
            raise CheckpointError(f"{path} is no checkpoint of this version.")
        check_same(about["settings"], settings, path, free)
        return Checkpoint(tensors, dict(about["numbers"]), about["settings"])


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], path: Path, free: Collection[str] = ()) -> None:
    """Raises ValueError where a run would go on with other settings than it began with, but for the free ones."""
    old, new = (_flat(json.loads(json.dumps(settings))) for settings in (old, new))
    changed = [name for name in {**old, **new} if old.get(name) != new.get(name) and name not in free]
    odd = [f"{name} {old.get(name)} -> {new.get(name)}" for name in changed]
    odd.sort(key=lambda text: not text.startswith(("environment.", "rule ")))  # what tells most comes first
    if odd:
        raise CheckpointError(
            f"{path} was made with other settings ({'; '.join(odd[:5])}); use them, or another --out."
        )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def digest(params: Params | None) -> str | None:
    """A short digest of parameters."""
    if params is None:
        return None
    total = hashlib.sha256()
    for name, x in sorted(params.items()):
        total.update(name.encode() + _array(x).tobytes())
    return total.hexdigest()[:16]


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
