"""Work in small pieces: each fits into a processor's cache and is done by one thread; threads share the pieces.

Torch by itself hands every operation on more than some thousand numbers to all of its threads. Where these sleep, or
somebody else works on their processors, waking them takes up to a tenth of a millisecond each time, which is as long as
such an operation takes. Here threads are woken once for all operations on all pieces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

PIECE = 2**17  # numbers that a piece holds; some arrays of that size fit into a processor's cache

Item = TypeVar("Item")


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch works in the calling thread alone until the end of the block, and as before after it.

    A thread that uses torch for the first time while another one is in such a block has one thread from then on.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pieces(x: Tensor) -> list[slice]:
    """Slices of the rows of [N, P], of a piece each; on an accelerator all rows at once."""
    step = max(1, PIECE // max(1, x.shape[-1])) if x.device.type == "cpu" else max(1, len(x))
    return [slice(start, start + step) for start in range(0, len(x), step)]


def for_each(items: Sequence[Item], work: Callable[[Item], None]) -> None:
    """Does the work for every item, in as many threads as torch has, and without a graph.

    The work may only write where no other item's does. It is done in threads that know nothing of the caller's modes of
    torch (autocast, transforms of torch.func): it is for plain arithmetic on plain tensors.
    """
    count = min(torch.get_num_threads(), len(items))
    with one_thread():
        others = [_helpers(os.getpid()).submit(_in_order, items[i::count], work) for i in range(1, count)]
        try:
            _in_order(items[:: max(count, 1)], work)
        finally:
            wait(others)
    for other in others:
        other.result()


def _in_order(items: Sequence[Item], work: Callable[[Item], None]) -> None:
    with torch.no_grad():
        for item in items:
            work(item)


@lru_cache(maxsize=1)
def _helpers(process: int) -> ThreadPoolExecutor:
    """The threads beside the caller's; a forked process has none of its parent's, and gets its own."""
    return ThreadPoolExecutor(os.cpu_count(), "port-pieces", initializer=lambda: torch.set_num_threads(1))
