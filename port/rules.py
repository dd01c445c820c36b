"""The update rules that an agent can learn by."""

from __future__ import annotations

from port.actor_critic import ActorCritic
from port.config import (
    ActorCriticConfig,
    ActorCriticHyperParams,
    AgentConfig,
    DiscoConfig,
    HyperParams,
    PolicyGradientConfig,
)
from port.disco import Disco
from port.policy_gradient import PolicyGradient
from port.update_rule import UpdateRule


def make(config: AgentConfig) -> UpdateRule:
    """The rule that an agent's configuration names by the types of `rule` and `hyper`.

    Reference: disco_rl/agent.py::Agent.__init__
    """
    match config.rule, config.hyper:
        case DiscoConfig() as rule, HyperParams() as hyper:
            return Disco(hyper, rule, config.meta_net)
        case ActorCriticConfig() as rule, ActorCriticHyperParams() as hyper:
            return ActorCritic(hyper, rule)
        case PolicyGradientConfig() as rule, None:
            return PolicyGradient(rule)
    raise ValueError(f"No update rule goes by {config.rule} and {config.hyper}.")
