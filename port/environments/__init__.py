"""Environments: Catch on tensors."""

from port.environments.catch import Catch, CatchState

__all__ = ["Catch", "CatchState"]
