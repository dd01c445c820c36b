"""Lives spread over processes and machines that share a folder: each rank lives its share, and the first one waits.

Every life is a file as soon as it has ended, so nothing has to be sent. A rank shows that it is at work by a file that
it touches every few seconds; when that stays as it is, the first rank does not wait any longer.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from parity.errors import CannotRun
from parity.runs.life_runner import Life, Work

BEAT = 2.0  # seconds between two signs of a rank
SILENCE = 60.0  # seconds without one after which it counts as lost
AGAIN = "The lives that have ended are kept; the same command goes on with the others."


class Place(NamedTuple):
    """Which of how many processes this is, and how many of them are on this machine."""

    rank: int
    size: int
    beside: int


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """As torchrun, or whoever sets RANK and WORLD_SIZE, says; else the only one."""
    rank, size = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
    if not 0 <= rank < size:
        raise CannotRun(f"RANK is {rank} and WORLD_SIZE is {size}; ranks count from 0.")
    return Place(rank, size, int(environment.get("LOCAL_WORLD_SIZE", "1")))


def share(lives: Sequence[Life], here: Place) -> list[Life]:
    """The lives of this rank: the longest are dealt out first."""
    return sorted(lives, key=lambda life: -life.cost)[here.rank :: here.size]


def _sign(work: Work, rank: int) -> Path:
    return work.folder / f"rank{rank}.alive"


@contextmanager
def heard(work: Work, here: Place) -> Iterator[None]:
    """Inside, this rank shows that it is at work; SIGTERM, by which torchrun ends the others, becomes a sentence."""
    work.folder.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT):
            _sign(work, here.rank).write_text(str(time.time()), encoding="utf-8")

    def stop(*_: object) -> None:
        reason = "another process of this run has ended, or the run was stopped"
        raise CannotRun(f"Rank {here.rank} of {here.size} stops: {reason} (SIGTERM). {AGAIN}")

    _sign(work, here.rank).write_text(str(time.time()), encoding="utf-8")
    threading.Thread(target=beat, daemon=True).start()
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        ended.set()
        _sign(work, here.rank).unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, before)


def wait(lives: Sequence[Life], work: Work, here: Place, clock: Callable[[], float] = time.monotonic) -> None:
    """Waits until all lives have ended; CannotRun where a rank that has not ended its share falls silent."""
    waiting = {rank: share(lives, here._replace(rank=rank)) for rank in range(here.size)}
    last: dict[int, tuple[str, float]] = {}
    while True:
        waiting = {rank: [x for x in some if work.read(x) is None] for rank, some in waiting.items()}
        waiting = {rank: some for rank, some in waiting.items() if some}
        if not waiting:
            return
        for rank, some in waiting.items():
            path = _sign(work, rank)
            seen = path.read_text(encoding="utf-8") if path.is_file() else ""
            if last.get(rank, ("", 0.0))[0] != seen or rank not in last:
                last[rank] = seen, clock()
            if clock() - last[rank][1] > SILENCE:
                raise CannotRun(
                    f"Rank {rank} of {here.size} has not been heard of for {SILENCE:.0f} s, and {some[0].key} has not "
                    f"ended. {AGAIN}"
                )
        time.sleep(BEAT / 4)
