"""`disco-torch`, made ready to be timed: its own trainer and its own rollouts, on this project's network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from reports.audit.disco_torch import curves
from reports.audit.disco_torch.learning import batch, trainer
from reports.speed.port import load_params, make_agent
from reports.speed.workload import Job, Work


def made_trainer(work: Work) -> Any:
    """The package's trainer with the given parameters and weights."""
    return curves.new_trainer(curves.ActingAgent(load_params(work, make_agent(work))), work.setting)


class DiscoTorch:
    """The package."""

    tasks = ("learner_step", "actor_unroll", "catch_run")

    def __init__(self, threads: int):
        """Takes that many threads."""
        self.threads = threads
        torch.set_num_threads(threads)

    def job(self, task: str, work: Work) -> Job:
        """A task made ready."""
        made: Job = getattr(self, f"_{task}")(work)
        return made

    def _learner_step(self, work: Work) -> Job:
        learner = made_trainer(work)
        taken = batch({name: torch.from_numpy(x) for name, x in work.rollout.items()}, torch.float32)
        taken["actions"] = taken["actions"].long()
        return Job(lambda: learner._gradient_step(taken))

    def _actor_unroll(self, work: Work) -> Job:
        agent, loop, device = made_trainer(work).agent, work.setting.loop, torch.device("cpu")
        boards = curves.Boards(work.num_envs, *work.board, np.random.default_rng(work.seed))
        carried: list[Any] = [boards.seen(), agent.init_lstm_state(work.num_envs, device)]

        def unroll() -> None:
            _, *carried[:] = trainer.collect_rollout(agent, boards.step, *carried, loop.rollout_length, device)

        return Job(unroll)

    def _catch_run(self, work: Work) -> Job:
        run = curves._steps(work.setting)

        def step() -> None:
            next(run)
            torch.set_num_threads(self.threads)  # a run, when it begins, takes only one

        return Job(step)
