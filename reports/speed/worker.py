"""A process that runs one implementation on request, and sleeps in between.

`python -m reports.speed.worker reports.speed.port:Port 2`: calls come in by stdin and are answered on stdout, pickled.
Each implementation has a process of its own so that the libraries of one neither share threads with the other's nor
count in its memory.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from parity.errors import CannotRun
from reports.speed.workload import Job, Sample, Work, cpu_seconds, peak_megabytes

SPINS = "3000"  # as port.fast.omp has it, which is not imported here: it would bring torch into the original's process
SIDES = {
    "port": "reports.speed.port:Port",
    "port_compiled": "reports.speed.port:Compiled",
    "original": "reference.original.speed:Original",
    "disco_torch": "reports.speed.disco_torch:DiscoTorch",
}


class Bench:
    """What a worker can be asked; it can be asked in this process, too."""

    def __init__(self, side: Any, clock: Callable[[], float] = time.perf_counter):
        """Takes an implementation."""
        self.side, self.clock = side, clock
        self.jobs: dict[str, Job] = {}

    def prepare(self, key: str, task: str, work: Work) -> float | None:
        """Makes a task ready and does it once, which compiles; seconds, or None where there is no such task."""
        if task not in self.side.tasks:
            return None
        started = self.clock()
        self.jobs[key] = self.side.job(task, work)
        self.jobs[key].run()
        return self.clock() - started

    def measure(self, key: str) -> Sample:
        """Does it once."""
        job = self.jobs[key]
        cpu, started = cpu_seconds(job.pids), self.clock()
        job.run()
        return Sample(self.clock() - started, cpu_seconds(job.pids) - cpu)

    def drop(self, key: str) -> None:
        """Puts a task away."""
        self.jobs.pop(key).close()

    def memory(self) -> float:
        """Megabytes at the most so far."""
        return peak_megabytes()

    def tell(self, name: str, *arguments: Any) -> Any:
        """What only this implementation has to tell."""
        return getattr(self.side, name)(*arguments) if hasattr(self.side, name) else None

    def close(self) -> None:
        """Puts everything away."""
        for key in list(self.jobs):
            self.drop(key)


def load_side(name: str, threads: int) -> Any:
    """An implementation by its name, or as `module:class`."""
    module, _, attribute = SIDES.get(name, name).partition(":")
    return getattr(importlib.import_module(module), attribute)(threads)


def _environment(threads: int) -> dict[str, str]:
    """Threads for torch, which spin as `port.fast.omp` has it, and for XLA, which decides on all else by itself."""
    count = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")}
    count["GOMP_SPINCOUNT"] = SPINS
    path = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    alone = " --xla_cpu_multi_thread_eigen=false" if threads == 1 else ""
    xla = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + alone, "JAX_PLATFORMS": "cpu"}
    return {**os.environ, **count, **xla, "PYTHONPATH": os.pathsep.join(path)}


class Worker:
    """The near end of such a process."""

    def __init__(self, name: str, threads: int):
        """Starts it."""
        self.name = name
        command = [sys.executable, "-m", "reports.speed.worker", SIDES.get(name, name), str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(threads)
        )
        try:
            self._answer()  # it has loaded
        except CannotRun:
            self.close()
            raise

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of its bench, and waits."""
        try:
            pickle.dump((method, arguments), self._process.stdin)  # type: ignore[arg-type]
            self._process.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            raise CannotRun(f"{self.name}: its process has ended.") from None
        return self._answer()

    def _answer(self) -> Any:
        try:
            is_done, answer = pickle.load(self._process.stdout)  # type: ignore[arg-type]
        except EOFError:
            code = self._process.wait()
            raise CannotRun(f"{self.name}: its process ended with exit code {code}.") from None
        if not is_done:
            raise CannotRun(f"{self.name}: {answer}")
        return answer

    def close(self) -> None:
        """Lets it end."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(calls: IO[bytes], answers: IO[bytes], make: Callable[[], Any]) -> None:
    """Answers calls until there are no more."""

    def answer(work: Callable[[], Any]) -> None:
        try:
            found = (True, work())
        except Exception as error:  # told in a sentence at the other end
            found = (False, f"{type(error).__name__}: {error}")
        pickle.dump(found, answers)
        answers.flush()

    bench: Any = None

    def load() -> None:
        nonlocal bench
        bench = Bench(make())

    answer(load)
    while bench is not None:
        try:
            method, arguments = pickle.load(calls)
        except EOFError:
            break
        answer(partial(getattr(bench, method), *arguments))
    if bench is not None:
        bench.close()


def main() -> None:
    """What such a process does; whatever a library prints goes to stderr."""
    name, threads = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.stdin.buffer, answers, lambda: load_side(name, threads))


if __name__ == "__main__":
    main()
