"""What a run leaves behind: checkpoints in one file, replaced as a whole; logs that can be cut back to a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from port.meta_train.config import MetaTrainConfig
from port.networks import param_names
from port.storage.files import ABOUT, replace_file
from port.types import AdamState, Params

FORMAT = "disco-parity meta-training 1"
REMEDY = "Restore it from a copy, or begin again with another --out."
OUTPUTS = ("log.csv", "evaluations.csv", "last.npz", "best.npz")
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
    weights: str = ""  # sha256 of the file that the run was started from, if any


def save(path: Path, checkpoint: Checkpoint, config: MetaTrainConfig) -> None:
    """Writes a checkpoint; a kill at any moment leaves the old one or the new one."""
    import safetensors.numpy

    opt = checkpoint.opt_state
    tensors = {f"meta_params/{name}": p.numpy() for name, p in checkpoint.meta_params.items()}
    tensors |= {f"opt/mu/{name}": p.numpy() for name, p in opt.mu.items()}
    tensors |= {f"opt/nu/{name}": p.numpy() for name, p in opt.nu.items()}
    tensors |= {"opt/count": opt.count.numpy(), **checkpoint.members}
    about = {"format": FORMAT, "config": config.to_json(), "step": checkpoint.step}
    about |= {"best_score": checkpoint.best_score, "best_step": checkpoint.best_step, "weights": checkpoint.weights}
    whole = {name: np.ascontiguousarray(x).reshape(np.shape(x)) for name, x in sorted(tensors.items())}
    replace_file(path, safetensors.numpy.save(whole, {ABOUT: json.dumps(about)}))


def load(path: Path, config: MetaTrainConfig) -> Checkpoint:
    """Reads a checkpoint; ValueError if it is damaged or belongs to other settings."""
    about, tensors = _read(path)
    if about.get("format") != FORMAT:
        raise ValueError(f"{path} is no checkpoint of this meta-training.")
    check_same(MetaTrainConfig.from_json(about["config"]), config, path)
    shapes = param_names.meta_shapes(config.agent.meta_net)

    def params(prefix: str) -> Params:
        # In the order of a fresh start, not the file's: norms are summed in it, and must be the same to the last bit.
        return {name: torch.from_numpy(tensors[f"{prefix}{name}"]) for name in shapes}

    try:
        opt_state = AdamState(torch.from_numpy(tensors["opt/count"]), params("opt/mu/"), params("opt/nu/"))
        meta_params = params("meta_params/")
    except KeyError as missing:
        raise ValueError(f"{path} is damaged: it lacks {missing}. {REMEDY}") from None
    param_names.check_shapes(meta_params, shapes, f"meta-parameters in {path}")
    members = {name: x for name, x in tensors.items() if name.startswith("member/")}
    best = (about["best_score"], about["best_step"])
    return Checkpoint(about["step"], meta_params, opt_state, members, *best, about.get("weights", ""))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    import safetensors

    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get(ABOUT, "{}"))
            return about, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, ValueError) as problem:
        raise ValueError(f"{path} is damaged ({problem}). {REMEDY}") from None


def check_same(old: MetaTrainConfig, new: MetaTrainConfig, path: Path) -> None:
    """Raises ValueError where a run would continue with other settings than it was started with."""
    fixed = [name for name in old.__dataclass_fields__ if name not in FREE_SETTINGS]
    both = [(name, getattr(old, name), getattr(new, name)) for name in fixed]
    odd = [f"{name} {was} -> {now}" for name, was, now in both if was != now]
    if odd:
        raise ValueError(f"{path} was made with other settings ({'; '.join(odd)}); use them, or another --out.")


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
        check_same(old, config, path)
    elif any((out / name).exists() for name in OUTPUTS):
        raise ValueError(f"{out} holds files that no meta-training with these settings left; use another --out.")
