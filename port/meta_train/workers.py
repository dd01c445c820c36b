"""The population spread over processes, one thread each; what comes out does not depend on how many there are."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import torch

from port.distributed import Averaging, RankLost
from port.meta_train import population
from port.meta_train.config import MetaTrainConfig
from port.meta_train.population import Contribution, Member, MemberState, Score
from port.processes import deaf_to_interrupts, end_with_parent
from port.storage.checkpoint import part
from port.trees import flatten, unflatten
from port.types import Params

Arrays = dict[str, np.ndarray]


def to_arrays(params: Mapping[str, torch.Tensor]) -> Arrays:
    """As NumPy arrays, which pass from process to process as bytes."""
    return {name: p.detach().numpy() for name, p in params.items()}


def to_tensors(arrays: Mapping[str, np.ndarray]) -> Params:
    """The inverse of `to_arrays`."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class Crew:
    """Some members of the population and their states, in one process."""

    def __init__(self, config: MetaTrainConfig, indices: Sequence[int]) -> None:
        """Takes the run's settings and the numbers of its members."""
        torch.set_num_threads(1)
        self.config = config
        self.members = {i: Member(config, i) for i in indices}
        self.states: dict[int, MemberState | None] = dict.fromkeys(indices)

    def contribute(self, step: int, meta_params: Arrays) -> dict[int, tuple[Arrays, dict[str, float]]]:
        """Meta-gradients and logs by member."""
        params, contributions = to_tensors(meta_params), {}
        for i, member in self.members.items():
            self.states[i], contribution = member.contribute(step, self.states[i], params)
            contributions[i] = (to_arrays(contribution.grads), contribution.log)
        return contributions

    def evaluate(self, meta_params: Arrays, tasks: Sequence[tuple[str, int]]) -> list[Score]:
        """Scores of fresh agents, given by board and seed."""
        params = to_tensors(meta_params)
        return [population.evaluate(self.config, params, board, seed) for board, seed in tasks]

    def save(self) -> Arrays:
        """The states of all members, as flat names."""
        states = {str(i): state for i, state in self.states.items() if state is not None}
        return to_arrays(flatten({"member": states}))

    def restore(self, saved: Arrays) -> None:
        """The inverse of `save`; entries of other members are left alone."""
        for i, member in self.members.items():
            if state := part(to_tensors(saved), f"member/{i}/"):
                self.states[i] = unflatten(member.fresh(0), state)


class Population(ABC):
    """All members behind one door, spread over a `count` of processes."""

    count: int

    @abstractmethod
    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls a method of every crew with its own arguments at the same time; answers in the crews' order."""

    @abstractmethod
    def close(self) -> None:
        """Ends what the population was spread over."""

    def contribute(self, step: int, meta_params: Params) -> list[Contribution]:
        """Meta-gradients and logs of all members, in their order."""
        arrays = to_arrays(meta_params)
        merged: dict[int, tuple[Arrays, dict[str, float]]] = {}
        for answer in self._call("contribute", [(step, arrays)] * self.count):
            merged |= answer
        return [Contribution(to_tensors(merged[i][0]), merged[i][1]) for i in sorted(merged)]

    def evaluate(self, meta_params: Params, tasks: Sequence[tuple[str, int]]) -> list[Score]:
        """Scores of fresh agents, given by board and seed, in the order of the tasks."""
        arrays, count = to_arrays(meta_params), self.count
        shares = self._call("evaluate", [(arrays, tasks[w::count]) for w in range(count)])
        return [shares[i % count][i // count] for i in range(len(tasks))]

    def save(self) -> Params:
        """The states of all members, by flat names."""
        saved: Arrays = {}
        for answer in self._call("save", [()] * self.count):
            saved |= answer
        return to_tensors(saved)

    def restore(self, saved: Params) -> None:
        """The inverse of `save`."""
        self._call("restore", [(to_arrays(saved),)] * self.count)


_crew: Crew  # of this process, where it is a worker


def _begin(config: MetaTrainConfig, indices: Sequence[int]) -> None:
    """Makes the crew of a worker process, which ends with the process that started it, however that ends."""
    global _crew
    end_with_parent()
    _crew = Crew(config, indices)


def _answer(name: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_crew, name)(*arguments)


class Workers(Population):
    """The population, spread over worker processes; with one worker it is in this process."""

    def __init__(self, config: MetaTrainConfig, count: int) -> None:
        """Spreads the members over up to `count` processes, never more than there are members."""
        if count < 1:
            raise ValueError(f"At least one worker is needed; got {count}.")
        size = len(config.boards)
        self.count = min(count, size)
        self._pools: list[ProcessPoolExecutor] = []  # of one process each, which keeps its members' states
        if self.count == 1:
            self._crew = Crew(config, range(size))
            return
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"
        context = multiprocessing.get_context("spawn")
        for first in range(self.count):
            indices = range(first, size, self.count)
            self._pools.append(ProcessPoolExecutor(1, context, _begin, (config, indices)))

    @property
    def pids(self) -> list[int]:
        """The processes that work."""
        return [pool.submit(os.getpid).result() for pool in self._pools] or [os.getpid()]

    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        if not self._pools:
            return [getattr(self._crew, name)(*arguments[0])]
        try:
            with deaf_to_interrupts():
                asked = [pool.submit(_answer, name, each) for pool, each in zip(self._pools, arguments, strict=True)]
            return [future.result() for future in asked]
        except BrokenProcessPool:
            raise RuntimeError("A worker process of the population has died; start again to continue.") from None

    def close(self) -> None:
        """Ends the processes."""
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)


class Ranks(Population):
    """The population on ranks that were started together; every rank makes one, and all but the first `serve`.

    Rank 0 runs the loop and writes; the others answer its calls. Meta-gradients are merged in the members' order, so
    the outcome is that of a single process, to the last bit, whatever the number of ranks.
    """

    def __init__(self, config: MetaTrainConfig, averaging: Averaging) -> None:
        """Takes this rank's members: every so many-th, from its number on."""
        self._averaging, self.count = averaging, averaging.size
        self._crew = Crew(config, range(averaging.rank, len(config.boards), averaging.size))

    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        self._averaging.gather((name, arguments))
        answers = self._averaging.gather(self._answer(name, arguments))
        for rank, (is_done, answer) in enumerate(answers):
            if not is_done:
                raise RuntimeError(f"Rank {rank} failed: {answer}")
        return [answer for _, answer in answers]

    def _answer(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[bool, Any]:
        try:
            return True, getattr(self._crew, name)(*arguments[self._averaging.rank])
        except RankLost:
            raise
        except Exception as problem:
            return False, f"{type(problem).__name__}: {problem}"

    def serve(self) -> None:
        """Answers the first rank's calls until it has none left."""
        while True:
            call: Any = self._averaging.gather(None)[0]
            if call is None:
                return
            self._averaging.gather(self._answer(*call))

    def close(self) -> None:
        """Lets the others end."""
        if self._averaging.rank == 0:
            with contextlib.suppress(RankLost):
                self._averaging.gather(None)
