"""Processes that a command starts: Ctrl-C and SIGTERM reach them through the command alone, and they end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any


def end_with_parent() -> None:
    """Called in a new process: it ends with the one that started it, however that ends."""
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started in the block take no SIGINT, which a terminal sends to all; so they stay silent."""
    resource_tracker.ensure_running()  # which would let SIGINT through again, if it were started in the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the processes that were started, and raise KeyboardInterrupt in the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: Any) -> None:
    for child in multiprocessing.active_children():
        child.kill()
    raise KeyboardInterrupt
