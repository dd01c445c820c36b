"""`disco-torch`, made ready to be timed: its own trainer and its own rollouts, on this project's network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from reports.audit.disco_torch import curves
from reports.audit.disco_torch.learning import batch, trainer
from reports.speed.port import load_params, make_agent
from reports.speed.workload import Work


def make_trainer(work: Work) -> Any:
    """The package's trainer with the work's parameters and weights."""
    return curves.new_trainer(curves.ActingAgent(load_params(work, make_agent(work))), work.setting)


def learner_step(work: Work) -> Callable[[], object]:
    """A gradient step of its trainer."""
    learner = make_trainer(work)
    inputs = batch({name: torch.from_numpy(x) for name, x in work.rollout.items()}, torch.float32)
    inputs["actions"] = inputs["actions"].long()
    return lambda: learner._gradient_step(inputs)


def actor_unroll(work: Work) -> Callable[[], object]:
    """A rollout."""
    agent, loop, device = make_trainer(work).agent, work.setting.loop, torch.device("cpu")
    boards = curves.Boards(work.num_envs, *work.board, np.random.default_rng(work.seed))
    carried: list[Any] = [boards.seen(), agent.init_lstm_state(work.num_envs, device)]

    def unroll() -> None:
        _, *carried[:] = trainer.collect_rollout(agent, boards.step, *carried, loop.rollout_length, device)

    return unroll


def catch_run(work: Work) -> Callable[[], object]:
    """A step of a whole run."""
    run, threads = curves._steps(work.setting), torch.get_num_threads()

    def step() -> None:
        next(run)
        torch.set_num_threads(threads)  # a run, when it begins, takes only one

    return step
