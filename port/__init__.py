"""A PyTorch port of DeepMind's DiscoRL update rule.

agent = port.Agent(port.AgentConfig(), obs_spec=(8, 8, 1), num_actions=3)
meta_params = port.load_npz("disco_103.npz")
state = agent.initial_learner_state(torch.Generator().manual_seed(0), torch.float32)
state, logs = agent.learner_step(rollout, state, meta_params)
"""

from port.agent import Agent
from port.config import AgentConfig, AgentNetConfig, DiscoConfig, HyperParams, MetaNetConfig, MetaRnnConfig
from port.init import init_agent_params, init_meta_params
from port.input_option import InputOption, TransformConfig, disco_input_option
from port.types import (
    ActorTimestep,
    AdamState,
    EmaState,
    LearnerState,
    LstmState,
    MetaState,
    Rollout,
    RuleInputs,
    Timestep,
    ValueOuts,
)
from port.weights import load_agent_params, load_npz, save_agent_params, save_npz

__all__ = [
    "ActorTimestep",
    "AdamState",
    "Agent",
    "AgentConfig",
    "AgentNetConfig",
    "DiscoConfig",
    "EmaState",
    "HyperParams",
    "InputOption",
    "LearnerState",
    "LstmState",
    "MetaNetConfig",
    "MetaRnnConfig",
    "MetaState",
    "Rollout",
    "RuleInputs",
    "Timestep",
    "TransformConfig",
    "ValueOuts",
    "disco_input_option",
    "init_agent_params",
    "init_meta_params",
    "load_agent_params",
    "load_npz",
    "save_agent_params",
    "save_npz",
]
