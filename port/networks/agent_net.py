"""The agent's network: an MLP torso, linear heads, and an LSTM model asked once per action.

Its outputs, the heads, are for a state s and, where there is an action model, for each action a:

- `logits` [A]: the policy pi(. | s).
- `y` [P]: a prediction conditioned on the state. What it predicts is discovered: the meta-network sets its target.
- `z` [P] for each action: a prediction conditioned on state and action, of the same kind.
- `aux_pi` [A] for each action: an auxiliary prediction of the policy one step later, pi(. | s').
- `q` [K] for each action: the action value, as logits over bins of its signed hyperbolic.

All are logits of categorical distributions (Oh et al., Nature 648, 312-319, 2025, doi 10.1038/s41586-025-09761-x).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from port.networks import nets
from port.types import LstmState, Observations, Params

FLAT_HEADS = ("logits", "y")
MODEL_HEADS = ("z", "aux_pi", "q")


def leaves(observations: Observations) -> list[Tensor]:
    """The tensors of an observation; those of a dict by sorted key, as JAX orders a tree."""
    if isinstance(observations, Mapping):
        return [leaf for key in sorted(observations) for leaf in leaves(observations[key])]
    return [observations]


def flatten_observations(observations: Observations, lead: int, like: Tensor) -> Tensor:
    """One row per leading position, in the dtype of `like`: tensors [*I, ...] with `lead` axes I to [N, features]."""
    tensors = leaves(observations)
    if not tensors:
        raise ValueError("The observation holds no tensor.")
    prefix = tensors[0].shape[:lead]
    if any(x.ndim <= lead or x.shape[:lead] != prefix for x in tensors):
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise ValueError(f"Observations must share {lead} leading sizes and have features after them; got {shapes}.")
    flat = [x.reshape(prefix.numel(), -1).to(like.dtype) for x in tensors]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)


def torso(params: Params, flat: Tensor) -> Tensor:
    """Embedding of each state: [N, features] to [N, E].

    Reference: disco_rl/networks/nets.py::MLP._embedding_pass
    """
    features = nets.weight_and_bias(params, "torso/0")[0].shape[0]
    if flat.shape[-1] != features:
        raise ValueError(f"The agent sees {features} numbers; these observations have {flat.shape[-1]}.")
    return nets.mlp(params, "torso", flat)


def embed(params: Params, observations: Observations, lead: int) -> tuple[Tensor, torch.Size]:
    """Embeddings [N, E] of observations [*I, ...] with `lead` leading axes I; and I, whose product is N."""
    weight, _ = nets.weight_and_bias(params, "torso/0")
    flat = flatten_observations(observations, lead, like=weight)
    return torso(params, flat), leaves(observations)[0].shape[:lead]


def root_state(params: Params, embedding: Tensor) -> LstmState:
    """State that the model starts from: [N, E] to two of [N, L].

    Reference: disco_rl/networks/action_models.py::LSTMModel.root_embedding
    """
    cell = nets.linear(params, "model/root", embedding)
    return LstmState(cell.tanh(), cell)


def model_transition(params: Params, root: LstmState) -> Tensor:
    """One LSTM step per action, from one-hot actions: a root state of two [N, L] to [N, A, L].

    A one-hot input picks a row of the input weight, so the hidden state is projected once per state and each action
    adds its row.

    Reference: disco_rl/networks/action_models.py::LSTMModel._model_transition_all_actions
    """
    gates, rows = gates_by_state_and_action(params, root)
    gates = gates.unsqueeze(1) + rows  # [N, A, 4L]
    return nets.lstm_gates(gates, root.cell.unsqueeze(1)).hidden


def gates_by_state_and_action(params: Params, root: LstmState) -> tuple[Tensor, Tensor]:
    """What the root states [N, L] and each action add to the gates of `model_transition`: [N, 4L] and [A, 4L]."""
    weight, bias = nets.weight_and_bias(params, "model/lstm")
    A = weight.shape[0] - root.hidden.shape[-1]
    return torch.addmm(bias, root.hidden, weight[A:]), weight[:A]


def action_model(params: Params, root: LstmState) -> dict[str, Tensor]:
    """Predictions for every action: two of [N, L] to z [N, A, P], aux_pi [N, A, A] and q [N, A, K].

    Reference: disco_rl/networks/action_models.py::LSTMModel.model_step
    """
    transition = model_transition(params, root)
    return {head: nets.mlp(params, f"model/{head}", transition) for head in MODEL_HEADS}


def flat_heads(params: Params) -> list[str]:
    """Names of the heads among the parameters that are given once per state."""
    return [name.split("/")[1] for name in params if name.startswith("heads/") and name.endswith("/w")]


def step(params: Params, observations: Observations, lead: int = 1) -> dict[str, Tensor]:
    """All outputs for observations with `lead` leading axes; which heads there are, the parameters' names say.

    Args:
        params: of the agent.
        observations: [*I, ...], a tensor or a dict of tensors.
        lead: number of leading axes I; 1 for a batch.

    Returns:
        [*I, width] for each flat head: logits, and y or v; where there is an action model, also z [*I, A, P],
        aux_pi [*I, A, A] and q [*I, A, K].

    Reference: disco_rl/networks/nets.py::MLPHeadNet.__call__
    """
    embedding, prefix = embed(params, observations, lead)
    return {head: x.view(*prefix, *x.shape[1:]) for head, x in heads(params, embedding).items()}


def heads(params: Params, embedding: Tensor) -> dict[str, Tensor]:
    """All outputs for embeddings [N, E]: [N, ...] each, as of `step`.

    Reference: disco_rl/networks/nets.py::MLPHeadNet._head_pass
    """
    out = {head: nets.linear(params, f"heads/{head}", embedding) for head in flat_heads(params)}
    if "model/root/w" in params:
        out |= action_model(params, root_state(params, embedding))
    return out


def policy_logits(params: Params, observations: Observations, lead: int = 1) -> Tensor:
    """The policy's logits alone, all that acting needs: observations [*I, ...] to [*I, A].

    Reference: disco_rl/networks/nets.py::MLPHeadNet.__call__
    """
    embedding, prefix = embed(params, observations, lead)
    return nets.linear(params, "heads/logits", embedding).view(*prefix, -1)


def policy(params: Params) -> Callable[[Observations], Tensor]:
    """The policy of these parameters: a function from observations [B, ...] to logits [B, A]."""
    return partial(policy_logits, params)


def unroll(params: Params, observations: Observations) -> dict[str, Tensor]:
    """`step` over time: observations [T+1, B, ...]; the network has no memory.

    Reference: disco_rl/networks/nets.py::MLPHeadNet.unroll
    """
    return step(params, observations, lead=2)
