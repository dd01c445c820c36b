"""Settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from port.command_line import setting
from port.config import check_positive, check_sizes
from port.evaluate.eval_loop import LoopConfig

TRUNCATIONS = ("bootstrap", "terminal")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(LoopConfig):
    """How to act and learn."""

    updates_per_rollout: int = setting(1, "learner steps after each rollout")
    reward_scale: float = setting(1.0, "what rewards are multiplied by before the agent learns from them")
    truncation: str = setting(
        "bootstrap", "where a time limit cuts an episode off: bootstrap from the value there, or terminal, as if over"
    )
    checkpoint_every: int = setting(100, "rollouts between checkpoints; 0 means none")
    dtype: str = setting("float32", "of parameters, observations and rewards")
    device: str = setting("cpu", "of parameters and replay buffer")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "updates_per_rollout")
        check_positive(self, "reward_scale")
        if self.checkpoint_every < 0:
            raise ValueError(f"TrainConfig.checkpoint_every is {self.checkpoint_every}; give 0 for none.")
        if self.truncation not in TRUNCATIONS:
            raise ValueError(f"TrainConfig.truncation is {self.truncation!r}; it must be bootstrap or terminal.")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"TrainConfig.dtype is {self.dtype!r}; it must be float32 or float64.")
        for name in ("seed", "replay_seed"):
            if not 0 <= getattr(self, name) < 2**63:
                raise ValueError(f"TrainConfig.{name} is {getattr(self, name)}; it must be from 0 to 2 ** 63 - 1.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as problem:
            why = str(problem).splitlines()[0]
            raise ValueError(
                f"TrainConfig.device is {self.device!r}, which torch cannot use here ({why}); use cpu, or install a "
                "torch that can."
            ) from None

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def is_checkpoint(self, step: int) -> bool:
        """Whether a checkpoint is due after so many rollouts."""
        return bool(self.checkpoint_every) and step % self.checkpoint_every == 0
