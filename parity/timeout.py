"""`--timeout`: how long one call of a candidate's layer may take."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from os import _exit  # an adapter may put another in its place
from typing import Any

from parity.errors import CannotRun
from parity.implementation import Implementation

CALLS = ("run", "vjp", "run_and_vjp")
GRACE = 5.0  # seconds more for a library that no exception reaches; then the whole command ends


class OutOfTime(BaseException):
    """A layer took too long; an adapter that catches every Exception does not catch this one."""


class Limited:
    """An implementation whose layers raise OutOfTime where a call takes too long, and are not called again then."""

    def __init__(self, candidate: Implementation, seconds: float):
        """Wraps a candidate; all else is passed on."""
        self._candidate, self._seconds, self._slow = candidate, seconds, set[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._candidate, name)
        return self._limited(found) if name in CALLS else found

    def _limited(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def limited(layer: str, *arguments: Any) -> Any:
            sentence = f"{layer} took longer than the {self._seconds:g} seconds of --timeout"
            if layer in self._slow:
                raise OutOfTime(f"{sentence} before, and was not called again.")
            try:
                with _alarm(self._seconds, sentence):
                    return call(layer, *arguments)
            except OutOfTime:
                self._slow.add(layer)
                raise

        return limited


def limited(candidate: Implementation, seconds: float | None) -> Implementation:
    """The candidate with a limit, if there is one."""
    if seconds is None:
        return candidate
    if not 0.0 < seconds < threading.TIMEOUT_MAX:
        raise CannotRun(f"--timeout is {seconds:g}; give a number of seconds above 0.")
    return Limited(candidate, seconds)


@contextmanager
def _alarm(seconds: float, sentence: str) -> Iterator[None]:
    """OutOfTime in the block after a time; the end of this process where that is not heard."""

    def ring(*_: Any) -> None:
        raise OutOfTime(f"{sentence}.")

    def end() -> None:
        print(f"parity: {sentence}, inside a library that cannot be interrupted.", file=sys.stderr, flush=True)
        _exit(2)

    with ExitStack() as stack:
        last = threading.Timer(seconds + GRACE, end)
        last.daemon = True
        stack.callback(last.cancel)
        if threading.current_thread() is threading.main_thread():
            stack.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, ring))
            stack.callback(signal.setitimer, signal.ITIMER_REAL, 0.0)
            signal.setitimer(signal.ITIMER_REAL, seconds)
        last.start()
        yield
