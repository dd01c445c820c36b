"""What `torchrun` starts in tests/test_distributed.py: `python tests/rank_work.py WHAT OUT ...`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch

from port import distributed
from port.distributed import Averaging
from port.train import Trainer, __main__
from tests.distributed_case import learner_step

DIES_AFTER = 5  # rollouts


def step(out: Path) -> int:
    """A learner step and its VJP on this rank, as a file."""
    torch.set_num_threads(1)
    ranks = distributed.connect()
    assert isinstance(ranks, Averaging)
    np.savez(out / f"rank{ranks.rank}.npz", **learner_step(ranks))
    assert ranks.gather(ranks.rank * 10) == [0, 10]
    return distributed.leave(0)


def dying(arguments: list[str]) -> int:
    """`python -m port.train`, in which rank 1 is killed on its way."""
    advance = Trainer.advance

    def advance_or_die(trainer: Trainer) -> object:
        if trainer.rank == 1 and trainer.step == DIES_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)
        return advance(trainer)

    Trainer.advance = advance_or_die  # type: ignore[method-assign, assignment]
    return __main__.main(arguments)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    sys.exit(step(Path(rest[0])) if what == "step" else dying(rest))
