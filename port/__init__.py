"""A PyTorch port of DeepMind's DiscoRL: the discovered update rule, the two others beside it, and the agent.

agent = port.Agent(port.AgentConfig(), obs_spec=(8, 8, 1), num_actions=3)
meta_params = port.load_npz("disco_103.npz")
state = agent.initial_learner_state(torch.Generator().manual_seed(0), torch.float32)
state, logs = agent.learner_step(rollout, state, meta_params)
"""

import port.fast.omp  # noqa: F401 - before torch is loaded
from port.agent import Agent
from port.config import (
    ActorCriticConfig,
    ActorCriticHyperParams,
    AgentConfig,
    AgentNetConfig,
    DiscoConfig,
    HyperParams,
    MetaNetConfig,
    MetaRnnConfig,
    PolicyGradientConfig,
    get_settings_actor_critic,
    get_settings_disco,
    rule_config,
)
from port.input_option import InputOption, TransformConfig, disco_input_option
from port.network import MlpNetwork, ModuleNetwork, Network, WithHeads, init_agent_params
from port.networks.init import init_meta_params
from port.train import CatchWorld, GymWorld, Report, Step, StepFunctions, TrainConfig, Trainer, World, load_rule
from port.types import (
    ActorCriticState,
    ActorTimestep,
    AdamState,
    EmaState,
    Heads,
    LearnerState,
    LstmState,
    MetaState,
    Rollout,
    RuleInputs,
    Timestep,
    ValueOuts,
)
from port.update_rules.base import UpdateRule
from port.weights import load_agent_params, load_npz, save_agent_params, save_npz

__all__ = [
    "ActorCriticConfig",
    "ActorCriticHyperParams",
    "ActorCriticState",
    "ActorTimestep",
    "AdamState",
    "Agent",
    "AgentConfig",
    "AgentNetConfig",
    "CatchWorld",
    "DiscoConfig",
    "EmaState",
    "GymWorld",
    "Heads",
    "HyperParams",
    "InputOption",
    "LearnerState",
    "LstmState",
    "MetaNetConfig",
    "MetaRnnConfig",
    "MetaState",
    "MlpNetwork",
    "ModuleNetwork",
    "Network",
    "PolicyGradientConfig",
    "Report",
    "Rollout",
    "RuleInputs",
    "Step",
    "StepFunctions",
    "Timestep",
    "TrainConfig",
    "Trainer",
    "TransformConfig",
    "UpdateRule",
    "ValueOuts",
    "WithHeads",
    "World",
    "disco_input_option",
    "get_settings_actor_critic",
    "get_settings_disco",
    "init_agent_params",
    "init_meta_params",
    "load_agent_params",
    "load_npz",
    "load_rule",
    "rule_config",
    "save_agent_params",
    "save_npz",
]
