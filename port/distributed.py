"""More than one process: averages over ranks, where the original averages over devices.

Each rank has a share of the experience and the same parameters. An `Averaging` is given to the agent, the value
function, the meta-network and the moving averages; it is the counterpart of the original's `axis_name`, and without one
(None) there is one process, and nothing is averaged.

The average can be differentiated any number of times: each rank's cotangents are averaged in turn, as the transpose of
`pmean` does. So whoever differentiates through an average must do so on every rank. Autograd goes back through its
nodes in the reverse of the order in which they were made, so that ranks meet again in the same order, even where the
graphs between their averages are not the same.

`Processes` uses torch.distributed (gloo on processors, NCCL on GPUs); `in_threads` runs ranks as threads of this
process, for tests and for looking on (on processors only: the backward passes of GPUs share their threads).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from port.types import Params

Answer = TypeVar("Answer")
PATIENCE = timedelta(minutes=30)  # how long a rank may work between two averages before it counts as lost


class RankLost(RuntimeError):
    """Another rank has ended, or no longer answers; the message says what to do."""


class Averaging(ABC):
    """This rank's way to the others.

    Attributes:
        rank: of this process, from 0.
        size: how many ranks there are.
    """

    rank: int
    size: int

    @abstractmethod
    def total(self, flat: Tensor) -> Tensor:
        """The sum over ranks of a tensor [N], without a graph; the same bits on every rank."""

    @abstractmethod
    def gather(self, item: Answer) -> list[Answer]:
        """What each rank gives, in their order; the same on every rank."""

    def mean(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The mean over ranks of each tensor [...], in one exchange for all of a dtype; it can be differentiated.

        Reference: disco_rl/agent.py::Agent.learner_step
        """
        found: dict[int, Tensor] = {}
        for dtype in dict.fromkeys(x.dtype for x in tensors):
            chosen = {i: x for i, x in enumerate(tensors) if x.dtype == dtype}
            flat = torch.cat([x.reshape(-1) for x in chosen.values()])
            parts = _Mean.apply(flat, self).split([x.numel() for x in chosen.values()])
            found |= {i: part.view(x.shape) for (i, x), part in zip(chosen.items(), parts, strict=True)}
        return tuple(found[i] for i in range(len(tensors)))

    def check_same(self, item: Any, what: str) -> None:
        """Raises ValueError where the ranks do not hold the same, which must be so for what they average to be right.

        Args:
            item: that of this rank, small; a digest of what is large.
            what: its name.
        """
        found = self.gather(item)
        odd = [rank for rank, other in enumerate(found) if other != found[0]]
        if odd:
            difference = _difference(found[odd[0]], found[0])
            raise ValueError(f"{what} of rank {odd[0]} is not that of rank 0: {difference}. Start all ranks alike.")


def _difference(one: Any, other: Any) -> str:
    """Where two values differ; of records, the first entry that does."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return f"{one} against {other}"
    name = next(name for name in {**one, **other} if one.get(name) != other.get(name))
    return f"{name} {_difference(one.get(name), other.get(name))}"


class _Mean(torch.autograd.Function):
    """The mean over ranks of a tensor [N]; its transpose is the mean over ranks of the cotangents."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, averaging: Averaging) -> Tensor:
        ctx.averaging = averaging
        return averaging.total(flat) / averaging.size

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return _Mean.apply(cotangent, ctx.averaging), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _Mean.apply(tangent, ctx.averaging)


def averaged(averaging: Averaging | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The mean over ranks of each tensor [...]; the tensors themselves where there is one process."""
    return tensors if averaging is None else averaging.mean(*tensors)


def averaged_params(averaging: Averaging | None, params: Params) -> Params:
    """The mean over ranks of each tensor by name, in one exchange.

    Reference: disco_rl/agent.py::Agent.learner_step
    """
    return params if averaging is None else dict(zip(params, averaging.mean(*params.values()), strict=True))


class Processes(Averaging):
    """Ranks that are processes, over torch.distributed."""

    def __init__(self) -> None:
        """The rank of this process; torch.distributed must have been started, as `connect` does."""
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def total(self, flat: Tensor) -> Tensor:
        """The sum over ranks of a tensor [N]."""
        out = flat.detach().clone(memory_format=torch.contiguous_format)
        self._ask(lambda: distributed.all_reduce(out))
        return out

    def gather(self, item: Answer) -> list[Answer]:
        """What each rank gives, in their order; whatever can be pickled."""
        found: list[Any] = [None] * self.size
        self._ask(lambda: distributed.all_gather_object(found, item))
        return found

    def _ask(self, exchange: Callable[[], Any]) -> None:
        try:
            exchange()
        except RankLost:
            raise
        except RuntimeError as problem:  # torch's DistBackendError and its like are RuntimeErrors
            _ignore_sigterm()
            raise RankLost(lost(self.rank, self.size, _first_words(problem))) from None


def lost(rank: int, size: int, reason: str) -> str:
    """The sentence of a rank that is left alone."""
    return (
        f"rank {rank} of {size} stops: another process of this run has ended or no longer answers ({reason}). "
        "Its last message, if there is one, tells why; the same command goes on from the last checkpoint."
    )


def _first_words(problem: BaseException) -> str:
    """The reason in an error of torch.distributed, without the place in its source and its advice."""
    words = re.sub(r"^\[[^]]*\]\s*", "", str(problem)) or type(problem).__name__
    return words.splitlines()[0].split(". ")[0]


def is_one_of_many(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started as one of several, by torchrun or its like."""
    return "RANK" in environment and int(environment.get("WORLD_SIZE", "1")) > 1


def own_device(device: str, environment: Mapping[str, str] = os.environ) -> str:
    """The device of this rank: `cuda` is the GPU of its number on its machine, anything else is as it says."""
    return f"cuda:{environment.get('LOCAL_RANK', '0')}" if device == "cuda" and is_one_of_many(environment) else device


def connect(device: str = "cpu", patience: timedelta = PATIENCE) -> Averaging | None:
    """Joins the processes that torchrun started together with this one; None where there is only this one.

    From here on SIGTERM, by which torchrun ends the others where one has ended, is a `RankLost` too.

    Args:
        device: that is computed on; on GPUs NCCL carries the averages, else gloo.
        patience: how long another rank may take until it counts as lost.
    """
    if not is_one_of_many():
        return None
    if not distributed.is_initialized():
        if device.startswith("cuda"):
            torch.cuda.set_device(own_device(device))
        elif loopback := _loopback():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        try:
            distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=patience)
        except (RuntimeError, ValueError) as problem:
            raise RankLost(f"The processes of this run do not find each other: {_first_words(problem)}.") from None
    ranks = Processes()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: _on_sigterm(ranks))
    return ranks


def _on_sigterm(ranks: Averaging) -> None:
    _ignore_sigterm()
    raise RankLost(lost(ranks.rank, ranks.size, "SIGTERM came, as torchrun sends it then"))


def _ignore_sigterm() -> None:
    """One reason to stop is reported, not two; the launcher kills a process that does not end."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _loopback() -> str:
    """The loopback interface, where all ranks are on this machine; gloo would look for one that others can reach."""
    if os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE"):
        return ""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")


def leave(code: int) -> int:
    """Ends a command's part in a run; its exit code.

    A rank that fails ends at once: to take leave in order it would have to wait for the others.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return code
    if code == 2:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    distributed.destroy_process_group()
    return code


class _Thread(Averaging):
    """A rank that is a thread; the ranks meet at a barrier, where each leaves an item."""

    def __init__(self, rank: int, barrier: threading.Barrier, slots: list[Any]) -> None:
        self.rank, self.size, self._barrier, self._slots = rank, len(slots), barrier, slots

    def total(self, flat: Tensor) -> Tensor:
        """The sum over ranks, the first ones first."""
        first, *others = self.gather(flat.detach())
        out = first.clone()
        for other in others:
            out += other
        return out

    def gather(self, item: Answer) -> list[Answer]:
        """What each rank gives, in their order."""
        try:
            self._slots[self.rank] = item
            self._barrier.wait()
            items = list(self._slots)
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise RankLost(lost(self.rank, self.size, "a thread has ended")) from None
        return items


def in_threads(work: Sequence[Callable[[Averaging], Answer]], patience: timedelta = PATIENCE) -> list[Answer]:
    """Runs ranks as threads of this process, each with its own work; what they give, in their order.

    Where one fails the others end too, and its error is raised.
    """
    barrier, slots = threading.Barrier(len(work), timeout=patience.total_seconds()), [None] * len(work)
    with ThreadPoolExecutor(len(work)) as pool:
        ranks = [pool.submit(job, _Thread(rank, barrier, slots)) for rank, job in enumerate(work)]
        for rank in as_completed(ranks):
            if rank.exception():
                barrier.abort()
    problems = [problem for rank in ranks if (problem := rank.exception())]
    if problems:
        raise next((p for p in problems if not isinstance(p, RankLost)), problems[0])
    return [rank.result() for rank in ranks]
