"""The agent's network over a batch: each different observation once, and a graph only of what Disco's loss reads.

In a batch from a small world most observations come again and again. The network has no memory, so that it need be
asked once for each; see `unique_rows`. Disco's loss reads of the action model only its predictions for the actions
taken. So these alone get a graph; the targets read all others without one. The rows are computed in parts, in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from port.fast import parallel, unique_rows
from port.fast.unique_rows import Shared, SharedOutputs, UniqueRows, over_time
from port.networks import agent_net, nets
from port.networks.agent_net import MODEL_HEADS
from port.types import LstmState, Observations, Outputs, Params


def taken_model(params: Params, root: LstmState, actions: Tensor) -> dict[str, Tensor]:
    """`agent_net.action_model` for one action [N] of each state: z [N, P], aux_pi [N, A] and q [N, K].

    Reference: disco_rl/networks/action_models.py::LSTMModel.model_step
    """
    gates, rows = agent_net.gates_by_state_and_action(params, root)
    transition = nets.lstm_gates(gates + rows.index_select(0, actions), root.cell).hidden
    return {head: nets.mlp(params, f"model/{head}", transition) for head in MODEL_HEADS}


def all_rows(params: Params, flat: Tensor) -> dict[str, Tensor]:
    """All outputs for flat observations [U, features]: [U, ...] each, as of `agent_net.step`."""
    return agent_net.heads(params, agent_net.torso(params, flat))


def rows_to_learn(params: Params, flat: Tensor, state: Tensor, action: Tensor) -> tuple[Outputs, Outputs, Outputs]:
    """Outputs for flat observations [U, features], with a graph only of what Disco's loss reads.

    The actions taken are predicted twice, once with a graph. That costs a third of the model's forward pass (with 3
    actions) and saves two thirds of its backward pass.

    Args:
        params: of an agent with an action model.
        flat: [U, features].
        state: [V], rows of `flat` in which an action was taken.
        action: [V], which.

    Returns:
        Flat heads [U, width] with a graph; z, aux_pi and q [U, A, width] without; these three [V, width] with one.

    Reference: disco_rl/networks/nets.py::MLPHeadNet.unroll
    """
    embedding = agent_net.torso(params, flat)
    root = agent_net.root_state(params, embedding)
    by_state = {head: nets.linear(params, f"heads/{head}", embedding) for head in agent_net.flat_heads(params)}
    with torch.no_grad():
        every = agent_net.action_model(params, LstmState(*(x.detach() for x in root)))
    taken = taken_model(params, LstmState(*(x.index_select(0, state) for x in root)), action)
    return by_state, every, taken


class Passes(NamedTuple):
    """The two passes over rows of observations, which can be compiled; what stands around them cannot."""

    all_rows: Callable[[Params, Tensor], Outputs] = all_rows
    rows_to_learn: Callable[[Params, Tensor, Tensor, Tensor], tuple[Outputs, Outputs, Outputs]] = rows_to_learn


EAGER = Passes()


@lru_cache(maxsize=1)
def compiled() -> Passes:
    """The passes compiled by `torch.compile`; the first steps take a minute or more, and need a C++ compiler."""
    made: Any = [torch.compile(each, dynamic=True) for each in EAGER]
    return Passes(*made)


class Rows(NamedTuple):
    """A batch of observations as the rows that a network is asked for."""

    flat: Tensor  # [U, features]
    unique: UniqueRows | None  # which of them each state [(T+1) B] shows; None if each state has its own
    lead: tuple[int, int]  # T+1, B

    def over_time(self, outputs: Outputs) -> dict[str, Tensor | Shared]:
        """Outputs [U, ...] for all states: [T+1, B, ...]."""
        if self.unique is None:
            return {head: x.unflatten(0, self.lead) for head, x in outputs.items()}
        return {head: over_time(x, self.unique.of, self.lead) for head, x in outputs.items()}


def rows_of(params: Params, observations: Observations, is_unique: bool) -> Rows:
    """The rows of observations [T+1, B, ...]: the different ones, if asked to and if it is worth it."""
    weight, _ = nets.weight_and_bias(params, "heads/logits")
    steps, batch = agent_net.leaves(observations)[0].shape[:2]
    flat = agent_net.flatten_observations(observations, 2, like=weight)
    unique = unique_rows.find_unique(flat) if is_unique else None
    return Rows(flat if unique is None else flat.index_select(0, unique.first), unique, (steps, batch))


def unroll(params: Params, observations: Observations, passes: Passes = EAGER, is_unique: bool = True) -> Outputs:
    """`agent_net.unroll` without a graph.

    Reference: disco_rl/networks/nets.py::MLPHeadNet.unroll
    """
    rows = rows_of(params, observations, is_unique)
    parts = parallel.parts(rows.flat) if passes is EAGER else [slice(None)]
    done = parallel.in_parallel({i: partial(passes.all_rows, params, rows.flat[part]) for i, part in enumerate(parts)})
    return SharedOutputs(rows.over_time(_joined(list(done.values()))))


def _joined(parts: Sequence[Outputs]) -> Outputs:
    """Outputs of parts of the rows, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return parallel.in_parallel({head: partial(torch.cat, [part[head] for part in parts]) for head in parts[0]})


class Learned(SharedOutputs):
    """What the loss learns on, [T, B, width] by head; computed, and differentiated, in parts in parallel."""

    def __init__(self, parts: Sequence[Outputs], by_state: Tensor, by_pair: Tensor, lead: tuple[int, int]) -> None:
        """Takes the rows of each part with their graphs, and which row each state is, by itself and with its action."""
        self._parts = parts
        rows = {head: torch.cat([part[head].detach() for part in parts]).requires_grad_() for head in parts[0]}
        of = {head: by_pair if head in MODEL_HEADS else by_state for head in rows}
        super().__init__({head: over_time(x, of[head], lead) for head, x in rows.items()})
        self._rows = rows

    def grads(self, total: Tensor, params: Params) -> Params:
        """The gradient of a loss of these outputs: for the rows first, then for the parameters, part by part."""
        heads = list(self._rows)
        wanted = torch.autograd.grad(total, list(self._rows.values()))
        by_head = [x.split([len(part[h]) for part in self._parts]) for h, x in zip(heads, wanted, strict=True)]
        shares = zip(*by_head, strict=True)

        def carry(part: Outputs, share: Sequence[Tensor]) -> Sequence[Tensor]:
            return torch.autograd.grad([part[head] for head in heads], list(params.values()), share)

        works = {i: partial(carry, *given) for i, given in enumerate(zip(self._parts, shares, strict=True))}
        found = list(parallel.in_parallel(works).values())
        return {name: _sum(grads) for name, grads in zip(params, zip(*found, strict=True), strict=True)}


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total, *others = tensors
    for other in others:
        total = total.add_(other)
    return total


class TakenOutputs(SharedOutputs):
    """All outputs without a graph, [T+1, B, ...] each, and beside them what the loss learns on."""

    def __init__(self, heads: Mapping[str, Tensor | Shared], learned: Learned) -> None:
        """Takes both."""
        super().__init__(heads)
        self.learned = learned


def unroll_learning(
    params: Params, observations: Observations, actions: Tensor, passes: Passes = EAGER, is_unique: bool = True
) -> TakenOutputs:
    """`agent_net.unroll` for a loss that reads of the action model only its predictions for the actions taken.

    Rows of the network and pairs of a row and an action are two index spaces. A thread gets a stretch of rows, and all
    pairs in which they stand; pairs are ordered by row, so that these are a stretch too.

    Args:
        params: of an agent with an action model.
        observations: [T+1, B, ...].
        actions: [T+1, B].
        passes: over rows.
        is_unique: whether states that show the same may share rows.

    Returns:
        All outputs, without a graph; and what the loss learns on, with one, [T, B, width] each: the flat heads, and z,
        aux_pi and q for the actions taken. The bootstrap step is not learned on.

    Reference: disco_rl/networks/nets.py::MLPHeadNet.unroll
    """
    rows = rows_of(params, observations, is_unique)
    T, B = rows.lead[0] - 1, rows.lead[1]
    pairs = _pairs(params, rows, actions[:-1].reshape(-1).to(rows.flat.device, torch.long))
    parts = parallel.parts(rows.flat) if passes is EAGER else [slice(0, len(rows.flat))]
    starts = torch.tensor([part.start for part in parts[1:]], device=pairs.row.device)
    bounds = torch.searchsorted(pairs.row, starts).tolist()
    shares = list(zip(parts, [0, *bounds], [*bounds, len(pairs.row)], strict=True))

    def learn(part: slice, first: int, last: int) -> tuple[Outputs, Outputs, Outputs]:
        given = pairs.row[first:last] - part.start, pairs.action[first:last]
        return passes.rows_to_learn(params, rows.flat[part], *given)

    done = parallel.in_parallel({i: partial(learn, *share) for i, share in enumerate(shares)}).values()
    seen = _joined([{head: x.detach() for head, x in by_state.items()} | dict(every) for by_state, every, _ in done])
    learned = Learned([{**by_state, **taken} for by_state, _, taken in done], pairs.row_of, pairs.pair_of, (T, B))
    return TakenOutputs(rows.over_time(seen), learned)


class Pairs(NamedTuple):
    """The different pairs of a row and the action taken there, ordered by row."""

    row: Tensor  # [V]
    action: Tensor  # [V]
    row_of: Tensor  # [T B], the row of each transition's state
    pair_of: Tensor  # [T B], the pair of each transition


def _pairs(params: Params, rows: Rows, taken: Tensor) -> Pairs:
    """The pairs of transitions with actions [T B]."""
    if rows.unique is None:
        each = torch.arange(len(taken), device=taken.device)
        return Pairs(each, taken, each, each)
    row_of, A = rows.unique.of[: len(taken)], params["heads/logits/w"].shape[1]
    pairs, pair_of = torch.unique(row_of * A + taken, return_inverse=True)
    return Pairs(pairs // A, pairs % A, row_of, pair_of)
