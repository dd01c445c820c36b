"""The population spread over processes, one thread each; what comes out does not depend on how many there are."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch

from port.meta_train import population
from port.meta_train.config import MetaTrainConfig
from port.meta_train.population import Contribution, Member, MemberState, Score
from port.trees import flatten, unflatten
from port.types import Params

Arrays = dict[str, np.ndarray]


def to_arrays(params: Mapping[str, torch.Tensor]) -> Arrays:
    """As NumPy arrays, which pass through a pipe as bytes."""
    return {name: p.detach().numpy() for name, p in params.items()}


def to_tensors(arrays: Mapping[str, np.ndarray]) -> Params:
    """The inverse of `to_arrays`."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class Crew:
    """Some members of the population and their states, in one process."""

    def __init__(self, config: MetaTrainConfig, indices: Sequence[int]) -> None:
        """Takes the run's settings and the numbers of its members."""
        self.config = config
        self.members = {i: Member(config, i) for i in indices}
        self.states: dict[int, MemberState | None] = dict.fromkeys(indices)

    def contribute(self, step: int, meta_params: Arrays) -> dict[int, tuple[Arrays, dict[str, float]]]:
        """Meta-gradients and logs by member."""
        params, given = to_tensors(meta_params), {}
        for i, member in self.members.items():
            self.states[i], contribution = member.contribute(step, self.states[i], params)
            given[i] = (to_arrays(contribution.grads), contribution.log)
        return given

    def evaluate(self, meta_params: Arrays, tasks: Sequence[tuple[str, int]]) -> list[Score]:
        """Scores of fresh agents, given by board and seed."""
        steps, params = self.config.evaluate_steps, to_tensors(meta_params)
        return [population.evaluate(self.config, params, board, seed, steps) for board, seed in tasks]

    def save(self) -> Arrays:
        """The states of all members, as flat names."""
        saved: Arrays = {}
        for i, state in self.states.items():
            if state is not None:
                saved |= {f"member/{i}/{name}": x.detach().numpy() for name, x in flatten(state).items()}
        return saved

    def restore(self, saved: Arrays) -> None:
        """The inverse of `save`; entries of other members are left alone."""
        for i, member in self.members.items():
            prefix = f"member/{i}/"
            own = {name.removeprefix(prefix): x for name, x in saved.items() if name.startswith(prefix)}
            if own:
                self.states[i] = unflatten(member.fresh(0), to_tensors(own))


def _serve(pipe: Connection, config: MetaTrainConfig, indices: Sequence[int]) -> None:
    """Answers calls until the other end is gone."""
    torch.set_num_threads(1)
    crew = Crew(config, indices)
    while True:
        try:
            name, arguments = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer = (True, getattr(crew, name)(*arguments))
        except KeyboardInterrupt:
            return
        except Exception as problem:
            answer = (False, f"{type(problem).__name__}: {problem}")
        try:
            pipe.send(answer)
        except OSError:  # the run was killed meanwhile
            return


class Workers:
    """The population behind one door; with one worker it lives in this process."""

    def __init__(self, config: MetaTrainConfig, count: int) -> None:
        """Starts up to `count` processes, never more than there are members."""
        if count < 1:
            raise ValueError(f"At least one worker is needed; got {count}.")
        size = len(config.boards)
        count = max(1, min(count, size))
        shares = [list(range(w, size, count)) for w in range(count)]
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._crew: Crew | None = None
        torch.set_num_threads(1)
        if count == 1:
            self._crew = Crew(config, shares[0])
            return
        os.environ["OMP_NUM_THREADS"] = "1"
        context = multiprocessing.get_context("spawn")
        for share in shares:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, config, share), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    @property
    def count(self) -> int:
        """Number of processes that work."""
        return max(1, len(self._pipes))

    @property
    def pids(self) -> list[int]:
        """The processes that work."""
        return [process.pid or 0 for process in self._processes] or [os.getpid()]

    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls every worker with its own arguments at the same time; answers in the workers' order."""
        if self._crew is not None:
            return [getattr(self._crew, name)(*arguments[0])]
        for pipe, own in zip(self._pipes, arguments, strict=True):
            pipe.send((name, own))
        answers = []
        for pipe in self._pipes:
            try:
                is_done, answer = pipe.recv()
            except EOFError:
                raise RuntimeError("A worker process of the population has died; start again to continue.") from None
            if not is_done:
                raise RuntimeError(f"A worker process failed: {answer}")
            answers.append(answer)
        return answers

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

    def save(self) -> Arrays:
        """The states of all members."""
        saved: Arrays = {}
        for answer in self._call("save", [()] * self.count):
            saved |= answer
        return saved

    def restore(self, saved: Arrays) -> None:
        """The inverse of `save`."""
        self._call("restore", [(saved,)] * self.count)

    def close(self) -> None:
        """Ends the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=10)
