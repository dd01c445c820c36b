"""Layers: linear, MLP, the permutation-equivariant convolution, LSTM.

Parameters are a flat dict; a layer finds its own under a prefix (`torso/0/w`), and the number of layers is read off the
names. Linear weights are [in, out].
"""

from __future__ import annotations

import torch
from torch import Tensor

from port.types import LstmState, Params


def linear(params: Params, prefix: str, x: Tensor) -> Tensor:
    """Computes x @ w + b: [..., in] to [..., out].

    Reference: haiku/_src/basic.py::Linear.__call__
    """
    weight, bias = weight_and_bias(params, prefix)
    if x.shape[-1] != weight.shape[0]:
        raise ValueError(f"Layer {prefix!r} takes {weight.shape[0]} features; got a tensor of {tuple(x.shape)}.")
    flat = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight)
    return flat.view(*x.shape[:-1], weight.shape[1])


def weight_and_bias(params: Params, prefix: str) -> tuple[Tensor, Tensor]:
    """The two tensors of a layer, or KeyError."""
    try:
        return params[f"{prefix}/w"], params[f"{prefix}/b"]
    except KeyError as missing:
        raise KeyError(f"The parameters lack {missing}; load or initialise them with the same configuration.") from None


def depth(params: Params, prefix: str) -> int:
    """Number of layers `prefix/0`, `prefix/1`, ... among the parameters."""
    layers = 0
    while f"{prefix}/{layers}/w" in params:
        layers += 1
    return layers


def mlp(params: Params, prefix: str, x: Tensor) -> Tensor:
    """Linear layers with a ReLU between them, none after the last: [..., in] to [..., out].

    Reference: haiku/_src/nets/mlp.py::MLP.__call__
    """
    for i in range(depth(params, prefix)):
        x = linear(params, f"{prefix}/{i}", x.relu() if i else x)
    return x


def conv_block(params: Params, prefix: str, x: Tensor, of_state: Tensor | None = None) -> Tensor:
    """Mixes each action's features with their mean over actions, so that the order of actions does not matter.

    The weight [1, 2C, C'] of the width-1 convolution is a matrix: its upper half meets the features, its lower half the
    mean, which therefore goes through once per state and not once per action. Features that all actions of a state
    share are their own mean, and go through once per state too.

    Args:
        params: holds `prefix/w` [1, 2C, C'] and `prefix/b` [C'].
        prefix: name of the layer.
        x: [T, B, A, C], or the last of these C features where there are some `of_state`.
        of_state: [T, B, S], the first S features of every action.

    Returns:
        [T, B, A, C'].

    Reference: disco_rl/networks/meta_nets.py::_conv1d_block
    """
    weight, bias = weight_and_bias(params, prefix)
    S = 0 if of_state is None else of_state.shape[-1]
    C = S + x.shape[-1]
    if weight.shape[-2] != 2 * C:
        raise ValueError(f"Layer {prefix!r} takes {weight.shape[-2] // 2} channels; got {C} of {tuple(x.shape)}.")
    action_weight, mean_weight = weight.reshape(2 * C, -1).split(C)
    by_state = x.mean(2, keepdim=True) @ mean_weight[S:] + bias  # [T, B, 1, C']
    if of_state is not None:
        by_state = by_state + (of_state @ (action_weight[:S] + mean_weight[:S])).unsqueeze(2)
    return (x @ action_weight[S:] + by_state).relu()


def conv_net(params: Params, prefix: str, x: Tensor, of_state: Tensor | None = None) -> Tensor:
    """Conv blocks one after the other: [T, B, A, C] to [T, B, A, C']; `of_state` as in `conv_block`, for the first.

    Reference: disco_rl/networks/meta_nets.py::_conv1d_net
    """
    for i in range(depth(params, prefix)):
        x = conv_block(params, f"{prefix}/{i}", x, None if i else of_state)
    return x


def lstm_gates(gates: Tensor, cell: Tensor) -> LstmState:
    """New state from pre-activations [..., 4H], in the order input, candidate, forget, output, and the cell [..., H].

    The forget gate gets 1 added, so that a fresh LSTM remembers.

    Reference: haiku/_src/recurrent.py::LSTM.__call__
    """
    write, candidate, forget, read = gates.chunk(4, dim=-1)
    cell = (forget + 1).sigmoid() * cell + write.sigmoid() * candidate.tanh()
    return LstmState(read.sigmoid() * cell.tanh(), cell)


def lstm_step(params: Params, prefix: str, x: Tensor, state: LstmState) -> LstmState:
    """One step of an LSTM whose weight [in + H, 4H] stacks input on hidden rows: [..., in] to a state of [..., H].

    Reference: haiku/_src/recurrent.py::LSTM.__call__
    """
    return lstm_gates(linear(params, prefix, torch.cat((x, state.hidden), dim=-1)), state.cell)


def lstm_unroll(params: Params, prefix: str, xs: Tensor, should_reset: Tensor, reverse: bool = False) -> Tensor:
    """Runs an LSTM from zeros over a sequence [T, B, in]: hidden states [T, B, H], in the order of `xs`.

    Where `should_reset` [T, B] is set, the state is zero before the step. With `reverse` it runs from the last step to
    the first. The weight `prefix/w` [in + H, 4H] stacks input on hidden rows.

    Reference: haiku/_src/recurrent.py::ResetCore.__call__
    """
    weight, bias = weight_and_bias(params, prefix)
    T, B, features = xs.shape
    H = weight.shape[1] // 4
    if weight.shape[0] != features + H or should_reset.shape != (T, B):
        raise ValueError(
            f"LSTM {prefix!r} takes {weight.shape[0] - H} features and resets of [T, B]; "
            f"got tensors of {tuple(xs.shape)} and {tuple(should_reset.shape)}."
        )
    from_input = torch.addmm(bias, xs.reshape(T * B, features), weight[:features]).view(T, B, 4 * H)
    recurrent = weight[features:]
    resets = should_reset.bool().unsqueeze(-1)  # [T, B, 1]
    state = LstmState(xs.new_zeros(B, H), xs.new_zeros(B, H))
    hiddens = []
    for t in reversed(range(T)) if reverse else range(T):
        hidden, cell = (x.masked_fill(resets[t], 0.0) for x in state)
        state = lstm_gates(torch.addmm(from_input[t], hidden, recurrent), cell)
        hiddens.append(state.hidden)
    return torch.stack(hiddens[::-1] if reverse else hiddens)
