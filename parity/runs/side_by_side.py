"""Long work in several processes, with a bar for each piece, and each result as soon as it is there."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from queue import Empty
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
LOOK_EVERY = 0.5  # seconds
SAY_EVERY = 15.0  # seconds
Tell = Callable[[int], None]


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Piece:
    """A piece of work: its name, how many steps it takes, and what its function is given besides `tell`."""

    name: str
    steps: int
    arguments: tuple[Any, ...]


def _one_thread_each() -> None:
    """For a fresh process; what the caller's main module loads is loaded by now, and does not read these any more."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _run(function: Callable[..., T], piece: Piece, told: Any) -> T:
    return function(*piece.arguments, tell=lambda step: told.put((piece.name, step)))


def bars() -> Progress:
    """Name, bar, steps done, time used and time left, on stderr."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))


class Lines:
    """What bars show, as a line now and then, where stderr is no terminal and shows none."""

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic):
        """Takes the bars."""
        self._progress, self._clock, self._began = progress, clock, clock()
        self._last = self._began

    def say(self) -> None:
        """Prints the line, if the last one was a while ago."""
        if self._progress.console.is_interactive or self._clock() - self._last < SAY_EVERY:
            return
        self._last = self._clock()
        running = [task for task in self._progress.tasks if 0 < task.completed < (task.total or 0)]
        told = [f"{task.description}: {task.completed:.0f} of {task.total:.0f}" for task in running]
        ended = sum(task.finished for task in self._progress.tasks)
        told.append(f"{ended} of {len(self._progress.tasks)} ended, {self._last - self._began:.0f} s so far")
        print("; ".join(told), file=sys.stderr, flush=True)


def run_all(function: Callable[..., T], pieces: Sequence[Piece], processes: int) -> Iterator[T]:
    """Results in the order in which they come.

    Args:
        function: of a module, called as `function(*piece.arguments, tell=...)` in a fresh process with one thread;
            `tell(step)` moves the piece's bar.
        pieces: the work.
        processes: how many at a time; with 0 all is done in this process, which is for tests.
    """
    if not processes:
        yield from (function(*piece.arguments, tell=lambda step: None) for piece in pieces)
        return
    if not pieces:
        return
    context = multiprocessing.get_context("spawn")
    workers = ProcessPoolExecutor(min(processes, len(pieces)), mp_context=context, initializer=_one_thread_each)
    with context.Manager() as manager, workers as pool, bars() as progress:
        told: Any = manager.Queue()
        shown = {piece.name: progress.add_task(piece.name, total=piece.steps) for piece in pieces}
        of = {pool.submit(_run, function, piece, told): piece for piece in pieces}
        waiting, lines = set(of), Lines(progress)
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
                _show(told, shown, progress)
                for task in done:  # which may have taken fewer steps
                    progress.update(shown[of[task].name], total=of[task].steps, completed=of[task].steps)
                lines.say()
                for task in done:
                    yield task.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _show(told: Any, shown: dict[str, Any], progress: Progress) -> None:
    try:
        while True:
            name, step = told.get_nowait()
            progress.update(shown[name], completed=step)
    except Empty:
        return
