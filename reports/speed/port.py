"""The port, made ready to be timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from port import weights
from port.adapter.curves import agent_config
from port.agent import Agent
from port.environments import Catch
from port.evaluate import acting
from port.evaluate.eval_loop import DrawnRandomness, EvalConfig, EvalLoop
from port.meta_train import MetaTrainConfig
from port.types import Params, Rollout
from reports.speed.stages import Stopwatch
from reports.speed.workload import Arrays, Job, Work

MATMUL_SIZE = 2048


def to_rollout(arrays: Mapping[str, np.ndarray]) -> Rollout:
    """A batch as the port keeps it."""
    x = {name: torch.from_numpy(value) for name, value in arrays.items()}
    fields = {name: x[name] for name in ("observations", "actions", "rewards", "discounts")}
    return Rollout(**fields, agent_outs={"logits": x["logits"]})


def initial_params(work: Work) -> Arrays:
    """Fresh parameters of the agent, by the original's names."""
    agent = make_agent(work)
    state = agent.initial_learner_state(torch.Generator().manual_seed(work.seed), torch.float32)
    return weights.agent_params_to_original(state.params, agent.config)


def make_agent(work: Work, path: str = "auto") -> Agent:
    """The agent of a piece of work."""
    setting: Any = work.setting  # frozen, which a protocol of variables does not allow for
    return Agent(agent_config(setting), (*work.board, 1), work.num_actions, path=path)


class Learner:
    """A learner that takes a step whenever it is asked to, always on the same batch."""

    def __init__(self, work: Work, path: str = "auto"):
        """Loads the given parameters and weights."""
        self.agent, self.rollout = make_agent(work, path), to_rollout(work.rollout)
        self.meta_params = weights.load_npz(work.setting.weights_path(), self.agent.config.meta_net)
        self.state = self.agent.learner_state(load_params(work, self.agent))

    def step(self) -> None:
        """Learns."""
        self.state, _ = self.agent.learner_step(self.rollout, self.state, self.meta_params)


def load_params(work: Work, agent: Agent) -> Params:
    """The given parameters by our names."""
    return weights.load_agent_params(work.params, agent.config, agent.obs_spec, agent.num_actions)


class Actor:
    """Environments in which a policy acts for a rollout whenever it is asked to; noise is drawn as in a run."""

    def __init__(self, work: Work):
        """Starts the environments."""
        self.env, self.loop = Catch(*work.board), EvalConfig(**asdict(work.setting.loop), seed=work.seed)
        self.params = load_params(work, make_agent(work))
        generator = torch.Generator().manual_seed(work.seed)
        self.chance = DrawnRandomness(self.loop, self.env, generator)
        self.stream = acting.start(self.env, self.chance.first_columns())

    def unroll(self) -> None:
        """Acts."""
        _, self.stream = acting.unroll(self.env, self.params, self.stream, *self.chance.rollout())


class Port:
    """The port in eager mode."""

    tasks: tuple[str, ...] = ("learner_step", "actor_unroll", "meta_update", "catch_run", "matmul")

    def __init__(self, threads: int):
        """Takes that many threads."""
        self.threads = threads
        torch.set_num_threads(threads)

    def job(self, task: str, work: Work) -> Job:
        """A task made ready."""
        made: Job = getattr(self, f"_{task}")(work)
        return made

    def _learner_step(self, work: Work) -> Job:
        return Job(Learner(work).step)

    def _actor_unroll(self, work: Work) -> Job:
        return Job(Actor(work).unroll)

    def _catch_run(self, work: Work) -> Job:
        agent = make_agent(work)
        meta_params = weights.load_npz(work.setting.weights_path(), agent.config.meta_net)
        loop = EvalConfig(**asdict(work.setting.loop), seed=work.seed)
        run = EvalLoop(agent, meta_params, loop, state=agent.learner_state(load_params(work, agent)))
        return Job(run.step)

    def _meta_update(self, work: Work) -> Job:
        from reports import meta_speed

        made = meta_speed.Port(MetaTrainConfig(), self.threads)
        return Job(made.advance, made.workers.pids, made.workers.close)

    def _matmul(self, work: Work) -> Job:
        left, right = torch.rand(2, MATMUL_SIZE, MATMUL_SIZE).unbind()
        return Job(lambda: left @ right)

    def flops(self, work: Work) -> int:
        """Floating-point operations of the matrix products of a learner step, counted by torch as it runs."""
        learner = Learner(work)
        with FlopCounterMode(display=False) as counter:
            learner.step()
        return int(counter.get_total_flops())

    def policy_flops(self, work: Work) -> int:
        """The same of a rollout."""
        actor = Actor(work)
        with FlopCounterMode(display=False) as counter:
            actor.unroll()
        return int(counter.get_total_flops())

    def stages(self, work: Work, repeats: int) -> list[dict[str, float]]:
        """Seconds of each stage of learner steps one after the other."""
        watch = Stopwatch()
        learner = Learner(work)
        found = []
        for _ in range(repeats + 1):
            found.append(watch.step(learner.step))
        return found[1:]


class Compiled(Port):
    """The port with its networks compiled by torch."""

    tasks = ("learner_step",)

    def _learner_step(self, work: Work) -> Job:
        return Job(Learner(work, "compiled").step)
