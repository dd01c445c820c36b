"""How far jobs are: bars on a terminal, a line now and then elsewhere, both with the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY = 15.0  # seconds


class Bars(Progress):
    """A bar for all jobs and one for each that reports steps; a line now and then where stderr is no terminal."""

    def __init__(self, title: str, costs: Mapping[str, float], clock: Callable[[], float] = time.monotonic):
        """Takes about how long each job takes, in any unit, and a clock in seconds; shows nothing yet."""
        share = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:.0f}%"))
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        super().__init__(*share, *times, console=Console(stderr=True), get_time=clock)
        self._costs, self._num_ended, self._last_line = costs, 0, clock()
        self._all = self.add_task(title, total=sum(costs.values()))
        self._bar_of = {name: self.add_task(name, total=1.0, visible=False) for name in costs}

    def step(self, name: str, share: float) -> None:
        """A job has done a share of its work."""
        task = self._bar_of[name]
        self.advance(self._all, self._costs[name] * (share - self._tasks[task].completed))
        self.update(task, completed=share, visible=True)

    def end(self, name: str) -> None:
        """A job has ended, whatever share it reported last."""
        self._num_ended += 1
        self.step(name, 1.0)
        self.update(self._bar_of[name], visible=False)

    def look(self) -> None:
        """Prints the line, if the last one was a while ago."""
        if not self.console.is_interactive and self.get_time() - self._last_line >= LINE_EVERY:
            self._last_line = self.get_time()
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """How many jobs have ended, and about how long the rest takes."""
        whole = self._tasks[self._all]
        elapsed, done = whole.elapsed or 0.0, whole.completed
        left = f"about {_minutes(elapsed * (whole.remaining or 0.0) / done)} left" if done else "no estimate yet"
        jobs = f"{self._num_ended} of {len(self._costs)}"
        return f"{whole.description}: {jobs}, {_minutes(elapsed)} so far, {left}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
