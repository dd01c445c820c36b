"""What the ranks of a training run share and do not share: seeds, checkpoints that belong together, what must be equal.

Rank 0 writes `checkpoint.safetensors`, and by that file a checkpoint counts: those of the others are on disk by then,
each in a file of its rank and step, and their older ones go only afterwards. So a kill at any moment, of any rank,
leaves a checkpoint of which every rank has its part.
"""

from __future__ import annotations

from pathlib import Path

from port.distributed import Averaging
from port.evaluate import acting
from port.storage import checkpoint
from port.storage.checkpoint import Checkpoint

NAME = "checkpoint.safetensors"


def own_seed(seed: int, rank: int) -> int:
    """The seed of what a rank draws for itself; rank 0 draws as a single process does."""
    return acting.derive_seed(seed, f"rank {rank}") if rank else seed


def path_of(out: Path, averaging: Averaging | None, step: int) -> Path:
    """Where a rank keeps its part of the checkpoint after so many rollouts."""
    if averaging is None or averaging.rank == 0:
        return out / NAME
    return out / f"checkpoint.rank{averaging.rank}.{step}.safetensors"


def save(out: Path, averaging: Averaging | None, step: int, part: Checkpoint) -> None:
    """Writes this rank's part of a checkpoint; all ranks call it at the same step."""
    own = path_of(out, averaging, step)
    if averaging is None:
        checkpoint.save(own, part)
        return
    if averaging.rank > 0:
        checkpoint.save(own, part)
    averaging.gather(step)  # the parts of all others are there
    if averaging.rank == 0:
        checkpoint.save(own, part)
    averaging.gather(step)  # and it counts
    if averaging.rank > 0:
        for older in out.glob(f"checkpoint.rank{averaging.rank}.*.safetensors"):
            if older != own:
                older.unlink(missing_ok=True)
