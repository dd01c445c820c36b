"""How far jobs are: bars on a terminal, a line now and then elsewhere, both with the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY = 15.0  # seconds


class Bars:
    """A bar for all jobs and one for each that reports steps; a line now and then where stderr is no terminal."""

    def __init__(self, title: str, costs: Mapping[str, float], clock: Callable[[], float] = time.monotonic):
        """Shows nothing yet.

        Args:
            title: of all jobs.
            costs: job -> about how long it takes, in any unit.
            clock: gives seconds.
        """
        self._title, self._clock, self._began, self._last = title, clock, clock(), clock()
        self._costs, self._shares = costs, dict.fromkeys(costs, 0.0)
        self._ended, self._tasks = 0, dict[str, Any]()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:.0f}%"))
        self.bars = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
        self._all = self.bars.add_task(title, total=sum(costs.values()))

    def step(self, name: str, share: float) -> None:
        """A job has done a share of its work."""
        if name not in self._tasks:
            self._tasks[name] = self.bars.add_task(name, total=1.0)
        self.bars.update(self._tasks[name], completed=share)
        self._shares[name] = share
        self._update()

    def end(self, name: str) -> None:
        """A job has ended, whatever share it reported last."""
        self._shares[name], self._ended = 1.0, self._ended + 1
        if name in self._tasks:
            self.bars.update(self._tasks[name], visible=False)
        self._update()

    @property
    def _cost(self) -> float:
        return sum(share * self._costs[name] for name, share in self._shares.items())

    def _update(self) -> None:
        self.bars.update(self._all, completed=self._cost)

    def look(self) -> None:
        """Prints the line, if the last one was a while ago."""
        if not self.bars.console.is_interactive and self._clock() - self._last >= LINE_EVERY:
            self._last = self._clock()
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """How many jobs have ended, and about how long the rest takes."""
        cost, total = self._cost, sum(self._costs.values())
        elapsed = self._clock() - self._began
        left = f"about {_minutes(elapsed * (total - cost) / cost)} left" if cost else "no estimate yet"
        return f"{self._title}: {self._ended} of {len(self._costs)}, {_minutes(elapsed)} so far, {left}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
