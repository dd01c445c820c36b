"""The meta-network of `disco-torch` and its parts as layers.

The parts have no functions of their own: the package's forward pass runs as it is, with what comes before a part held
at the recorded values.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from disco_torch import load_weights, meta_net, transforms, update_rule
from torch import Tensor, nn
from torch.func import functional_call

from parity.layers import params
from reports.audit.disco_torch.inputs import Settings, Tensors, below, rollout, under

ROOT = "lstm/~/meta_lstm/~unroll"
MLPS = {"y_net": "lstm/mlp", "z_net": "lstm/mlp_1", "meta_rnn_y_net": f"{ROOT}/mlp", "meta_rnn_z_net": f"{ROOT}/mlp_1"}
CONVS = {"policy_net": "lstm/sequential", "pi_conv": "lstm/sequential_1", "meta_rnn_policy_net": f"{ROOT}/sequential"}
LINEARS = {
    "trajectory_rnn.cell.linear": "lstm/lstm/linear",
    "state_gate": "lstm/linear",
    "meta_input_head": "lstm/linear_1",
    "y_head": "lstm/linear_2",
    "z_head": "lstm/linear_3",
    "pi_head": "lstm/linear_4",
    "meta_rnn_cell.linear": f"{ROOT}/lstm/linear",
}


def linear(theirs: str, w: Tensor, b: Tensor) -> Tensors:
    """A dense layer's weights in torch's layout."""
    return {f"{theirs}.weight": w.T, f"{theirs}.bias": b}


def mlp(theirs: str, original: str, given: Tensors) -> Tensors:
    """A `BatchMLP`'s weights: dense layers at the even places of its sequence."""
    count = sum(name.startswith(f"{original}/~/linear_") and name.endswith("/w") for name in given)
    found: Tensors = {}
    for i in range(count):
        name = f"{original}/~/linear_{i}"
        found |= linear(f"{theirs}.net.{2 * i}", given[f"{name}/w"], given[f"{name}/b"])
    return found


def conv_net(theirs: str, original: str, given: Tensors) -> Tensors:
    """A `Conv1dNet`'s weights."""
    found: Tensors = {}
    i = 0
    while (name := f"{original}/conv1_d{f'_{i}' if i else ''}") + "/w" in given:
        found[f"{theirs}.blocks.{i}.conv.weight"] = given[f"{name}/w"].permute(2, 1, 0)
        found[f"{theirs}.blocks.{i}.conv.bias"] = given[f"{name}/b"]
        i += 1
    return found


def weights(given: Tensors, net: meta_net.DiscoMetaNet) -> Tensors:
    """Meta-parameters in the package's names, as many as there are."""
    found: Tensors = {}
    for theirs, original in MLPS.items():
        found |= mlp(theirs, original, given)
    for theirs, original in CONVS.items():
        found |= conv_net(theirs, original, given)
    for theirs, original in LINEARS.items():
        if f"{original}/w" in given:
            found |= linear(theirs, given[f"{original}/w"], given[f"{original}/b"])
    embedding = mlp("meta_rnn_input_mlp", f"{ROOT}/mlp_2", given)
    if isinstance(net.meta_rnn_input_mlp, nn.Sequential):
        embedding = {name.replace(".net.", "."): value for name, value in embedding.items()}
    return found | embedding


def is_full_size(s: Settings) -> bool:
    """Whether the package's own sizes are asked for."""
    return all(tuple(np.atleast_1d(s[k])) == tuple(np.atleast_1d(params.FULL_SIZE[k])) for k in params.META)


def build(s: Settings) -> meta_net.DiscoMetaNet:
    """The package's meta-network, its building blocks at the sizes of the case."""
    net = meta_net.DiscoMetaNet(update_rule.get_input_option(), prediction_size=s["P"])
    if is_full_size(s):
        return net
    P, H, M = s["P"], s["H"], s["M"]
    embedding, channels = s["embedding_size"], s["policy_channels"]
    meta_embedding, meta_channels = s["meta_pred_embedding_size"], s["meta_policy_channels"]
    width = params.features(embedding[-1], channels[-1])
    meta_width = params.features(meta_embedding[-1], meta_channels[-1]) + 1 + meta_embedding[-1]
    net.y_net, net.z_net = (meta_net.BatchMLP(P, embedding) for _ in range(2))
    net.policy_net = meta_net.Conv1dNet(params.action_channels(embedding[-1]), channels)
    net.trajectory_rnn = meta_net.ResetLSTM(input_size=width, hidden_size=H)
    net.state_gate, net.meta_input_head = nn.Linear(M, H), nn.Linear(H, 1)
    net.y_head, net.z_head = nn.Linear(H, P), nn.Linear(H, P)
    net.pi_conv = meta_net.Conv1dNet(H + channels[-1], s["policy_target_channels"])
    net.pi_head = nn.Linear(s["policy_target_channels"][-1], 1)
    net.meta_rnn_y_net, net.meta_rnn_z_net = (meta_net.BatchMLP(P, meta_embedding) for _ in range(2))
    net.meta_rnn_policy_net = meta_net.Conv1dNet(params.action_channels(meta_embedding[-1]), meta_channels)
    net.meta_rnn_input_mlp = meta_net.BatchMLP(meta_width, s["meta_embedding_size"])
    net.meta_rnn_cell = meta_net.HaikuLSTMCell(s["meta_embedding_size"][-1], M)
    return net


class Given(nn.Module):
    """Stands in for a part of the network and answers with recorded values."""

    def __init__(self, value: Tensor):
        super().__init__()
        self.value = value

    def forward(self, *unused: Any, **named: Any) -> Tensor:
        """The recorded value, whatever comes in."""
        return self.value


class Tap(nn.Module):
    """Keeps what a part of the network was given."""

    def __init__(self, part: nn.Module):
        super().__init__()
        self.part = part
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Passes the input on."""
        self.seen = x
        return self.part(x)


class WithWeights(nn.Module):
    """A network with given weights that gradients may be asked for."""

    def __init__(self, net: meta_net.DiscoMetaNet, given: Tensors):
        super().__init__()
        self.net = net
        self.given = weights(given, net)

    def forward(self, *arguments: Any) -> Any:
        """The network's own forward pass."""
        return functional_call(self.net, self.given, arguments)


def load_with_its_loader(net: meta_net.DiscoMetaNet, given: Tensors) -> meta_net.DiscoMetaNet:
    """Puts weights in place by the package's own `load_disco103_weights`, from a file as it expects one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "weights.npz"
        np.savez(path, **{name: value.detach().to(torch.float32).numpy() for name, value in given.items()})  # type: ignore[arg-type]
        load_weights.load_disco103_weights(SimpleNamespace(meta_net=net), path)
    return net


def network(x: Tensors, s: Settings) -> nn.Module:
    """The meta-network with the weights among the inputs; at its own sizes it is loaded by its own loader."""
    net, given = build(s), under("meta_params", x)
    is_complete = len(given) == len(params.meta(dict(s)))
    if is_full_size(s) and is_complete and not any(value.requires_grad for value in given.values()):
        return load_with_its_loader(net, given)
    return WithWeights(net, given)


def blank(s: Settings) -> Tensors:
    """Experience for a forward pass of which only a later part is looked at."""
    T, B, A, P = s["T"], s["B"], s["A"], s["P"]
    heads = {"logits": torch.zeros(T + 1, B, A), "y": torch.zeros(T + 1, B, P), "z": torch.zeros(T + 1, B, A, P)}
    states, actions = torch.zeros(T + 1, B), torch.zeros(T + 1, B, A)
    return {
        **below("agent_out", heads),
        **below("target_out", heads),
        "behaviour_out/logits": heads["logits"],
        **{"v_scalar": states, "adv": states[1:], "normalized_adv": states[1:]},
        **{"q": actions, "qv_adv": actions, "normalized_qv_adv": actions},
    }


def no_memory(s: Settings) -> tuple[Tensor, Tensor]:
    """The meta-RNN's state where it starts."""
    return torch.zeros(s["M"]), torch.zeros(s["M"])


def _inputs(x: Tensors, s: Settings) -> Tensors:
    net, given = build(s), under("meta_params", x)

    def part(name: str, found: Tensors) -> Callable[[Tensor], Tensor]:
        own = {key[len(name) + 1 :]: value for key, value in found.items()}
        return lambda value: functional_call(getattr(net, name), own, (value,))

    vector, embedding = transforms.construct_input(
        rollout(x, s),
        net.input_option,
        y_net=part("y_net", mlp("y_net", MLPS["y_net"], given)),
        z_net=part("z_net", mlp("z_net", MLPS["z_net"], given)),
        policy_net=part("policy_net", conv_net("policy_net", CONVS["policy_net"], given)),
    )
    return {"x": vector, "policy_emb": embedding}


def unroll(x: Tensor, is_terminal: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The LSTM that resets, backwards over time."""
    H = w.shape[1] // 4
    rnn = meta_net.ResetLSTM(x.shape[-1], H)
    return functional_call(rnn, linear("cell.linear", w, b), (x, is_terminal.to(x.dtype), True))


def _gate(x: Tensors, s: Settings) -> Tensors:
    net = build(s)
    tap = Tap(net.meta_input_head)
    net.trajectory_rnn, net.meta_input_head = Given(x["x"]), tap
    WithWeights(net, under("meta_params", x))(rollout(blank(s), s), (x["rnn/hidden"], torch.zeros(s["M"])))
    assert tap.seen is not None
    return {"x": tap.seen}


def _heads(x: Tensors, s: Settings) -> Tensors:
    net = build(s)
    net.trajectory_rnn, net.policy_net = Given(x["x"]), Given(x["policy_emb"])
    net.state_gate = Given(torch.ones(s["H"]))
    outs, _ = WithWeights(net, under("meta_params", x))(rollout(blank(s), s), no_memory(s))
    return outs


def _meta_rnn(x: Tensors, s: Settings) -> Tensors:
    net = build(s)
    net.y_head, net.meta_input_head = Given(x["meta_out/y"]), Given(x["meta_out/meta_input_emb"])
    state = x["rnn/hidden"], x["rnn/cell"]
    _, (hidden, cell) = WithWeights(net, under("meta_params", x))(rollout(x, s), state)
    return {"rnn/hidden": hidden, "rnn/cell": cell}


def _whole(x: Tensors, s: Settings) -> Tensors:
    outs, (hidden, cell) = network(x, s)(rollout(x, s), (x["rnn/hidden"], x["rnn/cell"]))
    return {**outs, "rnn/hidden": hidden, "rnn/cell": cell}


def _mlp(x: Tensors, s: Settings) -> Tensors:
    found = mlp("mlp", "mlp", under("params", x))
    own = {name.removeprefix("mlp."): value for name, value in found.items()}
    return {"out": functional_call(meta_net.BatchMLP(s["E"], s["sizes"]), own, (x["x"],))}


def _conv_block(x: Tensors, s: Settings) -> Tensors:
    own = {"conv.weight": x["w"].permute(2, 1, 0), "conv.bias": x["b"]}
    return {"out": functional_call(meta_net.Conv1dBlock(s["C"], s["E"]), own, (x["x"],))}


def _lstm_step(x: Tensors, s: Settings) -> Tensors:
    cell = meta_net.HaikuLSTMCell(s["E"], s["H"])
    hidden, state = functional_call(cell, linear("linear", x["w"], x["b"]), (x["x"], (x["hidden"], x["cell"])))
    return {"hidden": hidden, "cell": state}


def _trajectory_rnn(x: Tensors, s: Settings) -> Tensors:
    given = under("meta_params", x)
    return {"x": unroll(x["x"], x["is_terminal"], given["lstm/lstm/linear/w"], given["lstm/lstm/linear/b"])}


def layers() -> dict[str, Callable[[Tensors, Settings], Tensors]]:
    """The layers of this module; the package has no initialisation of its own for the meta-network."""
    return {
        "nets/mlp": _mlp,
        "nets/conv_block": _conv_block,
        "nets/lstm_step": _lstm_step,
        "nets/unroll": lambda x, s: {"hidden": unroll(x["xs"], x["is_terminal"], x["w"], x["b"])},
        "meta/inputs": _inputs,
        "meta/trajectory_rnn": _trajectory_rnn,
        "meta/gate": _gate,
        "meta/heads": _heads,
        "meta/rnn": _meta_rnn,
        "meta/whole": _whole,
    }
