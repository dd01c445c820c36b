"""A rule that is small enough to train by in a blink, for the tests of the trainer."""

import torch

from port.config import AgentConfig, AgentNetConfig, DiscoConfig, MetaNetConfig, MetaRnnConfig
from port.networks.init import init_meta_params
from port.train import TrainConfig

META = MetaNetConfig(
    prediction_size=5,
    hidden_size=6,
    embedding_size=(4, 1),
    policy_channels=(3, 2),
    policy_target_channels=(4,),
    meta_rnn=MetaRnnConfig((3, 2), (4,), (4, 1), 7),
)
AGENT = AgentConfig(
    learning_rate=0.01,
    rule=DiscoConfig(num_bins=7, max_abs_value=3.0),
    meta_net=META,
    net=AgentNetConfig(dense=(8,), head_mlp_hiddens=(4,), lstm_size=4),
)
CONFIG = TrainConfig(batch_size=4, rollout_length=6, capacity=16, checkpoint_every=3)


def meta_params(dtype=torch.float32):
    """Random weights of the rule."""
    return init_meta_params(META, torch.Generator().manual_seed(0), dtype)


def same(ours, theirs):
    """Whether two dicts of tensors are the same bits."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
