"""The meta-network: from a rollout to targets for the agent's predictions.

An RNN runs over each trajectory in reverse, gated by a second RNN, the meta-RNN, that runs over the agent's lifetime.
It gives a target for each prediction whose meaning is discovered: the policy `pi`, and the vectors `y` and `z`
(`port.networks.agent_net`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from port import distributed, input_transforms
from port.distributed import Averaging
from port.input_option import NETS, InputOption, TransformConfig
from port.networks import nets
from port.types import LstmState, Outputs, Params, RuleInputs


def extract(inputs: RuleInputs, path: str) -> Any:
    """The tensor at `a/b/c`: attribute a of the inputs, key b in it, key c in that.

    Reference: disco_rl/networks/meta_nets.py::_multi_level_extract_by_attr_or_key
    """
    value: Any = inputs
    for depth, key in enumerate(path.split("/")):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif depth == 0 and hasattr(value, key):
            value = getattr(value, key)
        else:
            raise KeyError(f"The meta-network reads {path!r}, but its inputs have no {key!r} there.")
    return value


class Features:
    """Evaluates features of one rollout, each shared part once.

    Two chains with the same source share their common beginning, across the meta-network and its meta-RNN as long as no
    network has been applied; from there on, as long as it is the same network.
    """

    def __init__(self, inputs: RuleInputs) -> None:
        """Takes the inputs of one rollout."""
        self.inputs = inputs
        self.actions = inputs.actions[:-1]  # [T, B]
        self.policy = inputs.agent_out["logits"].detach().softmax(-1)  # [T+1, B, A]
        self._known: dict[tuple[str, ...], Tensor] = {}

    def evaluate(self, feature: TransformConfig, params: Params, scope: str) -> Tensor:
        """Value of a feature, with y_net and z_net taken from `params` under `scope`."""
        steps = (scope + name if name in NETS else name for name in feature.canonical)
        key: tuple[str, ...] = (feature.source,)
        if key not in self._known:
            self._known[key] = self.source(feature)
        x = self._known[key]
        for name in steps:
            key = (*key, name)
            if key not in self._known:
                is_net = name.removeprefix(scope) in NETS
                self._known[key] = self.network(params, name, x) if is_net else self.transform(name, x)
            x = self._known[key]
        return x

    def evaluate_all(self, features: Sequence[TransformConfig], params: Params, scope: str) -> list[Tensor]:
        """Values of features in their order."""
        return [self.evaluate(feature, params, scope) for feature in features]

    def source(self, feature: TransformConfig) -> Tensor:
        """What a feature starts from."""
        x: Tensor = extract(self.inputs, feature.source)
        return x.unsqueeze(-1) if feature.needs_unit_axis else x

    def network(self, params: Params, name: str, x: Tensor) -> Tensor:
        """One of the networks in a chain."""
        return nets.mlp(params, name, x)

    def transform(self, name: str, x: Tensor) -> Tensor:
        """One of the named transforms in a chain."""
        return input_transforms.apply(name, x, self.actions, self.policy)


def build_inputs(features: Features, option: InputOption, params: Params, scope: str = "") -> tuple[Tensor, Tensor]:
    """Input vector of each step [T, B, F], and embedding of each action [T, B, A, C].

    The nets are `scope` + y_net, z_net and policy_net, where the scope is "" or, for the meta-RNN, "meta_rnn/".

    Reference: disco_rl/networks/meta_nets.py::_construct_input
    """
    T, B = features.actions.shape
    A = features.policy.shape[-1]
    values = features.evaluate_all((*option.base, *option.action_conditional), params, scope)
    base = [x.reshape(T, B, -1) for x in values[: len(option.base)]]
    per_action = [x.reshape(T, B, A, -1) for x in values[len(option.base) :]]
    is_taken = torch.nn.functional.one_hot(features.actions.long(), A).to(features.policy.dtype)  # [T, B, A]
    embedded = nets.conv_net(params, f"{scope}policy_net", torch.cat([*per_action, is_taken.unsqueeze(-1)], dim=-1))
    summaries = [embedded.mean(2), input_transforms.select_action(embedded, features.actions)]  # [T, B, C] each
    return torch.cat(base + summaries, dim=-1), embedded


def trajectory_rnn(params: Params, xs: Tensor, is_terminal: Tensor) -> Tensor:
    """Runs backwards over each trajectory, starting over at terminal transitions: [T, B, F] to [T, B, H].

    Reference: disco_rl/networks/meta_nets.py::LSTM.__call__
    """
    return nets.lstm_unroll(params, "trajectory_lstm", xs, is_terminal, reverse=True)


def gate(params: Params, x: Tensor, rnn_state: LstmState) -> Tensor:
    """Scales each of the H features by what the meta-RNN makes of it: [T, B, H] and a state of [M] to [T, B, H].

    Reference: disco_rl/networks/meta_nets.py::_multiplicative_interaction
    """
    return x * nets.linear(params, "gate", rnn_state.hidden)


def policy_target(params: Params, x: Tensor, policy_embedding: Tensor) -> Tensor:
    """Logits of the policy target: [T, B, H] and [T, B, A, C] to [T, B, A].

    Reference: disco_rl/networks/meta_nets.py::LSTM.__call__
    """
    mixed = nets.conv_net(params, "pi_net", policy_embedding, of_state=x)
    return nets.linear(params, "pi_head", mixed).squeeze(-1)


def heads(params: Params, x: Tensor, policy_embedding: Tensor) -> Outputs:
    """All outputs of the meta-network, from gated x [T, B, H] and each action's embedding [T, B, A, C].

    Returns:
        pi [T, B, A], y [T, B, P], z [T, B, P] and meta_input_emb [T, B, 1].

    Reference: disco_rl/networks/meta_nets.py::LSTM.__call__
    """
    return {
        "pi": policy_target(params, x, policy_embedding),
        "y": nets.linear(params, "y_head", x),
        "z": nets.linear(params, "z_head", x),
        "meta_input_emb": nets.linear(params, "meta_input", x),
    }


def meta_rnn_inputs(features: Features, option: InputOption, params: Params) -> Tensor:
    """`build_inputs` by the meta-RNN's own nets: [T, B, F].

    Reference: disco_rl/networks/meta_nets.py::_construct_input
    """
    return build_inputs(features, option, params, "meta_rnn/")[0]


def meta_rnn(
    params: Params, xs: Tensor, outs: Outputs, state: LstmState, averaging: Averaging | None = None
) -> LstmState:
    """One step of the RNN that runs over the agent's lifetime, on the average over the rollout and over all ranks.

    It reads `xs` [T, B, F], from `meta_rnn_inputs`, and the targets y [T, B, P] and meta_input_emb [T, B, 1].

    Reference: disco_rl/networks/meta_nets.py::MetaLSTM.unroll
    """
    predicted = nets.mlp(params, "meta_rnn/y_net", outs["y"].softmax(-1))
    xs = torch.cat((xs, outs["meta_input_emb"], predicted), dim=-1)
    embedded = nets.mlp(params, "meta_rnn/embed", xs)  # [T, B, E]
    (mean_embedding,) = distributed.averaged(averaging, embedded.mean((0, 1)))  # [E]
    return nets.lstm_step(params, "meta_rnn/lstm", mean_embedding, state)


def meta_net(
    params: Params,
    inputs: RuleInputs,
    state: LstmState,
    option: InputOption,
    averaging: Averaging | None = None,
) -> tuple[Outputs, LstmState]:
    """The whole meta-network: the outputs of `heads`, and the new state of the meta-RNN.

    Reference: disco_rl/networks/meta_nets.py::LSTM.__call__
    """
    features = Features(inputs)
    xs, policy_embedding = build_inputs(features, option, params)
    x = gate(params, trajectory_rnn(params, xs, inputs.is_terminal), state)
    outs = heads(params, x, policy_embedding)
    return outs, meta_rnn(params, meta_rnn_inputs(features, option, params), outs, state, averaging)
