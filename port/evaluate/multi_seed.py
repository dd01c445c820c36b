"""Several lives with one rule, each from a seed of its own, side by side in processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from port import weights
from port.agent import Agent
from port.config import AgentConfig, DiscoConfig
from port.environments import Catch
from port.evaluate import eval_loop
from port.evaluate.eval_loop import EvalConfig, StepReport
from port.types import Params

TELL_EVERY = 10  # steps
Listener: TypeAlias = Callable[["Told"], None]


class Told(NamedTuple):
    """How far a life is."""

    seed: int
    step: int
    catch_rate: float


@dataclass(frozen=True)
class Task:
    """What every life has in common; picklable.

    Attributes:
        agent: its configuration.
        loop: of the evaluation; its seed is replaced by each life's own.
        weights: file with the rule's weights; None for a rule without any.
        dtype: a name such as `float32`.
        threads: that each life may use.
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


class Life(NamedTuple):
    """How a life went, without its parameters.

    Attributes:
        seed: of this life.
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


def run_one(task: Task, seed: int, on_step: Callable[[StepReport], None] | None = None) -> Life:
    """One life in this process."""
    torch.set_num_threads(task.threads)
    agent, meta_params = task.make()
    rates: list[float] = []

    def keep(report: StepReport) -> None:
        rates.append(report.catch_rate)
        if on_step:
            on_step(report)

    loop = replace(task.loop, seed=seed)
    result = eval_loop.evaluate(agent, meta_params, loop, getattr(torch, task.dtype), on_step=keep)
    columns = {"frames": result.frames, "average_return": result.average_returns, **result.logs}
    return Life(seed, result.catch_rate, np.array(rates), columns)


def _run_and_tell(task: Task, seed: int, told: Any) -> Life:
    def tell(report: StepReport) -> None:
        if (report.step + 1) % TELL_EVERY == 0:
            told.put(Told(seed, report.step + 1, report.catch_rate))

    return run_one(task, seed, tell)


def run_all(task: Task, seeds: Sequence[int], jobs: int, listener: Listener | None = None) -> Iterator[Life]:
    """Lives from all seeds, so many at a time, each given as it ends.

    Args:
        task: what they have in common.
        seeds: of the lives.
        jobs: processes; the lives do not depend on how many.
        listener: told every few steps how far a life is.
    """
    if jobs < 1:
        raise ValueError(f"At least one process is needed; got {jobs}.")
    task.make()  # what does not fit is said before any process starts
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(min(jobs, len(seeds)), context) as pool:
        told = manager.Queue()
        waiting = {pool.submit(_run_and_tell, task, seed, told) for seed in seeds}
        try:
            while waiting:
                _listen(told, listener)
                for done in [future for future in waiting if future.done()]:
                    waiting.remove(done)
                    yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _listen(told: Any, listener: Listener | None) -> None:
    """Passes on what has been told, waiting a moment for it."""
    try:
        news = told.get(timeout=0.2)
        while True:
            if listener:
                listener(news)
            news = told.get_nowait()
    except Empty:
        return


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
