"""Environments, replay buffer and accumulated returns as layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from port.adapter.inputs import Settings, Tensors, layer
from port.environments import Batched, Catch, CatchState, HostCatch, spread_seed
from port.evaluate import eval_loop
from port.replay import ReplayBuffer
from port.types import Rollout, Timestep


def _env(s: Settings, dtype: torch.dtype) -> Catch:
    return Catch(s["fall"] + 1, s["columns"], dtype)


def _shown(state: CatchState, timestep: Timestep) -> dict[str, Any]:
    return {"state": {name: value.clone() for name, value in state._asdict().items()}, **timestep._asdict()}


@layer("env/catch_reset")
def _catch_reset(x: Tensors, s: Settings) -> dict[str, Any]:
    return _shown(*_env(s, x.dtype).reset(x.ball_columns))


@layer("env/catch_step")
def _catch_step(x: Tensors, s: Settings) -> dict[str, Any]:
    return _shown(*_env(s, x.dtype).step(x.record(CatchState, "state"), x.actions, x.ball_columns))


def _drawing(columns: Tensor) -> Any:
    """A source of randomness that gives an environment its columns, one after the other."""
    values = iter(columns.tolist())
    return SimpleNamespace(randint=lambda below: next(values))


@layer("env/host_catch")
def _host_catch(x: Tensors, s: Settings) -> dict[str, Any]:
    sources = [_drawing(columns) for columns in x.ball_columns.unbind(1)]
    env = Batched([HostCatch(s["fall"] + 1, s["columns"], source) for source in sources])
    steps = [env.reset(), *(env.step(actions) for actions in x.actions)]
    stacked = {name: torch.stack([getattr(step, name) for step in steps]) for name in Timestep._fields}
    return {name: v.to(x.dtype) if v.is_floating_point() else v for name, v in stacked.items()}


@layer("env/batched_seeds")
def _batched_seeds(x: Tensors, s: Settings) -> dict[str, Any]:
    return {"seeds": torch.tensor(spread_seed(int(x["seed"]), s["B"]))}


def _as_rollout(trajectories: Tensor) -> Rollout:
    """A rollout whose rewards identify it."""
    steps = torch.zeros(trajectories.shape, dtype=torch.long)
    return Rollout(trajectories, steps, trajectories, steps == 0, {"logits": trajectories.unsqueeze(-1)})


@layer("replay/sample")
def _replay_sample(x: Tensors, s: Settings) -> dict[str, Any]:
    buffer = ReplayBuffer(s["capacity"], int(x["seed"]))
    sampled, indices, sizes = [], [], []
    for trajectories in x["trajectories"]:
        buffer.add(_as_rollout(trajectories))
        drawn = buffer.draw(s["G"])
        sampled.append(buffer.take(drawn).rewards)
        indices.append(torch.from_numpy(drawn))
        sizes.append(len(buffer))
    return {"sampled": torch.stack(sampled), "indices": torch.stack(indices), "size": torch.tensor(sizes)}


@layer("eval/accumulate_returns")
def _accumulate_returns(x: Tensors, s: Settings) -> Any:
    return eval_loop.accumulate_returns(x.so_far, x.rewards, x.discounts)
