"""Several training runs with one rule, each from a seed of its own, in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from port import weights
from port.agent import Agent
from port.config import AgentConfig, DiscoConfig
from port.environments import Catch
from port.evaluate import eval_loop
from port.evaluate.eval_loop import EvalConfig, StepReport
from port.types import Params


@dataclass(frozen=True)
class Task:
    """What every run has in common; picklable.

    Attributes:
        agent: its configuration.
        loop: of the evaluation; its seed is replaced by each run's own.
        weights: file with the rule's weights; None for a rule without any.
        dtype: a name such as `float32`.
        threads: that each run may use.
    """

    agent: AgentConfig
    loop: EvalConfig
    weights: Path | None = None
    dtype: str = "float32"
    threads: int = 1

    def make(self) -> tuple[Agent, Params]:
        """A fresh agent and the weights of its rule; ValueError says what does not fit."""
        env = Catch(self.loop.rows, self.loop.columns)
        agent = Agent(self.agent, env.observation_shape, env.num_actions)
        if isinstance(self.agent.rule, DiscoConfig) != (self.weights is not None):
            raise ValueError("Disco takes a file of weights; the other rules take none.")
        if self.weights is None:
            return agent, {}
        return agent, weights.load_npz(self.weights, self.agent.meta_net, getattr(torch, self.dtype))


class Run(NamedTuple):
    """How a run went, without its parameters.

    Attributes:
        seed: of this run.
        catch_rate: over its last 100 episodes.
        catch_rates: [num_steps], over the last 100 episodes up to each step, NaN before the first has ended.
        columns: name -> [num_steps]: frames, average returns and the learner's logs.
    """

    seed: int
    catch_rate: float
    catch_rates: np.ndarray
    columns: dict[str, np.ndarray]

    def solved_at(self, bar: float) -> int | None:
        """The first step after which at least that share of the last 100 episodes was caught, counted from 1."""
        reached = np.flatnonzero(self.catch_rates >= bar)
        return int(reached[0]) + 1 if len(reached) else None


def run_one(task: Task, seed: int) -> Run:
    """One run in this process."""
    torch.set_num_threads(task.threads)
    agent, meta_params = task.make()
    rates: list[float] = []

    def keep(report: StepReport) -> None:
        rates.append(report.catch_rate)

    loop = replace(task.loop, seed=seed)
    result = eval_loop.evaluate(agent, meta_params, loop, getattr(torch, task.dtype), on_step=keep)
    columns = {"frames": result.frames, "average_return": result.average_returns, **result.logs}
    return Run(seed, result.catch_rate, np.array(rates), columns)


def run_all(task: Task, seeds: Sequence[int], jobs: int) -> Iterator[Run]:
    """Runs from all seeds in processes, in the order of the seeds.

    Args:
        task: what they have in common.
        seeds: of the runs.
        jobs: processes; the runs do not depend on how many.
    """
    if jobs < 1:
        raise ValueError(f"At least one process is needed; got {jobs}.")
    task.make()  # what does not fit is an error before any process starts
    with ProcessPoolExecutor(min(jobs, len(seeds)), get_context("spawn")) as pool:
        yield from pool.map(partial(run_one, task), seeds)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
