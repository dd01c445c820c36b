"""The meta-training loop of the original's `meta_train` notebook, with checkpoints and fresh agents to judge it by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from port import weights
from port.meta_train import checkpoint, meta_gradient
from port.meta_train.checkpoint import Files, RunState
from port.meta_train.config import MetaTrainConfig
from port.meta_train.population import Contribution
from port.meta_train.workers import Population
from port.storage.files import CsvLog, replace_file
from port.storage.folder_lock import FolderLock
from port.types import Logs, Params

FIRST_SEED = 1_000  # of the fresh agents: `port.evaluate` counts from 0, and no rule is chosen on what it is judged by


class Report(NamedTuple):
    """What a caller sees of each meta-update."""

    step: int
    row: dict[str, float]
    score: float | None  # of the fresh agents, where they were evaluated
    best_score: float
    best_step: int


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


def evaluate(config: MetaTrainConfig, workers: Population, meta_params: Params, step: int, log: CsvLog) -> float:
    """Lets fresh agents learn by the rule; the score is the mean catch rate of their whole runs."""
    seeds = range(FIRST_SEED, FIRST_SEED + config.evaluate_seeds)
    tasks = [(board, seed) for board in config.evaluate_boards for seed in seeds]
    scores = workers.evaluate(meta_params, tasks)
    for (board, seed), score in zip(tasks, scores, strict=True):
        log.add({"step": step, "board": board, "seed": seed, **score._asdict()})
    return float(np.mean([score.life_catch_rate for score in scores]))


def run(
    config: MetaTrainConfig,
    out: Path,
    workers: Population,
    start_from: Path | None = None,
    on_step: Callable[[Report], None] | None = None,
) -> RunState:
    """Meta-trains until `num_meta_updates` are done, from the last checkpoint in `out` if there is one.

    A new run starts from the weights `start_from`, or from random ones. ValueError where another run uses `out`.
    Returns the state at the end, which is also the last checkpoint.
    """
    out.mkdir(parents=True, exist_ok=True)
    files, net = Files(out), config.agent.meta_net
    with FolderLock(out):
        now = checkpoint.begin(config, files, start_from)
        workers.restore(now.members)
        replace_file(files.config, config.to_json().encode())  # before the rest, as `checkpoint.begin` asks
        log, evaluations = CsvLog(files.log, now.step), CsvLog(files.evaluations, now.step + 1)
        while now.step < config.num_meta_updates:
            now, row = _meta_update(config, workers, now)
            log.add(row)
            score = None
            if config.evaluate_every and now.step % config.evaluate_every == 0:
                score = evaluate(config, workers, now.meta_params, now.step, evaluations)
                if score > now.best_score:
                    weights.save_npz(files.best, now.meta_params, net)
                    now = now._replace(best_score=score, best_step=now.step)
            if now.step % config.checkpoint_every == 0 or now.step == config.num_meta_updates:
                now = now._replace(members=workers.save())
                weights.save_npz(files.last, now.meta_params, net)
                checkpoint.save(files.checkpoint, now, config)
            if on_step:
                on_step(Report(now.step, row, score, now.best_score, now.best_step))
        return now


def _meta_update(config: MetaTrainConfig, workers: Population, now: RunState) -> tuple[RunState, dict[str, float]]:
    """The state after one meta-update, and what is logged of it."""
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
    return now._replace(step=now.step + 1, meta_params=meta_params, opt_state=opt_state), row
