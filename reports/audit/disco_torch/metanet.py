"""The meta-network of `disco-torch` and its parts as layers.

The parts have no functions of their own: the package's forward pass runs as it is, with what comes before a part held
at the recorded values.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from disco_torch import load_weights, meta_net, transforms, update_rule
from torch import Tensor, nn

from parity.adapters.torch import graft, layer_name
from parity.layers import params
from reports.audit.disco_torch.inputs import LayerFn, Settings, Tensors, rollout

ROOT = "lstm/~/meta_lstm/~unroll"
TABLE = {
    "y_net": "lstm/mlp/~/linear_{i}",
    "z_net": "lstm/mlp_1/~/linear_{i}",
    "policy_net": "lstm/sequential/conv1_d{_i}",
    "trajectory_rnn": "lstm/lstm/linear",
    "state_gate": "lstm/linear",
    "meta_input_head": "lstm/linear_1",
    "y_head": "lstm/linear_2",
    "z_head": "lstm/linear_3",
    "pi_conv": "lstm/sequential_1/conv1_d{_i}",
    "pi_head": "lstm/linear_4",
    "meta_rnn_y_net": f"{ROOT}/mlp/~/linear_{{i}}",
    "meta_rnn_z_net": f"{ROOT}/mlp_1/~/linear_{{i}}",
    "meta_rnn_policy_net": f"{ROOT}/sequential/conv1_d{{_i}}",
    "meta_rnn_input_mlp": f"{ROOT}/mlp_2/~/linear_{{i}}",
    "meta_rnn_cell": f"{ROOT}/lstm/linear",
}


def is_full_size(s: Settings) -> bool:
    """Whether the package's own sizes are asked for."""
    return all(tuple(np.atleast_1d(s[k])) == tuple(np.atleast_1d(params.FULL_SIZE[k])) for k in params.META)


def build(s: Settings) -> meta_net.DiscoMetaNet:
    """The package's meta-network, its building blocks at the sizes of the case."""
    net = meta_net.DiscoMetaNet(update_rule.get_input_option(), prediction_size=s["P"])
    if not is_full_size(s):
        shapes = params.meta(dict(s))
        for path, original in TABLE.items():
            names = dict.fromkeys(f"{layer_name(original, i)}/w" for i in range(len(shapes)))
            stack = [shapes[name] for name in names if name in shapes]
            setattr(net, path, _rebuilt(getattr(net, path), stack))
    return net


def _rebuilt(part: nn.Module, stack: list[tuple[int, ...]]) -> nn.Module:
    """A part of the network for weights of these shapes."""
    inputs, widths = stack[0][-2], [shape[-1] for shape in stack]
    if isinstance(part, nn.Linear):
        return nn.Linear(inputs, widths[0])
    if isinstance(part, meta_net.Conv1dNet):
        return meta_net.Conv1dNet(inputs // 2, widths)
    if isinstance(part, meta_net.ResetLSTM | meta_net.HaikuLSTMCell):
        hidden = widths[0] // 4
        return type(part)(inputs - hidden, hidden)
    return meta_net.BatchMLP(inputs, widths)


def load_with_its_loader(net: meta_net.DiscoMetaNet, weights: dict[str, Tensor]) -> meta_net.DiscoMetaNet:
    """Puts weights in place by the package's own `load_disco103_weights`, from a file as it expects one."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "weights.npz"
        np.savez(path, **{name: value.detach().to(torch.float32).numpy() for name, value in weights.items()})  # type: ignore[arg-type]
        load_weights.load_disco103_weights(SimpleNamespace(meta_net=net), path)
    return net


def network(x: Tensors, s: Settings) -> meta_net.DiscoMetaNet:
    """The meta-network with the weights among the inputs, and zeros for those that a layer does not have.

    At its own sizes it is loaded by its own loader, unless gradients are asked for.
    """
    net, given = build(s), x.under("meta_params")
    shapes = params.meta(dict(s))
    if is_full_size(s) and given.keys() == shapes.keys() and not any(w.requires_grad for w in given.values()):
        return load_with_its_loader(net, given)
    return graft(net, TABLE, {name: torch.zeros(shape) for name, shape in shapes.items()} | given)


def hold(part: nn.Module, value: Tensor) -> None:
    """Makes a part of the network answer with a recorded value, whatever comes in."""
    part.forward = lambda *unused, **named: value


def blank(s: Settings, dtype: torch.dtype) -> Tensors:
    """Experience for a forward pass of which only a later part is looked at."""
    T, B, A, P = s["T"], s["B"], s["A"], s["P"]
    shapes = {"logits": (T + 1, B, A), "y": (T + 1, B, P), "z": (T + 1, B, A, P)}
    shapes = {f"{of}_out/{name}": shape for of in ("agent", "target", "behaviour") for name, shape in shapes.items()}
    shapes |= {"v_scalar": (T + 1, B), "adv": (T, B), "normalized_adv": (T, B)}
    shapes |= dict.fromkeys(("q", "qv_adv", "normalized_qv_adv"), (T + 1, B, A))
    zeros = {name: torch.zeros(shape) for name, shape in shapes.items()}
    return Tensors(zeros | {"actions": torch.zeros(T + 1, B, dtype=torch.int64)}, dtype)


def memory(x: Tensors, prefix: str = "") -> tuple[Tensor, Tensor]:
    """The meta-RNN's state among the inputs, a pair as the package has it."""
    return x[f"{prefix}rnn_state/0"], x[f"{prefix}rnn_state/1"]


def no_memory(s: Settings) -> tuple[Tensor, Tensor]:
    """The meta-RNN's state where it starts."""
    return torch.zeros(s["M"]), torch.zeros(s["M"])


def _inputs(x: Tensors, s: Settings) -> Any:
    net = network(x, s)
    nets = {name: getattr(net, name) for name in ("y_net", "z_net", "policy_net")}
    return transforms.construct_input(rollout(x), net.input_option, **nets)


def _gate(x: Tensors, s: Settings) -> Any:
    net, seen = network(x, s), []
    hold(net.trajectory_rnn, x.x)
    net.meta_input_head.register_forward_pre_hook(lambda part, arguments: seen.append(arguments[0]))
    net(rollout(blank(s, x.dtype)), (x["rnn_state/0"], no_memory(s)[1]))
    return seen[0]


def _heads(x: Tensors, s: Settings) -> Any:
    net = network(x, s)
    hold(net.trajectory_rnn, x.x)
    hold(net.policy_net, x.policy_emb)
    hold(net.state_gate, torch.ones(s["H"]))
    return net(rollout(blank(s, x.dtype)), no_memory(s))[0]


def _meta_rnn(x: Tensors, s: Settings) -> Any:
    net = network(x, s)
    hold(net.y_head, x["meta_out/y"])
    hold(net.meta_input_head, x["meta_out/meta_input_emb"])
    return net(rollout(x), memory(x))[1]


def _whole(x: Tensors, s: Settings) -> Any:
    outs, state = network(x, s)(rollout(x), memory(x))
    return {**outs, "rnn_state": state}


def _lstm_step(x: Tensors, s: Settings) -> Any:
    return graft(meta_net.HaikuLSTMCell(s["E"], s["H"]), {"": ""}, x)(x.x, (x.hidden, x.cell))


def _unroll(xs: Tensor, is_terminal: Tensor, w: Tensor, b: Tensor) -> Any:
    """The LSTM that resets, backwards over time."""
    rnn = graft(meta_net.ResetLSTM(xs.shape[-1], w.shape[1] // 4), {"": ""}, {"w": w, "b": b})
    return rnn(xs, is_terminal.to(xs.dtype), True)


def _trajectory_rnn(x: Tensors, s: Settings) -> Any:
    w, b = (x[f"meta_params/lstm/lstm/linear/{kind}"] for kind in "wb")
    return _unroll(x.x, x.is_terminal, w, b)


LAYERS: dict[str, LayerFn] = {  # the package has no initialisation of its own for the meta-network
    "nets/mlp": lambda x, s: graft(meta_net.BatchMLP(s["E"], s["sizes"]), {"": "mlp/~/linear_{i}"}, x.under("params"))(
        x.x
    ),
    "nets/conv_block": lambda x, s: graft(meta_net.Conv1dBlock(s["C"], s["E"]), {"": ""}, x)(x.x),
    "nets/lstm_step": _lstm_step,
    "nets/unroll": lambda x, s: _unroll(**x),
    "meta/inputs": _inputs,
    "meta/trajectory_rnn": _trajectory_rnn,
    "meta/gate": _gate,
    "meta/heads": _heads,
    "meta/rnn": _meta_rnn,
    "meta/whole": _whole,
}
