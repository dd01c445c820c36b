"""The meta-network: from a rollout to targets for the agent's predictions.

An RNN runs over each trajectory in reverse, gated by a second RNN, the meta-RNN, that runs over the agent's life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from port import distributed, input_transforms
from port.distributed import Averaging
from port.fast import parallel, unique_rows
from port.fast.unique_rows import Shared
from port.input_option import NETS, InputOption, TransformConfig
from port.networks import nets
from port.types import LstmState, Outputs, Params, RuleInputs

Built: TypeAlias = Callable[[], tuple[Tensor, Tensor]]  # what `build_inputs` gives


def extract(inputs: RuleInputs, path: str) -> Tensor | Shared:
    """The tensor at `a/b/c`: attribute a of the inputs, key b in it, key c in that.

    Reference: disco_rl/networks/meta_nets.py::_multi_level_extract_by_attr_or_key
    """
    found: Any = inputs
    for depth, key in enumerate(path.split("/")):
        if isinstance(found, Mapping) and key in found:
            found = unique_rows.find(found, key)
        elif depth == 0 and hasattr(found, key):
            found = getattr(found, key)
        else:
            raise KeyError(f"The meta-network reads {path!r}, but its inputs have no {key!r} there.")
    return found


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
        self._known: dict[tuple[str, ...], Tensor | Shared] = {}

    def evaluate(self, feature: TransformConfig, params: Params, scope: str) -> Tensor:
        """Value of a feature, with y_net and z_net taken from `params` under `scope`."""
        steps = (scope + name if name in NETS else name for name in feature.canonical)
        key: tuple[str, ...] = (feature.source,)
        x = self._source(feature, key)
        for name in steps:
            key = (*key, name)
            if key not in self._known:
                is_net = name.removeprefix(scope) in NETS
                self._known[key] = _through(params, name, x) if is_net else self._transform(name, x)
            x = self._known[key]
        return unique_rows.spread(x)

    def evaluate_all(self, wanted: Sequence[TransformConfig], params: Params, scope: str) -> list[Tensor]:
        """Values of features in their order; those with different sources share nothing, and come side by side."""

        def of_source(source: str) -> Iterator[Tensor]:
            return iter([self.evaluate(f, params, scope) for f in wanted if f.source == source])

        sources = dict.fromkeys(f.source for f in wanted)
        found = parallel.side_by_side({source: partial(of_source, source) for source in sources})
        return [next(found[f.source]) for f in wanted]

    def _source(self, feature: TransformConfig, key: tuple[str, ...]) -> Tensor | Shared:
        if key not in self._known:
            x = extract(self.inputs, feature.source)
            self._known[key] = unique_rows.mapped(x, lambda x: x.unsqueeze(-1)) if feature.needs_unit_axis else x
        return self._known[key]

    def _transform(self, name: str, x: Tensor | Shared) -> Tensor | Shared:
        if name in input_transforms.POINTWISE_IN_TIME:
            return unique_rows.mapped(x, lambda x: input_transforms.apply(name, x, self.actions, self.policy))
        return input_transforms.apply(name, unique_rows.spread(x), self.actions, self.policy)


def _through(params: Params, net: str, x: Tensor | Shared) -> Tensor | Shared:
    """What a net makes of every state."""
    return unique_rows.mapped(x, lambda x: nets.mlp(params, net, x))


def build_inputs(features: Features, option: InputOption, params: Params, scope: str = "") -> tuple[Tensor, Tensor]:
    """Input vector of each step, and embedding of each action.

    Args:
        features: of the rollout.
        option: which features.
        params: meta-parameters; the nets used are `scope` + y_net, z_net and policy_net.
        scope: "" for the meta-network, "meta_rnn/" for the meta-RNN.

    Returns:
        [T, B, F], and [T, B, A, C].

    Reference: disco_rl/networks/meta_nets.py::_construct_input
    """
    T, B = features.actions.shape
    A = features.policy.shape[-1]
    values = features.evaluate_all((*option.base, *option.action_conditional), params, scope)
    base = [x.reshape(T, B, -1) for x in values[: len(option.base)]]
    per_action = [x.reshape(T, B, A, -1) for x in values[len(option.base) :]]
    taken = torch.nn.functional.one_hot(features.actions.long(), A).to(features.policy.dtype)  # [T, B, A]
    embedded = nets.conv_net(params, f"{scope}policy_net", torch.cat([*per_action, taken.unsqueeze(-1)], dim=-1))
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
    """All outputs of the meta-network.

    Args:
        params: meta-parameters.
        x: [T, B, H], gated.
        policy_embedding: [T, B, A, C].

    Returns:
        pi [T, B, A], y [T, B, P], z [T, B, P] and meta_input_emb [T, B, 1].

    Reference: disco_rl/networks/meta_nets.py::LSTM.__call__
    """
    return parallel.side_by_side(
        {
            "pi": lambda: policy_target(params, x, policy_embedding),
            "y": lambda: nets.linear(params, "y_head", x),
            "z": lambda: nets.linear(params, "z_head", x),
            "meta_input_emb": lambda: nets.linear(params, "meta_input", x),
        }
    )


def meta_rnn(
    params: Params,
    features: Features,
    option: InputOption,
    outs: Outputs,
    state: LstmState,
    averaging: Averaging | None = None,
    built: Built | None = None,
) -> LstmState:
    """One step of the RNN that runs over the agent's life, on the average over the rollout and over all ranks.

    Args:
        params: meta-parameters.
        features: of the rollout.
        option: which features.
        outs: of the meta-network: y [T, B, P] and meta_input_emb [T, B, 1] are read.
        state: two of [M].
        averaging: over ranks.
        built: gives the inputs, if somebody has begun with them.

    Returns:
        The new state.

    Reference: disco_rl/networks/meta_nets.py::MetaLSTM.unroll
    """
    xs, _ = build_inputs(features, option, params, "meta_rnn/") if built is None else built()
    predicted = nets.mlp(params, "meta_rnn/y_net", outs["y"].softmax(-1))
    xs = torch.cat((xs, outs["meta_input_emb"], predicted), dim=-1)
    embedded = nets.mlp(params, "meta_rnn/embed", xs)  # [T, B, E]
    (seen,) = distributed.averaged(averaging, embedded.mean((0, 1)))  # [E]
    return nets.lstm_step(params, "meta_rnn/lstm", seen, state)


def meta_net(
    params: Params,
    inputs: RuleInputs,
    state: LstmState,
    option: InputOption,
    averaging: Averaging | None = None,
) -> tuple[Outputs, LstmState]:
    """The whole meta-network.

    Args:
        params: meta-parameters.
        inputs: of the rule, with `extra_from_rule` filled in.
        state: of the meta-RNN, two of [M].
        option: which features it reads.
        averaging: over ranks, of what the meta-RNN sees.

    Returns:
        Outputs as of `heads`, and the new state of the meta-RNN.

    Reference: disco_rl/networks/meta_nets.py::LSTM.__call__
    """
    features = Features(inputs)
    xs, policy_embedding = build_inputs(features, option, params)
    rnn_inputs = parallel.meanwhile(partial(build_inputs, features, option, params, "meta_rnn/"))
    x = gate(params, trajectory_rnn(params, xs, inputs.is_terminal), state)
    outs = heads(params, x, policy_embedding)
    return outs, meta_rnn(params, features, option, outs, state, averaging, rnn_inputs)
