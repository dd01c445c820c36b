"""Work that threads share in large parts, each of them doing its part alone.

Torch by itself hands every operation on more than some thousand numbers to all of its threads, and waits for all of
them at its end. Where these sleep, or somebody else works on their processors, each such wait takes up to some
milliseconds, and a learner step has hundreds. Here threads are given whole stretches of work (half of a network's rows,
a loss over some thousand rows), so that they wait for each other a dozen times; and where a stretch goes over its
numbers again and again, it does so in chunks that fit into a processor's cache.

Numbers depend on how many threads torch has, as they do when torch shares out the work, and on nothing else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TypeVar

import torch
from torch import Tensor

CHUNK = 2**17  # numbers that a chunk holds; some arrays of that size fit into a processor's cache
ROWS = 64  # that a part of a network's work has at least

Item = TypeVar("Item")
Key = TypeVar("Key")
Result = TypeVar("Result")

_local = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch works in the calling thread alone until the end of the block, and as before after it.

    A thread that uses torch for the first time meanwhile has one thread too, and keeps to it: it is slower, not wrong.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def worker_threads() -> Iterator[None]:
    """In the block, torch's threads work in parallel where they are asked to, and nowhere else.

    They know nothing of the caller's modes of torch (autocast, transforms of torch.func, counters of operations); where
    there is one, the caller works alone.
    """
    before, _local.size = size(), 1 if _has_modes() else torch.get_num_threads()
    try:
        with one_thread():
            yield
    finally:
        _local.size = before


def size() -> int:
    """How many threads work in parallel here: 1 outside `worker_threads`."""
    return getattr(_local, "size", 1)


def _has_modes() -> bool:
    if torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled():
        return True
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return is_transformed or torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack() > 0


def in_parallel(works: Mapping[Key, Callable[[], Result]]) -> dict[Key, Result]:
    """The result of each piece of work; within `worker_threads` the threads share them out, and each works alone.

    No work may wait for another, or write where another one reads or writes.
    """
    keys, count = list(works), min(size(), len(works))
    if count <= 1:
        return {key: work() for key, work in works.items()}
    keeps_graph = torch.is_grad_enabled()

    def share(first: int) -> dict[Key, Result]:
        with torch.set_grad_enabled(keeps_graph):
            return {key: works[key]() for key in keys[first::count]}

    others = [_begun(partial(share, first)) for first in range(1, count)]
    before, _local.size = _local.size, 1  # the caller does its own share alone
    try:
        done = share(0)
    finally:
        _local.size = before
        wait(others)
    for other in others:
        done |= other.result()
    return {key: done[key] for key in keys}


def meanwhile(work: Callable[[], Result]) -> Callable[[], Result]:
    """Has another thread begin with the work, without a graph; calling what comes back waits for it."""
    if size() <= 1:
        return work
    return _begun(torch.no_grad()(work)).result


def for_each(items: Sequence[Item], work: Callable[[Item], None]) -> None:
    """Does the work for every item in parallel, without a graph."""
    with torch.no_grad():
        in_parallel({index: partial(work, item) for index, item in enumerate(items)})


def chunks(x: Tensor) -> list[slice]:
    """Slices of the rows of [N, P], of a chunk each; on an accelerator all rows at once."""
    step = max(1, CHUNK // max(1, x.shape[-1])) if x.device.type == "cpu" else max(1, len(x))
    return [slice(start, start + step) for start in range(0, len(x), step)]


def parts(rows: Tensor) -> list[slice]:
    """Slices of [N, ...], one for each thread unless they get too short; on an accelerator one of all."""
    count = max(1, min(size(), len(rows) // ROWS)) if rows.device.type == "cpu" else 1
    bounds = [len(rows) * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in zip(bounds, bounds[1:], strict=False)]


def _begun(work: Callable[[], Result]) -> Future[Result]:
    """Work that another thread does; or, where Python is about to end and starts no more work, that is done already."""
    try:
        return _helpers(os.getpid()).submit(work)
    except RuntimeError:
        done: Future[Result] = Future()
        done.set_result(work())
        return done


@lru_cache(maxsize=1)
def _helpers(process: int) -> ThreadPoolExecutor:
    """The threads beside the caller's; a forked process has none of its parent's, and gets its own.

    They are first used within `worker_threads`, and so have one thread each.
    """
    return ThreadPoolExecutor(os.cpu_count(), "port-chunks")
