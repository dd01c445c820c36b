"""What a run leaves behind: checkpoints in one file, replaced as a whole; logs that can be cut back to a checkpoint."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from port.meta_train.config import MetaTrainConfig
from port.types import AdamState, Params

FORMAT = "disco-parity meta-training 1"
ABOUT = "about"  # one entry: safetensors writes several in any order, and a file would not be the same bits again
# Settings that a run may change when it continues: what was computed so far does not depend on them.
FREE_SETTINGS = ("num_meta_updates", "checkpoint_every")


class Checkpoint(NamedTuple):
    """Everything that a run needs to go on after `step` meta-updates."""

    step: int
    meta_params: Params
    opt_state: AdamState
    members: dict[str, np.ndarray]
    best_score: float
    best_step: int


def replace_file(path: Path, content: bytes) -> None:
    """Writes beside the target, to the disk, and only then puts it in place."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def save(path: Path, checkpoint: Checkpoint, config: MetaTrainConfig) -> None:
    """Writes a checkpoint; a kill at any moment leaves the old one or the new one."""
    import safetensors.numpy

    opt = checkpoint.opt_state
    tensors = {f"meta_params/{name}": p.numpy() for name, p in checkpoint.meta_params.items()}
    tensors |= {f"opt/mu/{name}": p.numpy() for name, p in opt.mu.items()}
    tensors |= {f"opt/nu/{name}": p.numpy() for name, p in opt.nu.items()}
    tensors |= {"opt/count": opt.count.numpy(), **checkpoint.members}
    about = {"format": FORMAT, "config": config.to_json(), "step": checkpoint.step}
    about |= {"best_score": checkpoint.best_score, "best_step": checkpoint.best_step}
    whole = {name: np.ascontiguousarray(x).reshape(np.shape(x)) for name, x in sorted(tensors.items())}
    replace_file(path, safetensors.numpy.save(whole, {ABOUT: json.dumps(about)}))


def load(path: Path, config: MetaTrainConfig) -> Checkpoint:
    """Reads a checkpoint; ValueError if it belongs to other settings."""
    import safetensors

    with safetensors.safe_open(path, framework="numpy") as file:
        about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
        if about.get("format") != FORMAT:
            raise ValueError(f"{path} is no checkpoint of this meta-training.")
        check_same(MetaTrainConfig.from_json(about["config"]), config, path)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def params(prefix: str) -> Params:
        found = {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
        return {name: torch.from_numpy(x) for name, x in found.items()}

    opt_state = AdamState(torch.from_numpy(tensors["opt/count"]), params("opt/mu/"), params("opt/nu/"))
    members = {name: x for name, x in tensors.items() if name.startswith("member/")}
    return Checkpoint(
        about["step"], params("meta_params/"), opt_state, members, about["best_score"], about["best_step"]
    )


def check_same(old: MetaTrainConfig, new: MetaTrainConfig, path: Path) -> None:
    """Raises ValueError where a run would continue with other settings than it was started with."""
    names = [name for name in old.__dataclass_fields__ if name not in FREE_SETTINGS]
    odd = [f"{name} {getattr(old, name)} -> {getattr(new, name)}" for name in names]
    odd = [text for text, name in zip(odd, names, strict=True) if getattr(old, name) != getattr(new, name)]
    if odd:
        raise ValueError(f"{path} was made with other settings ({'; '.join(odd)}); use them, or another --out.")


class CsvLog:
    """Rows that begin with the number of a meta-update; cut back to a checkpoint when a run continues."""

    def __init__(self, path: Path, first_step: int) -> None:
        """Keeps the whole rows below `first_step`, and drops the rest."""
        self.path = path
        self._header: list[str] = []
        kept = []
        if path.is_file():
            for i, line in enumerate(path.read_text().splitlines(keepends=True)):
                if line.endswith("\n") and (i == 0 or int(line.split(",", 1)[0]) < first_step):
                    kept.append(line)
        if kept:
            self._header = kept[0].strip().split(",")
        replace_file(path, "".join(kept).encode())

    def add(self, row: Mapping[str, float | int | str]) -> None:
        """Appends a row, and the header before the first."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(row) if not self._header else self._header, lineterminator="\n")
        if not self._header:
            self._header = list(row)
            writer.writeheader()
        writer.writerow(row)
        with self.path.open("a") as file:
            file.write(text.getvalue())

    def rows(self) -> Sequence[dict[str, str]]:
        """All rows so far."""
        with self.path.open() as file:
            return list(csv.DictReader(file))
