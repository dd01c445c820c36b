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

PARTS: tuple[tuple[Any, str, str], ...] = (  # in the order of a step
    (Fast, "unroll", "online forward"),
    (network, "unroll", "target forward"),
    (FastDisco, "q_values", "values"),
    (value_utils, "value_outs", "values"),
    (FastDisco, "targets", "meta-network"),
    (optimizers, "target_average", "target averaging"),
    (Agent, "loss", "loss"),
    (torch.autograd, "grad", "backward"),
    (optimizers, "update", "optimiser"),
    (optimizers, "global_norm", "norms for the logs"),
)
REST = "checks and the rest"
ORDER = (*dict.fromkeys(stage for _, _, stage in PARTS), REST)


class Stopwatch:
    """Adds up the seconds of each stage."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        """Takes a clock."""
        self.clock, self.thread = clock, threading.get_ident()
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """The same function, whose time is added to a stage."""

        def run(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self.thread:  # works in parallel with the one that is watched
                return function(*arguments, **named)
            started = self.clock()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[stage] += self.clock() - started

        return run

    def step(self, work: Callable[[], object]) -> dict[str, float]:
        """Does a learner step; seconds by stage."""
        self.seconds.clear()
        with ExitStack() as patches:
            for owner, name, stage in PARTS:
                timed = self.timed(getattr(owner, name), stage)
                patches.enter_context(mock.patch.object(owner, name, timed))
            started = self.clock()
            work()
            total = self.clock() - started
        seconds = {name: self.seconds[name] for name in ORDER if name != REST}
        return {**seconds, REST: total - sum(seconds.values())}
