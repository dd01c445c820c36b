"""Acting for whole rollouts, with only what a learner reads computed on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from port import ops
from port.environments.base import LAST_STEP, MID_STEP
from port.environments.catch import Catch, CatchState
from port.networks import agent_net
from port.types import Params, Rollout, Timestep

Act: TypeAlias = Callable[[Tensor], Tensor]  # observations [B, ...] to logits [B, A]
Played: TypeAlias = tuple[CatchState, Tensor, Tensor, CatchState]


class Stream(NamedTuple):
    """Where a stream of experience stands: the state of its environments [B], and what they show."""

    state: CatchState
    timestep: Timestep


def start(env: Catch, ball_columns: Tensor) -> Stream:
    """A stream at its first step, with balls in the given columns [B]."""
    return Stream(*env.reset(ball_columns))


def derive_seed(seed: int, *names: object) -> int:
    """A seed that depends on nothing but another seed and some names."""
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Standard Gumbel noise, -log(-log(u)) of uniform numbers u."""
    uniform = torch.rand(shape, generator=generator, device=generator.device, dtype=dtype)
    return -torch.log(-torch.log(uniform.clamp_min(torch.finfo(dtype).tiny)))


def draw_noise(env: Catch, generator: torch.Generator, length: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """For a rollout of L steps: Gumbel noise [L, B, A], and columns of new balls [L, B]."""
    noise = gumbel_noise((length, batch_size, env.num_actions), generator, env.dtype)
    return noise, env.draw_columns(generator, length, batch_size)


@torch.no_grad()
def unroll(
    env: Catch,
    params: Params,
    stream: Stream,
    gumbel_noise: Tensor,
    ball_columns: Tensor,
    policy: Callable[[Params], Act] = agent_net.policy,
) -> tuple[Rollout, Stream]:
    """Acts for L steps, which a learner reads as T = L-1 transitions.

    What the actions do not depend on (rewards, ends of episodes) is worked out for all steps at once, after acting.

    Args:
        env: the environments.
        params: of the agent that acts.
        stream: where to begin.
        gumbel_noise: [L, B, A], standard Gumbel noise, which picks the actions.
        ball_columns: [L, B], columns of new balls, read where an episode ends.
        policy: makes of the parameters a function from observations [B, ...] to logits [B, A].

    Returns:
        The rollout, [L, B] with logits as the only output of the agent, and where the stream stands after it.

    Reference: disco_rl/agent.py::Agent.actor_step
    """
    ball_columns = env.checked_columns(ball_columns)
    _check_noise(env, stream, gumbel_noise, ball_columns)
    states, actions, logits, end = _play(env, policy(params), stream.state, gumbel_noise, ball_columns)
    _check_logits(logits)
    arrived = env.move(states, actions)  # [L, B], before the next episodes begin
    is_last, rewards = env.is_last(arrived), env.reward(arrived)
    seen = stream.timestep
    rollout = Rollout(
        observations=env.render(states),
        actions=actions,
        rewards=torch.cat((seen.reward.unsqueeze(0), rewards[:-1])),
        discounts=torch.cat(((seen.step_type != LAST_STEP).unsqueeze(0), ~is_last[:-1])),
        agent_outs={"logits": logits},
    )
    return rollout, Stream(end, Timestep(env.render(end), is_last[-1] + MID_STEP, rewards[-1]))


def _play(env: Catch, act: Act, state: CatchState, noise: Tensor, columns: Tensor) -> Played:
    """States, actions and logits of each step, and the state after the last."""
    taken = []
    for step_noise, step_columns in zip(noise.unbind(), columns.unbind(), strict=True):
        logits = act(env.render(state))
        actions = ops.gumbel_argmax(logits.log_softmax(-1), step_noise)
        taken.append((*state, actions, logits))
        state = env.move(state, actions)
        state = env.restart(state, env.is_last(state), step_columns)
    row, ball, paddle, all_actions, all_logits = (torch.stack(field) for field in zip(*taken, strict=True))
    return CatchState(row, ball, paddle), all_actions, all_logits, state


def _check_noise(env: Catch, stream: Stream, noise: Tensor, columns: Tensor) -> None:
    ops.check_tensors(gumbel_noise=noise)
    B, A = stream.state.ball_row.numel(), env.num_actions
    if columns.ndim != 2 or not len(columns) or columns.shape[1] != B or noise.shape != (*columns.shape, A):
        raise ValueError(
            f"{B} environments with {A} actions take noise of [L, {B}, {A}] and ball columns of [L, {B}], L at least "
            f"1; got {tuple(noise.shape)} and {tuple(columns.shape)}."
        )


def _check_logits(logits: Tensor) -> None:
    """Raises ValueError where an agent had no policy to act by."""
    is_finite = logits.isfinite().all(-1)
    if not bool(is_finite.all()):
        step, env = (int(i) for i in (~is_finite).nonzero()[0])
        raise ValueError(f"The agent's logits are not finite at step {step} in environment {env}; it has diverged.")
