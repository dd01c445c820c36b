"""The state of a meta-training run, in and out of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from port.meta_train.config import MetaTrainConfig
from port.networks import param_names
from port.storage import checkpoint
from port.storage.checkpoint import Checkpoint, part
from port.types import AdamState, Params

OUTPUTS = ("log.csv", "evaluations.csv", "last.npz", "best.npz")
# Settings that a run may change when it continues: what was computed so far does not depend on them.
FREE_SETTINGS = ("num_meta_updates", "checkpoint_every")


class RunState(NamedTuple):
    """Everything that a run needs to go on after `step` meta-updates."""

    step: int
    meta_params: Params
    opt_state: AdamState
    members: dict[str, np.ndarray]
    best_score: float
    best_step: int
    weights: str = ""  # sha256 of the file that the run was started from, if any


def settings(config: MetaTrainConfig) -> dict[str, Any]:
    """The settings as JSON holds them."""
    plain: dict[str, Any] = json.loads(config.to_json())
    return plain


def save(path: Path, state: RunState, config: MetaTrainConfig) -> None:
    """Writes a checkpoint; a kill at any moment leaves the old one or the new one."""
    groups = {"meta_params": state.meta_params, "opt/mu": state.opt_state.mu, "opt/nu": state.opt_state.nu}
    tensors = {f"{group}/{name}": p for group, params in groups.items() for name, p in params.items()}
    tensors |= {"opt/count": state.opt_state.count, **{n: torch.from_numpy(x) for n, x in state.members.items()}}
    numbers = {name: getattr(state, name) for name in ("step", "best_score", "best_step", "weights")}
    checkpoint.save(path, Checkpoint(tensors, numbers, settings(config)))


def load(path: Path, config: MetaTrainConfig) -> RunState:
    """Reads a checkpoint; ValueError if it is damaged or belongs to other settings."""
    tensors, numbers, _ = checkpoint.load(path, settings(config), free=FREE_SETTINGS)
    shapes = param_names.meta_shapes(config.agent.meta_net)

    def params(group: str) -> Params:
        read = part(tensors, f"{group}/")
        param_names.check_shapes(read, shapes, f"{group} in {path}")
        # In the order of a fresh start, not the file's: norms are summed in it, and must be the same to the last bit.
        return {name: read[name] for name in shapes}

    opt_state = AdamState(tensors["opt/count"], params("opt/mu"), params("opt/nu"))
    members = {name: x.numpy() for name, x in tensors.items() if name.startswith("member/")}
    return RunState(meta_params=params("meta_params"), opt_state=opt_state, members=members, **numbers)


def check_folder(out: Path, config: MetaTrainConfig) -> None:
    """Raises ValueError where a folder without a checkpoint holds what is not of a run with these settings.

    A run that was killed before its first checkpoint left its settings before anything else.
    """
    path = out / "config.json"
    if path.is_file():
        try:
            old = MetaTrainConfig.from_json(path.read_text(encoding="utf-8"))
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"{path} does not hold settings of a meta-training; use another --out.") from None
        checkpoint.check_same(settings(old), settings(config), path, FREE_SETTINGS)
    elif any((out / name).exists() for name in OUTPUTS):
        raise ValueError(f"{out} holds files that no meta-training with these settings left; use another --out.")
