"""The agent's network: an MLP torso, linear heads, and an LSTM model asked once per action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from port.fast import parallel, unique_rows
from port.networks import nets
from port.types import LstmState, Observations, Outputs, Params

FLAT_HEADS = ("logits", "y")
MODEL_HEADS = ("z", "aux_pi", "q")


def leaves(observations: Observations) -> list[Tensor]:
    """The tensors of an observation; those of a dict by sorted key, as JAX orders a tree."""
    if isinstance(observations, Mapping):
        return [leaf for key in sorted(observations) for leaf in leaves(observations[key])]
    return [observations]


def flatten_observations(observations: Observations, lead: int, like: Tensor) -> Tensor:
    """One row per leading position.

    Args:
        observations: tensors [*I, ...].
        lead: number of leading axes I.
        like: gives the dtype.

    Returns:
        [N, features], where N is the product of the leading sizes.
    """
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
    return nets.mlp(params, "torso", flat)


def root_state(params: Params, embedding: Tensor) -> LstmState:
    """State that the model starts from: [N, E] to two of [N, L].

    Reference: disco_rl/networks/action_models.py::LSTMModel.root_embedding
    """
    cell = nets.linear(params, "model/root", embedding)
    return LstmState(cell.tanh(), cell)


def model_transition(params: Params, root: LstmState) -> Tensor:
    """One LSTM step per action, from one-hot actions.

    A one-hot input picks a row of the input weight, so the hidden state is projected once per state and each action
    adds its row.

    Args:
        params: holds `model/lstm/w` [A + L, 4L].
        root: two of [N, L].

    Returns:
        [N, A, L].

    Reference: disco_rl/networks/action_models.py::LSTMModel._model_transition_all_actions
    """
    gates, rows = _gates_by_state_and_action(params, root)
    gates = gates.unsqueeze(1) + rows  # [N, A, 4L]
    return nets.lstm_gates(gates, root.cell.unsqueeze(1)).hidden


def _gates_by_state_and_action(params: Params, root: LstmState) -> tuple[Tensor, Tensor]:
    """What the root states [N, L] and each action add to the gates: [N, 4L] and [A, 4L]."""
    weight, bias = nets.weight_and_bias(params, "model/lstm")
    A = weight.shape[0] - root.hidden.shape[-1]
    return torch.addmm(bias, root.hidden, weight[A:]), weight[:A]


def action_model(params: Params, root: LstmState) -> dict[str, Tensor]:
    """Predictions for every action: two of [N, L] to z [N, A, P], aux_pi [N, A, A] and q [N, A, K].

    Reference: disco_rl/networks/action_models.py::LSTMModel.model_step
    """
    transition = model_transition(params, root)
    return {head: nets.mlp(params, f"model/{head}", transition) for head in MODEL_HEADS}


def taken_model(params: Params, root: LstmState, actions: Tensor) -> dict[str, Tensor]:
    """`action_model` for one action of each state: two of [N, L] and [N] to z [N, P], aux_pi [N, A] and q [N, K].

    Reference: disco_rl/networks/action_models.py::LSTMModel.model_step
    """
    gates, rows = _gates_by_state_and_action(params, root)
    transition = nets.lstm_gates(gates + rows.index_select(0, actions), root.cell).hidden
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
    weight, _ = nets.weight_and_bias(params, "heads/logits")
    prefix = leaves(observations)[0].shape[:lead]
    embedding = torso(params, flatten_observations(observations, lead, like=weight))
    out = heads(params, embedding)
    return {head: x.view(*prefix, *x.shape[1:]) for head, x in out.items()}


def heads(params: Params, embedding: Tensor) -> dict[str, Tensor]:
    """All outputs for embeddings [N, E]: [N, ...] each, as of `step`.

    Reference: disco_rl/networks/nets.py::MLPHeadNet._head_pass
    """
    out = {head: nets.linear(params, f"heads/{head}", embedding) for head in flat_heads(params)}
    if "model/root/w" in params:
        out |= action_model(params, root_state(params, embedding))
    return out


def policy(params: Params) -> Callable[[Observations], Tensor]:
    """The policy alone, all that acting needs: a function from observations [B, ...] to logits [B, A].

    Layers are looked up once, because with few environments looking them up takes as long as using them.

    Reference: disco_rl/networks/nets.py::MLPHeadNet.__call__
    """
    first, *others = [nets.weight_and_bias(params, f"torso/{i}") for i in range(nets.depth(params, "torso"))]
    head_weight, head_bias = nets.weight_and_bias(params, "heads/logits")

    def logits(observations: Observations) -> Tensor:
        x = flatten_observations(observations, 1, like=head_weight)
        if x.shape[-1] != first[0].shape[0]:
            raise ValueError(f"The agent sees {first[0].shape[0]} numbers; these observations have {x.shape[-1]}.")
        x = torch.addmm(first[1], x, first[0])
        for weight, bias in others:
            x = torch.addmm(bias, x.relu(), weight)
        return torch.addmm(head_bias, x, head_weight)

    return logits


def policy_logits(params: Params, observations: Observations, lead: int = 1) -> Tensor:
    """The policy's logits alone, for observations with `lead` leading axes: [*I, ...] to [*I, A].

    Reference: disco_rl/networks/nets.py::MLPHeadNet.__call__
    """
    weight, _ = nets.weight_and_bias(params, "heads/logits")
    prefix = leaves(observations)[0].shape[:lead]
    embedding = torso(params, flatten_observations(observations, lead, like=weight))
    return nets.linear(params, "heads/logits", embedding).view(*prefix, -1)


def all_rows(params: Params, flat: Tensor) -> dict[str, Tensor]:
    """All outputs for flat observations [U, features]: [U, ...] each, as of `step`."""
    return heads(params, torso(params, flat))


def rows_to_learn(params: Params, flat: Tensor, state: Tensor, action: Tensor) -> tuple[Outputs, Outputs, Outputs]:
    """Outputs for flat observations [U, features], with a graph only of what Disco's loss reads.

    All actions' predictions are there, but no graph of them is kept: the actions taken are predicted once more, with
    one. That costs a third of the model's forward pass (with 3 actions) and saves two thirds of its backward pass.

    Args:
        params: of an agent with an action model.
        flat: [U, features].
        state: [V], rows of `flat` in which an action was taken.
        action: [V], which.

    Returns:
        Flat heads [U, width] with a graph; z, aux_pi and q [U, A, width] without; these three [V, width] with one.

    Reference: disco_rl/networks/nets.py::MLPHeadNet.unroll
    """
    embedding = torso(params, flat)
    root = root_state(params, embedding)
    by_state = {head: nets.linear(params, f"heads/{head}", embedding) for head in flat_heads(params)}
    with torch.no_grad():
        every = action_model(params, LstmState(*(x.detach() for x in root)))
    taken = taken_model(params, LstmState(*(x.index_select(0, state) for x in root)), action)
    return by_state, every, taken


class Passes(NamedTuple):
    """The two passes over rows of observations, which can be compiled; what stands around them cannot."""

    all_rows: Callable[[Params, Tensor], Outputs] = all_rows
    rows_to_learn: Callable[[Params, Tensor, Tensor, Tensor], tuple[Outputs, Outputs, Outputs]] = rows_to_learn


EAGER = Passes()


def unroll(params: Params, observations: Observations, passes: Passes = EAGER) -> Outputs:
    """`step` over time: observations [T+1, B, ...]; the network has no memory.

    Where no graph is kept, states that show the same share their outputs (`port.fast.unique_rows`).

    Reference: disco_rl/networks/nets.py::MLPHeadNet.unroll
    """
    if torch.is_grad_enabled():
        return step(params, observations, lead=2)
    flat, kinds, lead = _different(params, observations)
    parts = parallel.parts(flat) if passes is EAGER else [slice(None)]
    done = parallel.side_by_side({i: partial(passes.all_rows, params, flat[part]) for i, part in enumerate(parts)})
    return _over_time(_joined(list(done.values())), kinds, lead)


def _joined(parts: Sequence[Outputs]) -> Outputs:
    """Outputs of parts of the rows, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return parallel.side_by_side({head: partial(torch.cat, [part[head] for part in parts]) for head in parts[0]})


def _different(params: Params, observations: Observations) -> tuple[Tensor, unique_rows.Kinds | None, tuple[int, int]]:
    """The rows [U, features] that a network has to be asked for, which states [(T+1) B] share them, and T+1 and B."""
    weight, _ = nets.weight_and_bias(params, "heads/logits")
    steps, batch = leaves(observations)[0].shape[:2]
    flat = flatten_observations(observations, 2, like=weight)
    kinds = unique_rows.kinds(flat)
    return flat if kinds is None else flat.index_select(0, kinds.first), kinds, (steps, batch)


def _over_time(rows: Outputs, kinds: unique_rows.Kinds | None, lead: tuple[int, int]) -> Outputs:
    """Outputs [U, ...] for all states: [T+1, B, ...]."""
    if kinds is None:
        return {head: x.unflatten(0, lead) for head, x in rows.items()}
    return unique_rows.SharedOutputs({head: unique_rows.over_time(x, kinds.of, lead) for head, x in rows.items()})


class Learned(unique_rows.SharedOutputs):
    """What a loss learns on, [T, B, width] by head; computed, and differentiated, in parts side by side."""

    def __init__(self, parts: Sequence[Outputs], by_state: Tensor, by_pair: Tensor, lead: tuple[int, int]) -> None:
        """Takes the rows of each part with their graphs, and which row each state is, by itself and with its action."""
        self._parts = parts
        rows = {head: torch.cat([part[head].detach() for part in parts]).requires_grad_() for head in parts[0]}
        of = {head: by_pair if head in MODEL_HEADS else by_state for head in rows}
        super().__init__({head: unique_rows.over_time(x, of[head], lead) for head, x in rows.items()})
        self._rows = rows

    def grads(self, total: Tensor, params: Params) -> Params:
        """The gradient of a loss of these outputs."""
        heads = list(self._rows)
        wanted = torch.autograd.grad(total, list(self._rows.values()))
        by_head = [x.split([len(part[h]) for part in self._parts]) for h, x in zip(heads, wanted, strict=True)]
        shares = zip(*by_head, strict=True)

        def carry(part: Outputs, share: Sequence[Tensor]) -> Sequence[Tensor]:
            return torch.autograd.grad([part[head] for head in heads], list(params.values()), share)

        works = {i: partial(carry, *given) for i, given in enumerate(zip(self._parts, shares, strict=True))}
        found = list(parallel.side_by_side(works).values())
        return {name: _sum(grads) for name, grads in zip(params, zip(*found, strict=True), strict=True)}


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total, *others = tensors
    for other in others:
        total = total.add_(other)
    return total


def unroll_learning(
    params: Params, observations: Observations, actions: Tensor, passes: Passes = EAGER
) -> tuple[Outputs, Learned]:
    """`unroll` for a loss that reads of the action model only what it says of the actions taken.

    Args:
        params: of an agent with an action model.
        observations: [T+1, B, ...].
        actions: [T+1, B].
        passes: over rows.

    Returns:
        All outputs as of `unroll`, without a graph; and what the loss learns on, with one, [T, B, width] each: the flat
        heads, and z, aux_pi and q for the actions taken, as states share them. The bootstrap step is not learned on.

    Reference: disco_rl/networks/nets.py::MLPHeadNet.unroll
    """
    flat, kinds, (steps, batch) = _different(params, observations)
    taken = actions[:-1].reshape(-1).to(flat.device, torch.long)  # [T B]
    of = torch.arange(len(taken), device=flat.device) if kinds is None else kinds.of[: len(taken)]
    state, action, pair = (of, taken, of) if kinds is None else _pairs(params, of, taken)
    parts = parallel.parts(flat) if passes is EAGER else [slice(0, len(flat))]
    bounds = torch.searchsorted(state, torch.tensor([part.start for part in parts[1:]], device=state.device)).tolist()
    shares = list(zip(parts, [0, *bounds], [*bounds, len(state)], strict=True))

    def learn(part: slice, first: int, last: int) -> tuple[Outputs, Outputs, Outputs]:
        return passes.rows_to_learn(params, flat[part], state[first:last] - part.start, action[first:last])

    done = parallel.side_by_side({i: partial(learn, *share) for i, share in enumerate(shares)}).values()
    seen = _joined([{head: x.detach() for head, x in by_state.items()} | dict(every) for by_state, every, _ in done])
    learned = Learned([{**by_state, **own} for by_state, _, own in done], of, pair, (steps - 1, batch))
    return _over_time(seen, kinds, (steps, batch)), learned


def _pairs(params: Params, of: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different pairs of a kind of state and an action: state [V] and action [V], and which pair each [N] is."""
    A = params["heads/logits/w"].shape[1]
    pairs, pair = torch.unique(of * A + actions, return_inverse=True)
    return pairs // A, pairs % A, pair
