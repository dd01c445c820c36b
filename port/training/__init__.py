"""Training: an agent and an environment in one object, with logs, checkpoints and evaluation."""

from port.training.config import TrainConfig
from port.training.functions import CatchWorld, StepFunctions
from port.training.gym import GymWorld
from port.training.rule import load_rule
from port.training.trainer import Report, Trainer
from port.training.world import Step, World

__all__ = [
    "CatchWorld",
    "GymWorld",
    "Report",
    "Step",
    "StepFunctions",
    "TrainConfig",
    "Trainer",
    "World",
    "load_rule",
]
