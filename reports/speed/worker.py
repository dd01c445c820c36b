"""A process that runs one implementation on request, and sleeps in between.

Each implementation has a process of its own so that the libraries of one neither share threads with the other's nor
count in its memory.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from parity.errors import CannotRun
from reports.processes import OwnProcess
from reports.speed.workload import Sample, Work, cpu_seconds, peak_megabytes

SPINS = "3000"  # as port.fast.omp has it, which is not imported here: it would bring torch into the original's process
SIDES = {
    "port": "reports.speed.port",
    "port_compiled": "reports.speed.port:Compiled",
    "original": "reference.original.speed",
    "disco_torch": "reports.speed.disco_torch",
}


class Bench:
    """Runs the tasks of a side, in a worker's process or in this one.

    A side is a module or an object with a function for each task that it has. The function takes a `Work` and returns a
    callable that does the task once; it is done when the call returns. The callable may have `pids`, other processes
    that work for it, and `close`, which ends them.
    """

    def __init__(self, side: Any, clock: Callable[[], float] = time.perf_counter):
        """Takes an implementation."""
        self.side, self.clock = side, clock
        self.jobs: dict[str, Any] = {}

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method, as `Worker.ask` does from another process."""
        return getattr(self, method)(*arguments)

    def prepare(self, key: str, task: str, work: Work) -> float | None:
        """Makes a task ready and does it once, which compiles; seconds, or None where there is no such task."""
        if not hasattr(self.side, task):
            return None
        started = self.clock()
        self.jobs[key] = getattr(self.side, task)(work)
        self.jobs[key]()
        return self.clock() - started

    def measure(self, key: str) -> Sample:
        """Does it once."""
        job = self.jobs[key]
        pids = getattr(job, "pids", ())
        cpu, started = cpu_seconds(pids), self.clock()
        job()
        return Sample(self.clock() - started, cpu_seconds(pids) - cpu)

    def memory(self) -> float:
        """Megabytes at the most so far, of the process that took most."""
        pids = [pid for job in self.jobs.values() for pid in getattr(job, "pids", ())]
        return max(peak_megabytes(pid) for pid in (os.getpid(), *pids))

    def side_function(self, name: str, *arguments: Any) -> Any:
        """Calls what only this implementation has."""
        return getattr(self.side, name)(*arguments)

    def close(self) -> None:
        """Puts every task away."""
        for job in self.jobs.values():
            getattr(job, "close", int)()
        self.jobs.clear()


class Worker:
    """The near end of such a process, which begins with the first call."""

    def __init__(self, name: str, threads: int):
        """Takes an implementation, by its name or as `module:attribute`."""
        self._side, self._process = SIDES.get(name, name), OwnProcess(name, _environment(threads))

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of its bench, and waits."""
        return self._process.call(_ask, self._side, method, *arguments)

    def close(self) -> None:
        """Lets it end."""
        with contextlib.suppress(CannotRun):
            self.ask("close")
        self._process.close()


@lru_cache(maxsize=1)
def _bench(side: str) -> Bench:
    module, _, attribute = side.partition(":")
    loaded = importlib.import_module(module)
    return Bench(getattr(loaded, attribute) if attribute else loaded)


def _ask(side: str, method: str, *arguments: Any) -> Any:
    return _bench(side).ask(method, *arguments)


def _environment(threads: int) -> dict[str, str]:
    """Threads for torch, which spin as `port.fast.omp` has it, and for XLA, which decides on all else by itself."""
    count = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")}
    alone = " --xla_cpu_multi_thread_eigen=false" if threads == 1 else ""
    xla = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + alone, "JAX_PLATFORMS": "cpu"}
    return {**count, "GOMP_SPINCOUNT": SPINS, **xla}
