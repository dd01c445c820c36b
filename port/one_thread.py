"""Small pieces of work for one thread: waking others up for them takes longer than the work.

Torch hands every operation on more than some thousand numbers to all of its threads. Where these sleep or somebody else
works on their processors, waking them takes up to a tenth of a millisecond each time, and what is done piece by piece
in a processor's cache takes about as long by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

PIECE = 2**17  # numbers that a piece holds; some arrays of that size fit into a processor's cache


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


def pieces(x: Tensor) -> Iterator[slice]:
    """Slices of the rows of [N, P], of a piece each; on an accelerator all rows at once."""
    step = max(1, PIECE // max(1, x.shape[-1])) if x.device.type == "cpu" else max(1, len(x))
    return (slice(start, start + step) for start in range(0, len(x), step))
