"""One agent of the population: it acts, gives its meta-gradient, and starts over at the end of its lifetime.

All randomness comes from the run's seed, the agent's number and the number of the meta-update, so that nothing random
needs to be kept to continue a run.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from port import replay, trees
from port.agent import Agent
from port.environments import Catch
from port.evaluate import acting, eval_loop
from port.meta_train import meta_gradient, recompute
from port.meta_train.config import MetaTrainConfig, board_size
from port.meta_train.meta_gradient import InnerProblem, LearningState
from port.types import Params, Rollout
from port.value_fns import value_fn

DTYPE = torch.float32


class MemberState(NamedTuple):
    """What an agent carries from one meta-update to the next."""

    learning: LearningState
    stream: acting.Stream


class Contribution(NamedTuple):
    """What an agent gives to a meta-update."""

    grads: Params
    log: dict[str, float]


def generator(seed: int, *names: object) -> torch.Generator:
    """A generator that depends on nothing but the seed and the names."""
    return torch.Generator().manual_seed(acting.derive_seed(seed, *names))


class Member:
    """An agent of the population; its state is given and returned."""

    def __init__(self, config: MetaTrainConfig, index: int) -> None:
        """Takes the run's settings and the agent's number in the population."""
        self.config, self.index = config, index
        self.env = Catch(*board_size(config.boards[index]), DTYPE)
        self.agent = Agent(config.agent, self.env.observation_shape, self.env.num_actions)

    def age(self, step: int) -> int:
        """Meta-updates of its lifetime so far, at the start of one; lifetimes are staggered over the population."""
        if not self.config.lifetime:
            return step
        return (step + self.index * self.config.lifetime // len(self.config.boards)) % self.config.lifetime

    def fresh(self, step: int) -> MemberState:
        """The state of an agent whose lifetime begins at a meta-update."""
        source = generator(self.config.seed, "life", self.index, step)
        spec, value_config = self.env.observation_shape, self.config.value_fn
        learner = self.agent.initial_learner_state(source, DTYPE)
        value = value_fn.init_state(value_fn.init_value_params(value_config, spec, source, DTYPE))
        stream = acting.start(self.env, self.env.draw_columns(source, self.config.batch_size))
        return MemberState(LearningState(learner, value), stream)

    def act(self, step: int, state: MemberState) -> tuple[list[Rollout], Rollout, acting.Stream]:
        """A rollout for each inner update and a validation rollout of twice the length, all by the same parameters."""
        c = self.config
        length = c.rollout_length * (c.num_inner_steps + 2)
        source = generator(c.seed, "act", self.index, step)
        noise = acting.draw_noise(self.env, source, length, c.batch_size)
        whole, stream = acting.unroll(self.env, state.learning.learner.params, state.stream, *noise)
        train = [_cut(whole, i * c.rollout_length, (i + 1) * c.rollout_length) for i in range(c.num_inner_steps)]
        return train, _cut(whole, c.num_inner_steps * c.rollout_length, length), stream

    def contribute(self, step: int, state: MemberState | None, meta_params: Params) -> tuple[MemberState, Contribution]:
        """Acts and learns for one meta-update, from the state of the one before, or None at the first of a run.

        Returns:
            The new state; meta-gradient and logs.
        """
        age = self.age(step)
        if state is None or age == 0:
            state = self.fresh(step)
        train, valid, stream = self.act(step, state)
        c = self.config
        differentiate = recompute.checkpointed_meta_gradient if c.recompute else meta_gradient.meta_gradient
        problem = InnerProblem(self.agent, c.value_fn, c.outer, meta_params, state.learning, train, valid)
        result = differentiate(problem)
        rewards = torch.stack([rollout.rewards for rollout in train])
        caught, missed = int((rewards > 0).sum()), int((rewards < 0).sum())
        log = {name: float(x) for name, x in result.meta_log.items()}
        log |= {"rewards": float(rewards.mean()), "pos_rewards": float(caught), "neg_rewards": float(missed)}
        log |= {"age": float(age), "catch_rate": caught / max(caught + missed, 1)}
        return MemberState(result.state, stream), Contribution(result.grads, log)


def _cut(rollout: Rollout, start: int, end: int) -> Rollout:
    """Some steps of a rollout."""
    steps = {name: x[start:end] for name, x in trees.flatten(rollout).items()}
    return replay.to_rollout(steps)


class Score(NamedTuple):
    """How a fresh agent did: over its whole run, and over its last 100 episodes."""

    life_catch_rate: float
    final_catch_rate: float


def evaluate(config: MetaTrainConfig, meta_params: Params, board: str, seed: int) -> Score:
    """Lets a fresh agent learn by the rule in the original's evaluation loop."""
    rows, columns = board_size(board)
    settings = eval_loop.EvalConfig(num_steps=config.evaluate_steps, rows=rows, columns=columns, seed=seed)
    agent = Agent(config.agent, (rows, columns, 1), Catch.num_actions)
    result = eval_loop.EvalLoop(agent, meta_params, settings, DTYPE).run()
    return Score(float((result.episode_returns > 0).mean()), result.catch_rate)
