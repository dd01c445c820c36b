"""What a caller gave, made into what a run needs; what does not fit is said before anything is done."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from port.agent import Agent
from port.config import AgentConfig
from port.distributed import Averaging
from port.environments import Catch
from port.evaluate import eval_loop
from port.network import ModuleNetwork
from port.train import gym
from port.train.world import World, obs_spec, tree_map
from port.types import LearnerState, Params, Rollout


def as_world(env: Any, dtype: torch.dtype) -> World:
    """Environments as a world; TypeError or ValueError explains what to give instead."""
    if gym.is_vector_env(env):
        return gym.GymWorld(env, dtype)
    if all(hasattr(env, name) for name in ("reset", "step", "save", "restore", "example", "num_envs", "num_actions")):
        world: World = env
        return world
    if isinstance(env, Catch):
        raise TypeError("Say how many boards of Catch there are to be: port.CatchWorld(catch, num_envs=8).")
    if hasattr(env, "action_space"):
        raise TypeError(
            f"{env} is a single environment; a trainer acts in several at once. Make them with "
            "gymnasium.make_vec(name, num_envs=8), or gymnasium.vector.SyncVectorEnv([make_one] * 8)."
        )
    raise TypeError(
        f"{type(env).__name__} is no environment; give a Gymnasium vector environment, port.StepFunctions or "
        "port.CatchWorld."
    )


def make_agent(
    config: AgentConfig, world: World, network: nn.Module | None, dtype: torch.dtype, averaging: Averaging | None
) -> Agent:
    """The agent for a world, with a module of the caller's own if there is one."""
    spec, A = obs_spec(world), world.num_actions
    if network is None:
        return Agent(config, spec, A, averaging=averaging)
    if not isinstance(network, nn.Module):
        raise TypeError(f"The network is a {type(network).__name__}; give a torch.nn.Module.")
    return Agent(config, spec, A, ModuleNetwork(copy.deepcopy(network).to(dtype), config, A, world.example), averaging)


def names_from_a_trial_step(
    agent: Agent, state: LearnerState, meta_params: Params | None, world: World, device: str
) -> list[str]:
    """Learns once from a rollout of zeros, to find what does not fit; the names of the logs."""
    B, A = world.num_envs, world.num_actions
    like = next(iter(state.params.values()))
    rewards = like.new_zeros(2, B)
    observations = tree_map(lambda x: x.to(device).expand(2, *x.shape), world.example)
    outs = {"logits": like.new_zeros(2, B, A)}
    rollout = Rollout(observations, torch.zeros_like(rewards).long(), rewards, rewards == 0, outs)
    _, learned = agent.learner_step(rollout, state, meta_params)
    return sorted(eval_loop.scalars(learned))
