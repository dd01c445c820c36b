"""The population spread over ranks instead of processes of one's own: each member lives on one of them.

Rank 0 runs the loop and writes; the others answer its calls. Meta-gradients are merged in the members' order, so the
outcome is that of a single process, to the last bit, whatever the number of ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import torch

from port.distributed import Averaging, RankLost
from port.meta_train.config import MetaTrainConfig
from port.meta_train.workers import Crew, Workers


class Ranks(Workers):
    """The population behind one door; every rank makes one, and all but the first `serve`."""

    def __init__(self, config: MetaTrainConfig, averaging: Averaging) -> None:
        """Takes this rank's members: every so many-th, from its number on."""
        torch.set_num_threads(1)
        self._averaging = averaging
        self._own = Crew(config, range(averaging.rank, len(config.boards), averaging.size))

    @property
    def count(self) -> int:
        """Number of processes that work."""
        return self._averaging.size

    @property
    def pids(self) -> list[int]:
        """The process of this rank."""
        return [os.getpid()]

    def _call(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls every rank with its own arguments; answers in the ranks' order."""
        self._averaging.gather((name, arguments))
        answers = self._averaging.gather(self._answer(name, arguments))
        for rank, (is_done, answer) in enumerate(answers):
            if not is_done:
                raise RuntimeError(f"Rank {rank} failed: {answer}")
        return [answer for _, answer in answers]

    def _answer(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> tuple[bool, Any]:
        try:
            return True, getattr(self._own, name)(*arguments[self._averaging.rank])
        except RankLost:
            raise
        except Exception as problem:
            return False, f"{type(problem).__name__}: {problem}"

    def serve(self) -> None:
        """Answers the first rank's calls until it has none left."""
        while True:
            call: Any = self._averaging.gather(None)[0]
            if call is None:
                return
            self._averaging.gather(self._answer(*call))

    def close(self) -> None:
        """Lets the others end."""
        if self._averaging.rank == 0:
            with contextlib.suppress(RankLost):
                self._averaging.gather(None)
