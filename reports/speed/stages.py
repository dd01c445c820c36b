"""Where the time of the port's learner step goes: its functions are timed from outside while it runs."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch

from port import optimizers
from port.agent import Agent
from port.fast import network
from port.fast.disco import FastDisco
from port.fast.learner import Fast
from port.value_fns import value_utils

REST = "checks and the rest"
ORDER = (
    "online forward",
    "target forward",
    "values",
    "meta-network",
    "target averaging",
    "loss",
    "backward",
    "optimiser",
    "norms for the logs",
    REST,
)
PARTS: tuple[tuple[Any, str, str], ...] = (
    (Fast, "unroll", "online forward"),
    (network, "unroll", "target forward"),
    (FastDisco, "q_values", "values"),
    (value_utils, "value_outs", "values"),
    (FastDisco, "targets", "meta-network"),
    (optimizers, "target_average", "target averaging"),
    (Agent, "loss", "loss"),
    (optimizers, "update", "optimiser"),
    (optimizers, "global_norm", "norms for the logs"),
)


class Stopwatch:
    """Adds up the seconds of each stage."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        """Takes a clock."""
        self.clock, self.thread = clock, threading.get_ident()
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, function: Callable[..., Any], stage: Callable[..., str]) -> Callable[..., Any]:
        """The same function, whose time is added to the stage that its arguments tell."""

        def run(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self.thread:  # works side by side with the one that is watched
                return function(*arguments, **named)
            name, started = stage(*arguments), self.clock()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[name] += self.clock() - started

        return run

    def step(self, work: Callable[[], object]) -> dict[str, float]:
        """Does a learner step; seconds by stage."""
        self.seconds.clear()
        with ExitStack() as patches:
            for owner, name, stage in PARTS:
                watched = self.timed(getattr(owner, name), lambda *_, stage=stage: stage)
                patches.enter_context(mock.patch.object(owner, name, watched))
            grad = self.timed(torch.autograd.grad, _backward_stage)
            patches.enter_context(mock.patch.object(torch.autograd, "grad", grad))
            started = self.clock()
            work()
            total = self.clock() - started
        found = {name: self.seconds[name] for name in ORDER if name != REST}
        return {**found, REST: total - sum(found.values())}


def _backward_stage(*_: Any) -> str:
    return "backward"
