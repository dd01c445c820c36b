"""The meta-training loop of the original's `meta_train` notebook, with checkpoints and fresh agents to judge it by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from port import optimizers, weights
from port.meta_train import checkpoint, meta_gradient
from port.meta_train.checkpoint import RunState
from port.meta_train.config import MetaTrainConfig
from port.meta_train.population import DTYPE, Contribution, generator
from port.meta_train.workers import Workers
from port.networks import init
from port.storage.files import CsvLog, replace_file
from port.storage.folder_lock import FolderLock
from port.types import Logs, Params

NEVER = -1
FIRST_SEED = 1_000  # of the fresh agents: `port.evaluate` counts from 0, and no rule is chosen on what it is judged by


class Files(NamedTuple):
    """Where a run keeps what."""

    out: Path

    @property
    def checkpoint(self) -> Path:
        """All that is needed to continue."""
        return self.out / "checkpoint.safetensors"

    @property
    def last(self) -> Path:
        """The newest meta-parameters, in the original's names."""
        return self.out / "last.npz"

    @property
    def best(self) -> Path:
        """Those that fresh agents did best with."""
        return self.out / "best.npz"

    @property
    def log(self) -> Path:
        """A row for each meta-update, as of `log_row`."""
        return self.out / "log.csv"

    @property
    def evaluations(self) -> Path:
        """A row for each fresh agent."""
        return self.out / "evaluations.csv"

    @property
    def config(self) -> Path:
        """The settings."""
        return self.out / "config.json"


class Report(NamedTuple):
    """What a caller hears of after each meta-update."""

    step: int
    row: dict[str, float]
    score: float | None  # of the fresh agents, where they were evaluated
    best_score: float
    best_step: int


def start(config: MetaTrainConfig, given: Path | None) -> RunState:
    """The beginning of a run: random meta-parameters, or those of a file in the original's names."""
    digest = ""
    if given is not None:
        meta_params = weights.load_npz(given, config.agent.meta_net, DTYPE)
        digest = hashlib.sha256(given.read_bytes()).hexdigest()
    else:
        source = generator(config.seed, "meta_params")
        meta_params = init.init_meta_params(config.agent.meta_net, source, DTYPE)
    return RunState(0, meta_params, optimizers.init_adam(meta_params), {}, float("-inf"), NEVER, digest)


def begin(config: MetaTrainConfig, files: Files, given: Path | None) -> RunState:
    """The last checkpoint, or the beginning; ValueError where the folder or the weights belong to another run."""
    if not files.checkpoint.exists():
        checkpoint.check_folder(files.out, config)
        return start(config, given)
    now = checkpoint.load(files.checkpoint, config)
    if given is not None and now.weights != start(config, given).weights:
        source = "other weights" if now.weights else "random weights"
        raise ValueError(f"The run in {files.out} was started from {source}, not from {given}; use another --out.")
    return now


def log_row(step: int, contributions: list[Contribution], logs: Logs) -> dict[str, float]:
    """What is logged of a meta-update.

    Losses, entropies and the like are means over the population, where the original's notebook keeps those of its last
    agent alone, which say little where agents differ in board and age. Rewards and norms are of the population there
    too. Age and catch rate are of each agent by its number.
    """
    names = [name for name in contributions[0].log if name not in ("age", "catch_rate")]
    row: dict[str, float] = {"step": step}
    row |= {name: float(np.mean([c.log[name] for c in contributions])) for name in names}
    row |= {name: float(x) for name, x in logs.items()}
    for i, contribution in enumerate(contributions):
        row |= {f"{name}_{i}": contribution.log[name] for name in ("age", "catch_rate")}
    return row


def evaluate(config: MetaTrainConfig, workers: Workers, meta_params: Params, step: int, log: CsvLog) -> float:
    """Lets fresh agents learn by the rule; the score is the mean catch rate of their whole lives."""
    seeds = range(FIRST_SEED, FIRST_SEED + config.evaluate_seeds)
    tasks = [(board, seed) for board in config.evaluate_boards for seed in seeds]
    scores = workers.evaluate(meta_params, tasks)
    for (board, seed), score in zip(tasks, scores, strict=True):
        log.add({"step": step, "board": board, "seed": seed, **score._asdict()})
    return float(np.mean([score.life_catch_rate for score in scores]))


def run(
    config: MetaTrainConfig,
    out: Path,
    workers: Workers,
    given: Path | None = None,
    on_step: Callable[[Report], None] | None = None,
) -> RunState:
    """Meta-trains until `num_meta_updates` are done, from the last checkpoint under `out` if there is one.

    While it lasts no other run can use `out`; ValueError where another one does.

    Args:
        config: the settings.
        out: where everything is written.
        workers: the population.
        given: weights to start from instead of random ones.
        on_step: told after each meta-update.

    Returns:
        The state at the end, which is also the last checkpoint.
    """
    out.mkdir(parents=True, exist_ok=True)
    with FolderLock(out):
        return _run(config, Files(out), workers, given, on_step)


def _run(
    config: MetaTrainConfig,
    files: Files,
    workers: Workers,
    given: Path | None,
    on_step: Callable[[Report], None] | None,
) -> RunState:
    """`run` in a folder that nobody else writes to."""
    now = begin(config, files, given)
    workers.restore(now.members)
    replace_file(files.config, config.to_json().encode())  # before the rest, as `check_folder` asks
    log, evaluations = CsvLog(files.log, now.step), CsvLog(files.evaluations, now.step + 1)
    while now.step < config.num_meta_updates:
        now, report = _advance(config, workers, now, files, log, evaluations)
        if now.step % config.checkpoint_every == 0 or now.step == config.num_meta_updates:
            now = now._replace(members=workers.save())
            weights.save_npz(files.last, now.meta_params, config.agent.meta_net)
            checkpoint.save(files.checkpoint, now, config)
        if on_step:
            on_step(report)
    return now


def _advance(
    config: MetaTrainConfig, workers: Workers, now: RunState, files: Files, log: CsvLog, evaluations: CsvLog
) -> tuple[RunState, Report]:
    """One meta-update, and an evaluation if one is due."""
    contributions = workers.contribute(now.step, now.meta_params)
    meta_params, opt_state, logs = meta_gradient.meta_update(
        now.meta_params,
        now.opt_state,
        [c.grads for c in contributions],
        config.meta_learning_rate,
        config.max_meta_grad_norm or None,
    )
    if not all(bool(torch.isfinite(p).all()) for p in meta_params.values()):
        raise FloatingPointError(f"The meta-parameters are no numbers after meta-update {now.step}; lower the rates.")
    row = log_row(now.step, contributions, logs)
    log.add(row)
    now = now._replace(step=now.step + 1, meta_params=meta_params, opt_state=opt_state)
    score = None
    if config.evaluate_every and now.step % config.evaluate_every == 0:
        score = evaluate(config, workers, meta_params, now.step, evaluations)
        if score > now.best_score:
            weights.save_npz(files.best, meta_params, config.agent.meta_net)
            now = now._replace(best_score=score, best_step=now.step)
    return now, Report(now.step, row, score, now.best_score, now.best_step)
