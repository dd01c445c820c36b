"""The port, made ready to be timed: a function for each task (see `worker.Bench`), and figures of the port alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from port import optimizers, weights
from port.adapter.curves import agent_config
from port.agent import Agent
from port.environments import Catch
from port.evaluate import acting
from port.evaluate.eval_loop import DrawnRandomness, EvalConfig, EvalLoop
from port.meta_train import MetaTrainConfig, meta_gradient
from port.meta_train.population import DTYPE, generator
from port.meta_train.workers import Workers
from port.networks import init
from port.types import Params, Rollout
from reports.speed.stages import Stopwatch
from reports.speed.workload import Arrays, Work

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


def load_params(work: Work, agent: Agent) -> Params:
    """The work's parameters by our names."""
    return weights.load_agent_params(work.params, agent.config, agent.obs_spec, agent.num_actions)


class Learner:
    """A learner that takes a step whenever it is asked to, always on the same batch."""

    def __init__(self, work: Work, path: str = "auto"):
        """Loads the work's parameters and weights."""
        self.agent, self.rollout = make_agent(work, path), to_rollout(work.rollout)
        self.meta_params = weights.load_npz(work.setting.weights_path(), self.agent.config.meta_net)
        self.state = self.agent.learner_state(load_params(work, self.agent))

    def step(self) -> None:
        """Learns."""
        self.state, _ = self.agent.learner_step(self.rollout, self.state, self.meta_params)


class MetaTrainer:
    """The port's meta-update at the notebook's size, as `port.meta_train` does it."""

    def __init__(self, workers: int) -> None:
        """Starts the workers."""
        self.config, self.step = MetaTrainConfig(), 0
        meta_net, seed = self.config.agent.meta_net, self.config.seed
        self.meta_params = init.init_meta_params(meta_net, generator(seed, "meta_params"), DTYPE)
        self.opt_state = optimizers.init_adam(self.meta_params)
        self.workers = Workers(self.config, workers)
        self.pids, self.close = self.workers.pids, self.workers.close

    def __call__(self) -> None:
        """One meta-update."""
        grads = [c.grads for c in self.workers.contribute(self.step, self.meta_params)]
        rate = self.config.meta_learning_rate
        self.meta_params, self.opt_state, _ = meta_gradient.meta_update(self.meta_params, self.opt_state, grads, rate)
        self.step += 1


def learner_step(work: Work) -> Callable[[], object]:
    """A step of the learner."""
    return Learner(work).step


def actor_unroll(work: Work) -> Callable[[], object]:
    """A rollout of the actor; noise is drawn as in a run."""
    env, loop = Catch(*work.board), EvalConfig(**asdict(work.setting.loop), seed=work.seed)
    params = load_params(work, make_agent(work))
    noise = DrawnRandomness(loop, env, torch.Generator().manual_seed(work.seed))
    stream = acting.start(env, noise.first_columns())

    def unroll() -> None:
        nonlocal stream
        _, stream = acting.unroll(env, params, stream, *noise.rollout())

    return unroll


def catch_run(work: Work) -> Callable[[], object]:
    """A step of a whole run."""
    agent = make_agent(work)
    meta_params = weights.load_npz(work.setting.weights_path(), agent.config.meta_net)
    loop = EvalConfig(**asdict(work.setting.loop), seed=work.seed)
    return EvalLoop(agent, meta_params, loop, state=agent.learner_state(load_params(work, agent))).step


def meta_update(work: Work) -> MetaTrainer:
    """A meta-update, with a worker process for each thread."""
    return MetaTrainer(torch.get_num_threads())


def matmul(work: Work) -> Callable[[], object]:
    """A large matrix product."""
    left, right = torch.rand(2, MATMUL_SIZE, MATMUL_SIZE).unbind()
    return lambda: left @ right


class Compiled:
    """The port with its networks compiled by torch."""

    @staticmethod
    def learner_step(work: Work) -> Callable[[], object]:
        """A step of the learner."""
        return Learner(work, "compiled").step


def flops(task: str, work: Work) -> int:
    """Floating-point operations of the matrix products of a learner step or rollout, counted by torch as it runs."""
    job = {"learner_step": learner_step, "actor_unroll": actor_unroll}[task](work)
    with FlopCounterMode(display=False) as counter:
        job()
    return int(counter.get_total_flops())


def stages(work: Work, repeats: int) -> list[dict[str, float]]:
    """Seconds of each stage of learner steps one after the other; the first step does not count."""
    watch, learner = Stopwatch(), Learner(work)
    return [watch.step(learner.step) for _ in range(repeats + 1)][1:]
