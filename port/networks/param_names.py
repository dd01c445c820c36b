"""Parameter names and shapes: ours, and what the original's Haiku modules call them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from port.config import AgentNetConfig, MetaNetConfig, MetaRnnConfig
from port.networks.agent_net import FLAT_HEADS, MODEL_HEADS
from port.types import Heads, Params

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = dict[str, Shape]
ObsSpec: TypeAlias = Shape | Mapping[str, Any]

_META_RNN = "lstm/~/meta_lstm/~unroll"

# Our layer, or stack of layers, and the original's module; "{i}" counts the layers of a stack.
_META_MODULES = {
    "y_net": "lstm/mlp/~/linear_{i}",
    "z_net": "lstm/mlp_1/~/linear_{i}",
    "policy_net": "lstm/sequential/conv1_d{_i}",
    "trajectory_lstm": "lstm/lstm/linear",
    "gate": "lstm/linear",
    "meta_input": "lstm/linear_1",
    "y_head": "lstm/linear_2",
    "z_head": "lstm/linear_3",
    "pi_net": "lstm/sequential_1/conv1_d{_i}",
    "pi_head": "lstm/linear_4",
    "meta_rnn/y_net": f"{_META_RNN}/mlp/~/linear_{{i}}",
    "meta_rnn/z_net": f"{_META_RNN}/mlp_1/~/linear_{{i}}",
    "meta_rnn/policy_net": f"{_META_RNN}/sequential/conv1_d{{_i}}",
    "meta_rnn/embed": f"{_META_RNN}/mlp_2/~/linear_{{i}}",
    "meta_rnn/lstm": f"{_META_RNN}/lstm/linear",
}

# The original makes flat heads in sorted order and model heads in the order of its specification. No rule has y and v.
_AGENT_MODULES = {
    "torso": "mlp/~_embedding_pass/torso/~/linear_{i}",
    "heads/logits": "mlp/~_head_pass/torso_head/~/linear_0",
    "heads/y": "mlp/~_head_pass/torso_head_1/~/linear_0",
    "heads/v": "mlp/~_head_pass/torso_head_1/~/linear_0",
    "model/root": "mlp/linear",
    "model/lstm": "mlp/action_cond/linear",
    "model/z": "mlp/mlp/~/linear_{i}",
    "model/aux_pi": "mlp/mlp_1/~/linear_{i}",
    "model/q": "mlp/mlp_2/~/linear_{i}",
}

_VALUE_MODULES = {
    "torso": "value_fn/~_embedding_pass/torso/~/linear_{i}",
    "heads/value": "value_fn/~_head_pass/torso_head/~/linear_0",
}


def _translate(ours: Iterable[str], modules: Mapping[str, str]) -> dict[str, str]:
    """Maps `stack/i/w` or `layer/w` to the original's name."""
    table = {}
    for name in ours:
        layer, _, kind = name.rpartition("/")
        stack, _, index = layer.rpartition("/")
        if layer in modules:
            original = modules[layer]
        else:
            original = modules[stack].replace("{i}", index).replace("{_i}", f"_{index}" if int(index) else "")
        table[name] = f"{original}/{kind}"
    return table


def _dense(shapes: Shapes, name: str, inputs: int, outputs: int) -> int:
    shapes[f"{name}/w"], shapes[f"{name}/b"] = (inputs, outputs), (outputs,)
    return outputs


def _mlp(shapes: Shapes, name: str, *sizes: int) -> int:
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        _dense(shapes, f"{name}/{i}", inputs, outputs)
    return sizes[-1]


def _convs(shapes: Shapes, name: str, *channels: int) -> int:
    for i, (inputs, outputs) in enumerate(pairwise(channels)):
        shapes[f"{name}/{i}/w"], shapes[f"{name}/{i}/b"] = (1, 2 * inputs, outputs), (outputs,)
    return channels[-1]


def observation_size(spec: ObsSpec) -> int:
    """Number of features of one observation, given its shape or a dict of shapes."""
    if isinstance(spec, Mapping):
        return sum(observation_size(spec[key]) for key in spec)
    return math.prod(spec)


def agent_shapes(net: AgentNetConfig, features: int, num_actions: int, heads: Heads) -> Shapes:
    """Shapes of the agent's parameters by our names, in the order in which the network uses them."""
    shapes: Shapes = {}
    L = net.lstm_size
    embedding = _mlp(shapes, "torso", features, *net.dense)
    for head, width in heads.flat.items():
        _dense(shapes, f"heads/{head}", embedding, width)
    if heads.model:
        _dense(shapes, "model/root", embedding, L)
        _dense(shapes, "model/lstm", num_actions + L, 4 * L)
    for head, width in heads.model.items():
        _mlp(shapes, f"model/{head}", L, *net.head_mlp_hiddens, width)
    return shapes


def meta_shapes(config: MetaNetConfig) -> Shapes:
    """Shapes of the meta-parameters by our names, in the order in which the network uses them."""
    shapes: Shapes = {}
    P, H, rnn = config.prediction_size, config.hidden_size, config.meta_rnn
    M = rnn.hidden_size
    embedding, policy = config.embedding_size[-1], config.policy_channels[-1]
    for net in ("y_net", "z_net"):
        if config.inputs.uses(net):
            _mlp(shapes, net, P, *config.embedding_size)
    _convs(shapes, "policy_net", config.action_features(embedding), *config.policy_channels)
    _dense(shapes, "trajectory_lstm", config.step_features(embedding, policy) + H, 4 * H)
    _dense(shapes, "gate", M, H)
    meta_input = _dense(shapes, "meta_input", H, 1)
    _dense(shapes, "y_head", H, P)
    _dense(shapes, "z_head", H, P)
    _dense(shapes, "pi_head", _convs(shapes, "pi_net", H + policy, *config.policy_target_channels), 1)

    embedding, policy = rnn.pred_embedding_size[-1], rnn.policy_channels[-1]
    _mlp(shapes, "meta_rnn/y_net", P, *rnn.pred_embedding_size)
    if config.inputs.uses("z_net"):
        _mlp(shapes, "meta_rnn/z_net", P, *rnn.pred_embedding_size)
    _convs(shapes, "meta_rnn/policy_net", config.action_features(embedding), *rnn.policy_channels)
    features = config.step_features(embedding, policy) + meta_input + embedding
    embedded = _mlp(shapes, "meta_rnn/embed", features, *rnn.embedding_size)
    _dense(shapes, "meta_rnn/lstm", embedded + M, 4 * M)
    return shapes


def agent_names(net: AgentNetConfig, heads: Heads | None = None) -> dict[str, str]:
    """The original's flat name of each agent parameter; of an agent with Disco's heads if none are given."""
    # Names depend on depths alone, so any sizes will do.
    heads = heads or Heads(dict.fromkeys(FLAT_HEADS, 1), dict.fromkeys(MODEL_HEADS, 1))
    return _translate(agent_shapes(net, 1, 1, heads), _AGENT_MODULES)


def meta_names(config: MetaNetConfig) -> dict[str, str]:
    """The original's flat name of each meta-parameter."""
    return _translate(meta_shapes(config), _META_MODULES)


def _stack_weight(stack: str, layer: int) -> str:
    """The original's name of the weights of one layer of a stack of the meta-network."""
    (name,) = _translate([f"{stack}/{layer}/w"], _META_MODULES).values()
    return name


def _widths(arrays: Mapping[str, Shape], stack: str) -> tuple[int, ...]:
    """Outputs of each layer of a stack, read off the original's names and shapes."""
    widths: list[int] = []
    while arrays.get(name := _stack_weight(stack, len(widths))):
        widths.append(arrays[name][-1])
    return tuple(widths)


def meta_config_of(arrays: Mapping[str, Shape]) -> MetaNetConfig:
    """The sizes of a meta-network with Disco103's inputs, from the shapes of its weights under the original's names."""
    single = {layer: f"{_META_MODULES[layer]}/w" for layer in ("gate", "y_head")}
    stacks = {name: _widths(arrays, name) for name in ("y_net", "policy_net", "pi_net")}
    rnn = {name: _widths(arrays, f"meta_rnn/{name}") for name in ("y_net", "policy_net", "embed")}
    missing = [name for name in single.values() if len(arrays.get(name, ())) != 2]
    missing += [_stack_weight(name, 0) for name in stacks if not stacks[name]]
    missing += [_stack_weight(f"meta_rnn/{name}", 0) for name in rnn if not rnn[name]]
    if missing:
        raise ValueError(f"These are not the weights of a Disco meta-network: {missing[0]} is missing, or no layer's.")
    meta_hidden, hidden = arrays[single["gate"]]
    return MetaNetConfig(
        prediction_size=arrays[single["y_head"]][1],
        hidden_size=hidden,
        embedding_size=stacks["y_net"],
        policy_channels=stacks["policy_net"],
        policy_target_channels=stacks["pi_net"],
        meta_rnn=MetaRnnConfig(rnn["policy_net"], rnn["embed"], rnn["y_net"], meta_hidden),
    )


def check_shapes(params: Params, shapes: Shapes, what: str) -> None:
    """Raises ValueError unless the parameters have exactly these names and shapes."""
    if params.keys() != shapes.keys():
        lacking, extra = (sorted(a.keys() - b.keys()) for a, b in ((shapes, params), (params, shapes)))
        parts = [f"{label} {', '.join(names)}" for label, names in (("lack", lacking), ("also have", extra)) if names]
        raise ValueError(f"The {what} are not for this configuration: they {'; they '.join(parts)}.")
    for name, shape in shapes.items():
        if params[name].shape != shape:
            got = tuple(params[name].shape)
            raise ValueError(f"The {what} are not for this configuration: {name} must be {shape}; got {got}.")


def value_shapes(dense: Sequence[int], features: int) -> Shapes:
    """Shapes of the parameters of meta-training's value function, by our names."""
    shapes: Shapes = {}
    _dense(shapes, "heads/value", _mlp(shapes, "torso", features, *dense), 1)
    return shapes


def value_names(dense: Sequence[int]) -> dict[str, str]:
    """The original's flat name of each parameter of the value function."""
    return _translate(value_shapes(dense, 1), _VALUE_MODULES)
