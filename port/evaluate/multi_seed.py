"""Several training runs with one rule, each from a seed of its own, in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from port import weights
from port.agent import Agent
from port.config import AgentConfig, DiscoConfig
from port.environments import Catch
from port.evaluate.eval_loop import EvalConfig, EvalLoop, EvalResult
from port.processes import deaf_to_interrupts, end_with_parent


@dataclass(frozen=True)
class Task:
    """What every run has in common; picklable.

    Attributes:
        agent: its configuration.
        loop: of the evaluation; its seed is replaced by each run's own.
        weights: file with the rule's weights; None for a rule without any.
        dtype: a name such as `float32`.
    """

    agent: AgentConfig
    loop: EvalConfig
    weights: Path | None = None
    dtype: str = "float32"

    def start(self, seed: int) -> EvalLoop:
        """A run that stands at its beginning; ValueError says what does not fit."""
        env, dtype = Catch(self.loop.rows, self.loop.columns), getattr(torch, self.dtype)
        agent = Agent(self.agent, env.observation_shape, env.num_actions)
        if isinstance(self.agent.rule, DiscoConfig) != (self.weights is not None):
            raise ValueError("Disco takes a file of weights; the other rules take none.")
        meta_params = weights.load_npz(self.weights, self.agent.meta_net, dtype) if self.weights else {}
        return EvalLoop(agent, meta_params, replace(self.loop, seed=seed), dtype)


def run_one(task: Task, seed: int) -> EvalResult:
    """One run in this process, on one thread."""
    torch.set_num_threads(1)
    return task.start(seed).run()


def run_all(task: Task, seeds: Sequence[int], jobs: int) -> Iterator[EvalResult]:
    """Runs from all seeds, in the order of the seeds, in `jobs` processes, whose number changes no result."""
    if jobs < 1:
        raise ValueError(f"At least one process is needed; got {jobs}.")
    task.start(seeds[0])  # what does not fit is an error before any process starts
    with ProcessPoolExecutor(min(jobs, len(seeds)), get_context("spawn"), end_with_parent) as pool:
        with deaf_to_interrupts():
            runs = [pool.submit(run_one, task, seed) for seed in seeds]
        try:
            yield from (run.result() for run in runs)
        except Exception:
            pool.shutdown(cancel_futures=True)
            raise


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
