"""A learner step on one of several ranks, each with a rollout of its own: for threads and processes alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from port import Agent, config, trees
from port.config import AgentConfig
from port.distributed import Averaging
from port.networks import init
from port.types import LearnerState, Params, Rollout

OBS, A = (5,), 3
NET = config.AgentNetConfig(dense=(6,), head_mlp_hiddens=(4,), lstm_size=3)
META = config.MetaNetConfig(
    prediction_size=4,
    hidden_size=5,
    embedding_size=(3, 1),
    policy_channels=(2,),
    policy_target_channels=(2,),
    meta_rnn=config.MetaRnnConfig(policy_channels=(2,), embedding_size=(3,), pred_embedding_size=(2, 1), hidden_size=3),
)


def agent_config(rule: str = "disco") -> AgentConfig:
    if rule == "actor_critic":
        return replace(config.get_settings_actor_critic(), net=NET)
    settings = config.get_settings_disco()
    return replace(settings, net=NET, meta_net=META, rule=replace(settings.rule, num_bins=7, max_abs_value=4.0))


def rollout(seed: int, B: int = 2, T: int = 3) -> Rollout:
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    actions = torch.randint(0, A, (T + 1, B), generator=source)
    going_on = torch.ones(T + 1, B, dtype=torch.bool)
    return Rollout(normal(T + 1, B, *OBS), actions, normal(T + 1, B), going_on, {"logits": normal(T + 1, B, A)})


def both(first: Rollout, second: Rollout) -> Rollout:
    """Two rollouts in one batch."""
    names = ("observations", "actions", "rewards", "discounts")
    fields = {name: torch.cat((getattr(first, name), getattr(second, name)), dim=1) for name in names}
    logits = torch.cat((first.agent_outs["logits"], second.agent_outs["logits"]), dim=1)
    return Rollout(**fields, agent_outs={"logits": logits})


def start(agent: Agent, rule: str = "disco") -> tuple[LearnerState, Params | None]:
    source = torch.Generator().manual_seed(7)
    state = agent.initial_learner_state(source, torch.float64)
    if rule == "actor_critic":
        return state, None
    return state, init.init_meta_params(META, source, torch.float64)


def learner_step(averaging: Averaging, steps: int = 2) -> dict[str, np.ndarray]:
    """Some learner steps on this rank, and the gradient of what comes out for the meta-parameters."""
    agent = Agent(agent_config(), OBS, A, averaging=averaging)
    state, meta_params = start(agent)
    assert meta_params is not None
    tracked = {name: p.requires_grad_() for name, p in meta_params.items()}
    for i in range(steps):
        state, logs = agent.learner_step(rollout(10 * averaging.rank + i), state, tracked, is_meta_training=True)
    loss = sum((x.square().sum() * (averaging.rank + 1) for x in state.params.values()), torch.zeros(()))
    loss = loss + state.meta_state.rnn_state.hidden.sum()
    grads = torch.autograd.grad(loss, list(tracked.values()), allow_unused=True, materialize_grads=True)
    found = trees.flatten({"state": state, "grads": dict(zip(tracked, grads, strict=True))})
    found["loss"] = logs["total_loss"]
    return {name: x.detach().numpy() for name, x in found.items()}
