"""Environments: Catch on tensors (thousands at once, randomness from outside) and on the host, one board at a time."""

from port.environments.base import ActionSpec, ArraySpec, Environment
from port.environments.catch import Catch, CatchState
from port.environments.host import Batched, HostCatch, SingleStream, host_catch, spread_seed
from port.environments.vectorised import DrawnColumns, OriginalColumns, VectorisedCatch

__all__ = [
    "ActionSpec",
    "ArraySpec",
    "Batched",
    "Catch",
    "CatchState",
    "DrawnColumns",
    "Environment",
    "HostCatch",
    "OriginalColumns",
    "SingleStream",
    "VectorisedCatch",
    "host_catch",
    "spread_seed",
]
