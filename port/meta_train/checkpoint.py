"""The state of a meta-training run, in and out of its folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from port import optimizers, trees, weights
from port.meta_train.config import MetaTrainConfig
from port.meta_train.population import DTYPE, generator
from port.networks import init, param_names
from port.storage import checkpoint
from port.storage.checkpoint import Checkpoint
from port.types import AdamState, Params

# Settings that a run may change when it continues: what was computed so far does not depend on them.
FREE_SETTINGS = ("num_meta_updates", "checkpoint_every")
NEVER = -1


class Files:
    """Where a run keeps what."""

    def __init__(self, out: Path) -> None:
        """Takes the run's folder."""
        self.out = out
        self.config = out / "config.json"  # the settings
        self.checkpoint = out / "checkpoint.safetensors"  # all that is needed to continue
        self.last = out / "last.npz"  # the newest meta-parameters, in the original's names
        self.best = out / "best.npz"  # those that fresh agents did best with
        self.log = out / "log.csv"  # a row for each meta-update, as of `log_row`
        self.evaluations = out / "evaluations.csv"  # a row for each fresh agent


class RunState(NamedTuple):
    """Everything that a run needs to go on after `step` meta-updates."""

    step: int
    meta_params: Params
    opt_state: AdamState
    members: Params  # states of the population, as of `Population.save`
    best_score: float
    best_step: int
    weights: str = ""  # digest of the weights that the run was started from, if any


def begin(config: MetaTrainConfig, files: Files, start_from: Path | None) -> RunState:
    """The last checkpoint, or the beginning; ValueError where the folder or the weights belong to another run."""
    if not files.checkpoint.exists():
        _check_folder(files, config)
        return start(config, start_from)
    now = load(files.checkpoint, config)
    if start_from is not None and now.weights != start(config, start_from).weights:
        source = "other weights" if now.weights else "random weights"
        raise ValueError(f"The run in {files.out} was started from {source}, not from {start_from}; use another --out.")
    return now


def start(config: MetaTrainConfig, start_from: Path | None) -> RunState:
    """The beginning of a run: random meta-parameters, or those of a file in the original's names."""
    digest, net = "", config.agent.meta_net
    if start_from is not None:
        meta_params = weights.load_npz(start_from, net, DTYPE)
        digest = checkpoint.digest(meta_params) or ""
    else:
        meta_params = init.init_meta_params(net, generator(config.seed, "meta_params"), DTYPE)
    return RunState(0, meta_params, optimizers.init_adam(meta_params), {}, float("-inf"), NEVER, digest)


def save(path: Path, state: RunState, config: MetaTrainConfig) -> None:
    """Writes a checkpoint; a kill at any moment leaves the old one or the new one."""
    tensors = trees.flatten({"meta_params": state.meta_params, "opt": state.opt_state}) | state.members
    numbers = {name: getattr(state, name) for name in ("step", "best_score", "best_step", "weights")}
    checkpoint.save(path, Checkpoint(tensors, numbers, asdict(config)))


def load(path: Path, config: MetaTrainConfig) -> RunState:
    """Reads a checkpoint; ValueError if it is damaged or belongs to other settings."""
    tensors, numbers, _ = checkpoint.load(path, asdict(config), free=FREE_SETTINGS)
    with checkpoint.reading(path):
        members = {name: x for name, x in tensors.items() if name.startswith("member/")}
        # In the order of a fresh start, not the file's: norms are summed in it, and must be the same to the last bit.
        like = {
            n: torch.empty(shape, dtype=DTYPE) for n, shape in param_names.meta_shapes(config.agent.meta_net).items()
        }
        rest = {name: x for name, x in tensors.items() if name not in members}
        tree: dict[str, Any] = trees.unflatten({"meta_params": like, "opt": optimizers.init_adam(like)}, rest)
        return RunState(meta_params=tree["meta_params"], opt_state=tree["opt"], members=members, **numbers)


def _check_folder(files: Files, config: MetaTrainConfig) -> None:
    """Raises ValueError where a folder without a checkpoint holds what is not of a run with these settings.

    A run that was killed before its first checkpoint left its settings before anything else.
    """
    if files.config.is_file():
        try:
            old = MetaTrainConfig.from_json(files.config.read_text(encoding="utf-8"))
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"{files.config} does not hold settings of a meta-training; use another --out.") from None
        checkpoint.check_same(asdict(old), asdict(config), files.config, FREE_SETTINGS)
    elif any(path.exists() for path in (files.log, files.evaluations, files.last, files.best)):
        raise ValueError(f"{files.out} holds files that no meta-training with these settings left; use another --out.")
