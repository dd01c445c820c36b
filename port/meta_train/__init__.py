"""Meta-training of an update rule on a population of agents: `python -m port.meta_train --help`."""

from port.meta_train.config import SMALL, MetaTrainConfig

__all__ = ["SMALL", "MetaTrainConfig"]
