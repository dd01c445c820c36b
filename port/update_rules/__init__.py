"""The update rules that an agent can learn by."""

from __future__ import annotations

from port.config import (
    ActorCriticConfig,
    ActorCriticHyperParams,
    AgentConfig,
    DiscoConfig,
    HyperParams,
    PolicyGradientConfig,
)
from port.distributed import Averaging
from port.networks import agent_net
from port.update_rules.actor_critic import ActorCritic
from port.update_rules.base import UpdateRule
from port.update_rules.disco import Disco, UnrollFn
from port.update_rules.policy_gradient import PolicyGradient


def make(config: AgentConfig, unroll: UnrollFn = agent_net.unroll, averaging: Averaging | None = None) -> UpdateRule:
    """The rule that an agent's configuration names by the types of `rule` and `hyper`.

    Args:
        config: of the agent.
        unroll: the agent's network, from parameters and observations [T+1, B, ...] to outputs.
        averaging: over ranks, if there are several.

    Reference: disco_rl/agent.py::Agent.__init__
    """
    match config.rule, config.hyper:
        case DiscoConfig() as rule, HyperParams() as hyper:
            return Disco(hyper, rule, config.meta_net, unroll, averaging)
        case ActorCriticConfig() as rule, ActorCriticHyperParams() as hyper:
            return ActorCritic(hyper, rule, averaging)
        case PolicyGradientConfig() as rule, None:
            return PolicyGradient(rule)
    raise ValueError(f"No update rule goes by {config.rule} and {config.hyper}.")
