"""Acting in a world for whole rollouts, and playing episodes to judge an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from port import trees
from port.agent import Agent, sample_actions
from port.evaluate.acting import gumbel_noise
from port.replay import to_rollout
from port.train.config import TrainConfig
from port.train.world import Step, World, check_finite, check_step, tree_map
from port.types import Observations, Params, Rollout
from port.update_rules.actor_critic import ActorCritic
from port.update_rules.disco import Disco
from port.value_fns import value_utils

Act: TypeAlias = Callable[[Observations], Tensor]  # observations [B, ...] to logits [B, A]
MAX_STEPS = 100_000  # of an evaluation


class Stream(NamedTuple):
    """The state of the environments between two rollouts; all [B, ...]."""

    observations: Observations  # to act on next
    rewards: Tensor  # that came with them, as the agent learns from them
    continues: Tensor  # booleans, False where an episode has just ended
    returns: Tensor  # of the running episodes so far, as the environment gave them
    lengths: Tensor  # of the running episodes so far


class Episode(NamedTuple):
    """An episode that has ended: its environment, return and length."""

    env: int
    total: float
    length: int


def begin(world: World, generator: torch.Generator, dtype: torch.dtype) -> Stream:
    """Starts all environments anew."""
    observations, B = world.reset(generator), world.num_envs
    check_step(Step(observations, torch.zeros(B), torch.zeros(B), torch.zeros(B)), world, "after a reset")
    on_device = tree_map(lambda x: x.to(generator.device), observations)
    zeros = torch.zeros(B, dtype=dtype, device=generator.device)
    sums = torch.zeros(B, dtype=torch.float64)
    return Stream(on_device, zeros, zeros == 0, sums, sums.long())


def state_values(agent: Agent, params: Params, observations: Observations) -> tuple[Tensor, float]:
    """Values [B] of observations [B, ...] by the agent's own estimate, and the discount that they are based on."""
    outs = agent.network.step(params, observations)
    match agent.rule:
        case Disco(rule=rule) as disco:
            q_values = value_utils.values_from_logits(outs["q"], disco.value_settings.form)
            return value_utils.policy_mean(q_values, outs["logits"]), rule.value_discount
        case ActorCritic(hyper=hyper) as actor_critic:
            return value_utils.values_from_logits(outs["v"], actor_critic.value_form), hyper.discount_factor
    raise ValueError(f"{type(agent.rule).__name__} estimates no values; take truncation='terminal'.")


def learned_rewards(agent: Agent, params: Params, step: Step, scale: float, bootstraps: bool) -> Tensor:
    """The rewards that the agent learns from, [B], on the device of its parameters.

    To the rule, a truncated episode ends like any other. With `bootstraps`, its last reward includes the discounted
    value of its last observation, which stands for the rest of the episode.
    """
    like = next(iter(params.values()))
    rewards = step.rewards.to(like.device, like.dtype) * scale
    is_cut = step.is_truncated & ~step.is_terminal
    if not (bootstraps and bool(is_cut.any())):
        return rewards
    final = step.observations if step.final_observations is None else step.final_observations
    value, discount = state_values(agent, params, tree_map(lambda x: x.to(like.device), final))
    return torch.where(is_cut.to(like.device), rewards + discount * value, rewards)


@torch.no_grad()
def unroll(
    world: World,
    agent: Agent,
    params: Params,
    stream: Stream,
    config: TrainConfig,
    generator: torch.Generator,
) -> tuple[Rollout, Stream, list[Episode], int]:
    """Acts for L steps, which a learner reads as T = L-1 transitions.

    Returns:
        The rollout [L, B], with logits as the only output of the agent; the stream after it; the episodes that ended
        in it; and how many steps the environments made.
    """
    length, bootstraps = config.rollout_length, config.truncation == "bootstrap"
    noise = gumbel_noise((length, world.num_envs, world.num_actions), generator, stream.rewards.dtype)
    act, rows, frames = agent.network.policy(params), [], 0
    ended: list[Episode] = []
    for t in range(length):
        logits = act(stream.observations)
        check_finite({"agent's logits in front": logits}, f"at step {t} of the rollout: it has diverged")
        actions = sample_actions(logits, noise[t])
        acted = Rollout(stream.observations, actions, stream.rewards, stream.continues, {"logits": logits})
        rows.append(trees.flatten(acted))
        step = world.step(actions, generator)
        check_step(step, world, f"at step {t} of the rollout")
        rewards = learned_rewards(agent, params, step, config.reward_scale, bootstraps)
        stream, over = follow(stream, step, rewards)
        ended += over
        frames += world.num_envs if step.was_ignored is None else int((~step.was_ignored).sum())
    rollout = to_rollout({name: torch.stack([row[name] for row in rows]) for name in rows[0]})
    return rollout, stream, ended, frames


def follow(stream: Stream, step: Step, rewards: Tensor) -> tuple[Stream, list[Episode]]:
    """The stream after a step with these rewards [B] to learn from, and the episodes that ended in it."""
    returns = stream.returns + step.rewards.double()
    lengths = stream.lengths + (1 if step.was_ignored is None else (~step.was_ignored).long())
    is_over, device = step.is_terminal | step.is_truncated, rewards.device
    over = [Episode(i, float(returns[i]), int(lengths[i])) for i in is_over.nonzero().flatten().tolist()]
    after = Stream(
        tree_map(lambda x: x.to(device), step.observations),
        rewards,
        ~is_over.to(device),
        returns.masked_fill(is_over, 0.0),
        lengths.masked_fill(is_over, 0),
    )
    return after, over


@torch.no_grad()
def play(
    world: World, act: Act, episodes: int, generator: torch.Generator, dtype: torch.dtype, is_greedy: bool = False
) -> list[Episode]:
    """Plays at least `episodes` episodes with a policy, and returns them in the order in which they ended.

    Each environment plays the same number, because otherwise short episodes would count for more.
    """
    missing = [-(-episodes // world.num_envs)] * world.num_envs
    played: list[Episode] = []
    stream = begin(world, generator, dtype)
    for _ in range(MAX_STEPS):
        logits = act(stream.observations)
        noise = torch.zeros_like(logits) if is_greedy else gumbel_noise(tuple(logits.shape), generator, dtype)
        step = world.step(sample_actions(logits, noise), generator)
        check_step(step, world, "in an evaluation")
        stream, over = follow(stream, step, step.rewards.to(logits.device))
        for episode in over:
            if missing[episode.env]:
                missing[episode.env] -= 1
                played.append(episode)
        if not any(missing):
            return played
    raise ValueError(
        f"After {MAX_STEPS} steps not all of {episodes} episodes have ended; give the environment a limit."
    )
