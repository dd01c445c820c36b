"""What is timed: sizes, batch and weights, the same for every implementation. Needs neither torch nor JAX."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from parity.runs.spec import DISCO103_AGENT, Loop, RunSpec

Arrays: TypeAlias = dict[str, np.ndarray]
CATCH_ACTIONS = 3


@dataclass(frozen=True)
class Timed(RunSpec):
    """A run whose weights lie in a file that was made for the run."""

    file: Path = Path()

    def weights_path(self) -> Path:
        """That file."""
        return self.file


@dataclass(frozen=True)
class Work:
    """A piece of work.

    Attributes:
        setting: sizes of agent, rule and loop, and the file of the rule's weights.
        num_actions: A.
        params: the agent's, by the original's names; empty where the piece does not learn from the batch.
        rollout: the batch, [T+1, B, ...] each: observations, actions, rewards, discounts, logits.
    """

    setting: Timed
    num_actions: int = CATCH_ACTIONS
    params: Arrays = field(default_factory=dict)
    rollout: Arrays = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """Of what is drawn."""
        return self.setting.seed

    @property
    def num_envs(self) -> int:
        """Environments that act in parallel."""
        return self.setting.loop.num_envs

    @property
    def board(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.setting.loop.rows, self.setting.loop.columns


def evaluation(file: Path, agent: dict[str, Any] | None = None, **loop: int) -> Timed:
    """The setting of the original's `eval` notebook at Disco103's size, but for what is changed."""
    return Timed("speed", "disco", "disco103", 0, {**DISCO103_AGENT, **(agent or {})}, Loop(**loop), file)


def acting(work: Work, num_envs: int) -> Work:
    """The same with another number of environments."""
    loop = replace(work.setting.loop, batch_size=num_envs, replay_ratio=1, capacity=num_envs)
    return replace(work, setting=replace(work.setting, loop=loop), rollout={})


def all_different(work: Work) -> Work:
    """The same without duplicate boards, as where observations are images."""
    boards = work.rollout["observations"]
    noise = np.random.default_rng(work.seed).random(boards.shape, boards.dtype)
    return replace(work, rollout={**work.rollout, "observations": boards + np.float32(0.01) * noise})


def batch(setting: RunSpec, num_actions: int, seed: int) -> Arrays:
    """A random rollout of T+1 steps: boards with a ball and a paddle, one episode after the other."""
    loop, rng = setting.loop, np.random.default_rng(seed)
    length, size, rows, columns = loop.rollout_length, loop.batch_size, loop.rows, loop.columns
    row = (np.arange(length)[:, None] + rng.integers(rows, size=size)) % rows  # [T+1, B]
    ball, paddle = rng.integers(columns, size=(2, length, size))
    boards = np.zeros((length, size, rows, columns, 1), np.float32)
    steps, members = np.indices((length, size))
    boards[steps, members, row, ball] = 1.0
    boards[steps, members, rows - 1, paddle] = 1.0
    is_last = row == rows - 1
    return {
        "observations": boards,
        "actions": rng.integers(num_actions, size=(length, size)).astype(np.int32),
        "rewards": np.where(is_last, np.where(ball == paddle, 1.0, -1.0), 0.0).astype(np.float32),
        "discounts": ~is_last,
        "logits": (0.1 * rng.standard_normal((length, size, num_actions))).astype(np.float32),
    }


class Sample(NamedTuple):
    """Seconds on the clock, and seconds of all processors that were used."""

    wall: float
    cpu: float


def cpu_seconds(pids: Sequence[int] = ()) -> float:
    """Processor time of this process and of others so far; of others only on Linux."""
    total = time.process_time()
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat")
        if pid != os.getpid() and stat.is_file():
            fields = stat.read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def peak_megabytes(pid: int) -> float:
    """The most memory that a process has had so far, libraries included; NaN where Linux is not."""
    status = Path(f"/proc/{pid}/status")
    if not status.is_file():
        return float("nan")
    line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
