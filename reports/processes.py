"""A process for what must share neither imports, threads nor memory with anything else."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

from parity.command_line import SENTENCES, deaf_to_interrupts
from parity.errors import CannotRun, in_words


class OwnProcess:
    """A fresh process in which functions are called, one at a time; in between it sleeps.

    It has imported this module and no numeric library, so that the environment is in place before these are loaded.
    """

    def __init__(self, name: str, environment: Mapping[str, str], path: Sequence[str] = ()):
        """Takes the name for messages, variables of the environment, and folders to import from first."""
        self.name = name
        settings = (dict(environment), list(path))
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin, initargs=settings)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function of a module there, and waits; CannotRun says what went wrong."""
        try:
            with deaf_to_interrupts():  # the first call starts the process
                answer = self._pool.submit(_answer, function, arguments)
            return answer.result()
        except BrokenProcessPool:
            raise CannotRun(f"{self.name}: its process has ended.") from None
        except CannotRun as error:
            raise CannotRun(f"{self.name}: {error}") from None

    def close(self) -> None:
        """Ends it."""
        self._pool.shutdown()


def _begin(environment: Mapping[str, str], path: Sequence[str]) -> None:
    """What libraries print goes to stderr: stdout may carry JSON. The process ends when its parent is killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    sys.path[:0] = path
    os.dup2(2, 1)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _answer(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    try:
        return function(*arguments)
    except SENTENCES as sentence:
        raise CannotRun(str(sentence)) from None
    except (Exception, SystemExit) as error:  # not every exception can be sent to another process
        raise CannotRun(in_words(error)) from None
