"""Names and shapes of all parameters, in the original's (Haiku's) names, from the settings alone.

These are the names under which Disco103 is published, so that is what a layer's `params/...` and `meta_params/...`
inputs are called, whatever an implementation calls them inside.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from parity.layers.spec import Settings, Spec

Shapes = dict[str, tuple[int, ...]]

AGENT: Settings = {
    "A": 3,
    "P": 7,
    "K": 11,
    "obs": (4, 3, 1),
    "dense": (10, 9),
    "head_mlp_hiddens": (6,),
    "lstm_size": 5,
}
META: Settings = {
    "P": 7,
    "H": 8,
    "M": 6,
    "embedding_size": (4, 1),
    "policy_channels": (4, 2),
    "policy_target_channels": (4,),
    "meta_policy_channels": (4, 2),
    "meta_embedding_size": (5,),
    "meta_pred_embedding_size": (4, 1),
}
FULL_SIZE: Settings = {
    "P": 600,
    "K": 601,
    "obs": (8, 8, 1),
    "dense": (512, 512),
    "head_mlp_hiddens": (128,),
    "lstm_size": 128,
    "H": 256,
    "M": 128,
    "embedding_size": (16, 1),
    "policy_channels": (16, 2),
    "policy_target_channels": (16,),
    "meta_policy_channels": (16, 2),
    "meta_embedding_size": (16,),
    "meta_pred_embedding_size": (16, 1),
}


def linear(name: str, fan_in: int, fan_out: int) -> Shapes:
    """A dense layer: `w` is [in, out]."""
    return {f"{name}/w": (fan_in, fan_out), f"{name}/b": (fan_out,)}


def mlp(name: str, sizes: Sequence[int]) -> Shapes:
    """Dense layers `name/~/linear_0`, `linear_1`, ... through the given widths, the input's first."""
    shapes: Shapes = {}
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        shapes |= linear(f"{name}/~/linear_{i}", fan_in, fan_out)
    return shapes


def conv_net(name: str, channels_in: int, channels: Sequence[int]) -> Shapes:
    """1x1 convolutions, each on its input beside the input's mean over the actions."""
    shapes: Shapes = {}
    for i, channels_out in enumerate(channels):
        suffix = f"_{i}" if i else ""
        shapes[f"{name}/conv1_d{suffix}/w"] = (1, 2 * channels_in, channels_out)
        shapes[f"{name}/conv1_d{suffix}/b"] = (channels_out,)
        channels_in = channels_out
    return shapes


def torso(s: Settings) -> Shapes:
    """The agent's torso."""
    return mlp("mlp/~_embedding_pass/torso", (math.prod(s["obs"]), *s["dense"]))


def torso_heads(width: int, first: int, second: int) -> Shapes:
    """The two heads on the torso: the policy's, and that of y or of the value."""
    root = "mlp/~_head_pass/torso_head"
    return mlp(root, (width, first)) | mlp(f"{root}_1", (width, second))


def action_model(s: Settings) -> Shapes:
    """The action-conditional model: root embedding, LSTM step on each action, heads z, aux_pi and q."""
    width = s["lstm_size"]
    shapes = linear("mlp/linear", s["dense"][-1], width)
    shapes |= linear("mlp/action_cond/linear", s["A"] + width, 4 * width)
    for name, size_out in (("mlp/mlp", s["P"]), ("mlp/mlp_1", s["A"]), ("mlp/mlp_2", s["K"])):
        shapes |= mlp(name, (width, *s["head_mlp_hiddens"], size_out))
    return shapes


def agent(s: Settings) -> Shapes:
    """The whole agent network."""
    return torso(s) | torso_heads(s["dense"][-1], s["A"], s["P"]) | action_model(s)


def action_channels(embedding: int) -> int:
    """Channels of the action-conditional input: three policies, two z, q and two advantages, the action taken."""
    return 3 + 2 * embedding + 3 + 1


def features(embedding: int, channels: int) -> int:
    """Width of the meta-network's input vector: 9 scalars, y and z of both networks, two policy embeddings."""
    return 9 + 14 * embedding + 2 * channels


def meta_inputs(s: Settings) -> Shapes:
    """The nets that embed predictions and policies for the trajectory RNN."""
    shapes = mlp("lstm/mlp", (s["P"], *s["embedding_size"]))
    shapes |= mlp("lstm/mlp_1", (s["P"], *s["embedding_size"]))
    return shapes | conv_net("lstm/sequential", action_channels(s["embedding_size"][-1]), s["policy_channels"])


def trajectory_rnn(s: Settings) -> Shapes:
    """The LSTM that runs backwards over the trajectory."""
    width = features(s["embedding_size"][-1], s["policy_channels"][-1])
    return linear("lstm/lstm/linear", width + s["H"], 4 * s["H"])


def gate(s: Settings) -> Shapes:
    """The gate by the meta-RNN's output."""
    return linear("lstm/linear", s["M"], s["H"])


def meta_heads(s: Settings) -> Shapes:
    """The embedding for the meta-RNN, the targets y and z, and the policy target."""
    shapes = linear("lstm/linear_1", s["H"], 1)
    shapes |= linear("lstm/linear_2", s["H"], s["P"]) | linear("lstm/linear_3", s["H"], s["P"])
    shapes |= conv_net("lstm/sequential_1", s["H"] + s["policy_channels"][-1], s["policy_target_channels"])
    return shapes | linear("lstm/linear_4", s["policy_target_channels"][-1], 1)


def meta_rnn(s: Settings) -> Shapes:
    """The LSTM that runs over the agent's lifetime, with its own input nets."""
    root, embedding = "lstm/~/meta_lstm/~unroll", s["meta_pred_embedding_size"][-1]
    shapes = mlp(f"{root}/mlp", (s["P"], *s["meta_pred_embedding_size"]))
    shapes |= mlp(f"{root}/mlp_1", (s["P"], *s["meta_pred_embedding_size"]))
    shapes |= conv_net(f"{root}/sequential", action_channels(embedding), s["meta_policy_channels"])
    width = features(embedding, s["meta_policy_channels"][-1]) + 1 + embedding
    shapes |= mlp(f"{root}/mlp_2", (width, *s["meta_embedding_size"]))
    return shapes | linear(f"{root}/lstm/linear", s["meta_embedding_size"][-1] + s["M"], 4 * s["M"])


def meta(s: Settings) -> Shapes:
    """The whole meta-network."""
    return meta_inputs(s) | trajectory_rnn(s) | gate(s) | meta_heads(s) | meta_rnn(s)


def tree(prefix: str, shapes: Shapes, **options: Any) -> dict[str, Spec]:
    """Specs of arrays in the shapes of parameters."""
    return {f"{prefix}/{name}": Spec(shape, **options) for name, shape in shapes.items()}


def specs(prefix: str, shapes: Shapes, differentiable: bool = True) -> dict[str, Spec]:
    """Specs of parameters: weights of variance 1 / fan-in; biases are not zero, so that a lost one shows.

    Biases of the few convolution channels are positive, so that a ReLU does not hide all that lies before it.
    """

    def spec(name: str, shape: tuple[int, ...]) -> Spec:
        if len(shape) > 1:
            return Spec(tuple(shape), differentiable=differentiable, scale=1.0 / math.sqrt(shape[-2]))
        if "conv1_d" in name:
            return Spec(tuple(shape), differentiable=differentiable, draw="positive", scale=0.7)
        return Spec(tuple(shape), differentiable=differentiable, scale=0.1)

    return {f"{prefix}/{name}": spec(name, shape) for name, shape in shapes.items()}
