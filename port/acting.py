"""Acting for whole rollouts, with only what a learner reads computed on the way."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from port import agent_net
from port.agent import LAST_STEP, sample_actions
from port.environments.catch import Catch, CatchState
from port.types import Params, Rollout, Timestep


class Stream(NamedTuple):
    """Where a stream of experience stands: the state of its environments [B], and what they show."""

    state: CatchState
    timestep: Timestep


def start(env: Catch, ball_columns: Tensor) -> Stream:
    """A stream at its first step, with balls in the given columns [B]."""
    return Stream(*env.reset(ball_columns))


@torch.no_grad()
def unroll(
    env: Catch, params: Params, stream: Stream, gumbel_noise: Tensor, ball_columns: Tensor
) -> tuple[Rollout, Stream]:
    """Acts for L steps, which a learner reads as T = L-1 transitions.

    Args:
        env: the environments.
        params: of the agent that acts.
        stream: where to begin.
        gumbel_noise: [L, B, A], standard Gumbel noise, which picks the actions.
        ball_columns: [L, B], columns of new balls, read where an episode ends.

    Returns:
        The rollout, [L, B] with logits as the only output of the agent, and where the stream stands after it.

    Reference: disco_rl/agent.py::Agent.actor_step
    """
    taken = []
    for noise, columns in zip(gumbel_noise, ball_columns, strict=True):
        seen = stream.timestep
        logits = agent_net.policy_logits(params, seen.observation)
        actions = sample_actions(logits, noise)
        taken.append((seen.observation, actions, seen.reward, seen.step_type != LAST_STEP, logits))
        stream = Stream(*env.step(stream.state, actions, columns))
    observations, actions, rewards, discounts, logits = (torch.stack(field) for field in zip(*taken, strict=True))
    return Rollout(observations, actions, rewards, discounts, {"logits": logits}), stream
