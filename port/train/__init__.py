"""Training: an agent and an environment in one object, with logs, checkpoints and evaluation."""

from port.agent_flags import load_rule
from port.train.config import TrainConfig
from port.train.functions import CatchWorld, StepFunctions
from port.train.gym import GymWorld
from port.train.trainer import Report, Trainer
from port.train.world import Step, World

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
