"""What states that show the same can share: a network without memory is asked once for each different observation.

In a batch from a small world most observations come again and again (8x8 Catch has 512 different ones, a batch of the
evaluation 1,856 states). Where enough of them do, networks run over the different ones only, and what they say is given
to every state that shows the same. Numbers are those of a network that is asked for every state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

WORTH_IT = 2 / 3  # share of different rows up to which sharing costs less than it saves
SOME = 64  # columns that are looked at first
MOST = 2**22  # numbers that are looked at; beyond, looking costs too much
_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


class UniqueRows(NamedTuple):
    """Which of N rows are the same, bit for bit: U unique ones."""

    first: Tensor  # [U], the position of each unique row
    of: Tensor  # [N], the unique row of each row


def find_unique(rows: Tensor) -> UniqueRows | None:
    """The unique rows of [N, F], or None where too few are the same to be worth it.

    Some columns are looked at first: where these differ, so do the rows.
    """
    N, F = rows.shape
    if rows.dtype not in _BITS or rows.requires_grad or rows.numel() > MOST:
        return None
    bits = rows.detach().contiguous().view(_BITS[rows.dtype])
    stride = -(-F // SOME)
    if stride > 1 and len(torch.unique(_numbers(bits[:, ::stride]))) > WORTH_IT * N:
        return None
    numbers, of = torch.unique(_numbers(bits), return_inverse=True)
    if len(numbers) > WORTH_IT * N:
        return None
    first = torch.empty_like(numbers).scatter_(0, of, torch.arange(N, device=rows.device))
    is_same = torch.equal(bits, bits.index_select(0, first).index_select(0, of))  # two rows may have one number
    return UniqueRows(first, of) if is_same else None


def _numbers(bits: Tensor) -> Tensor:
    """A number of each row of bits [N, F] that is the same for the same rows: [N]."""
    return (bits.to(torch.int64) * _factors(bits.shape[1], str(bits.device))).sum(1)


@lru_cache(maxsize=16)
def _factors(size: int, device: str) -> Tensor:
    """Odd numbers with which a row's bits are added up, modulo 2 ** 64, to one number."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(-(2**62), 2**62, (size,), generator=generator) * 2 + 1).to(device)


class Shared(NamedTuple):
    """A tensor [T+1, B, ...], or [T, B, ...], as rows that states share, and which of them each state has."""

    rows: Tensor  # [1, U, ...], so that what treats each state on its own can be applied to it
    of: Tensor  # [(T+1) B], the row of each state
    lead: tuple[int, int]  # T+1, B

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return (*self.lead, *self.rows.shape[2:])

    def map(self, function: Callable[[Tensor], Tensor]) -> Shared:
        """The same function of every state, which must keep the two leading axes."""
        return self._replace(rows=function(self.rows))

    def spread(self) -> Tensor:
        """The whole tensor, [T+1, B, ...]."""
        return self.rows[0].index_select(0, self.of).unflatten(0, self.lead)


class SharedOutputs(Mapping[str, Tensor]):
    """A network's outputs by head, [T+1, B, ...] each; a shared head is spread over all states when it is read."""

    def __init__(self, heads: Mapping[str, Tensor | Shared]) -> None:
        """Takes each head, whole or as states share it."""
        self.heads = dict(heads)
        self._spread: dict[str, Tensor] = {}

    def __getitem__(self, head: str) -> Tensor:
        if head not in self._spread:
            self._spread[head] = spread(self.heads[head])
        return self._spread[head]

    def __contains__(self, head: object) -> bool:
        return head in self.heads  # a mapping's own would spread the head to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)


def over_time(rows: Tensor, of: Tensor, lead: tuple[int, int]) -> Shared:
    """Rows [U, ...] that states [T+1, B] share, each having one of them [(T+1) B]."""
    return Shared(rows.unsqueeze(0), of, lead)


def find(outputs: Mapping[str, Tensor], head: str) -> Tensor | Shared:
    """A head, whole or as states share it."""
    return outputs.heads[head] if isinstance(outputs, SharedOutputs) else outputs[head]


def spread(x: Tensor | Shared) -> Tensor:
    """The whole tensor."""
    return x.spread() if isinstance(x, Shared) else x


def mapped(x: Tensor | Shared, function: Callable[[Tensor], Tensor]) -> Tensor | Shared:
    """The same function of every state of [T+1, B, ...]; it must keep the two leading axes."""
    return x.map(function) if isinstance(x, Shared) else function(x)
