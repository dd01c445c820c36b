"""Acting in a game whose states are few: a step looks up what the board shows, and often what the agent does there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from port import ops
from port.environments import tables
from port.environments.catch import Catch, CatchState
from port.environments.tables import CatchTables
from port.fast.parallel import one_thread

ROWS_FOR_A_CALL = 32  # a call of the network takes as long as so many rows of a large batch, however few it has

Look: TypeAlias = Callable[[Tensor], list[Tensor]]  # numbers of states [B] to logits and log-probabilities [B, A]
Played: TypeAlias = tuple[CatchState, Tensor, Tensor, CatchState]

fits = tables.fits


def play(env: Catch, act: Callable[[Tensor], Tensor], state: CatchState, noise: Tensor, columns: Tensor) -> Played:
    """States, actions and logits of each step, and the state after the last.

    The agent is asked once about every state of the game, where that is less work than to ask it at every step.

    Args:
        env: the environments.
        act: observations [B, ...] to logits [B, A].
        state: where to begin.
        noise: [L, B, A], standard Gumbel noise.
        columns: [L, B], columns of new balls.
    """
    game = tables.tables(env.rows, env.columns, env.dtype, columns.device)
    if len(game.boards) > len(columns) * max(columns.shape[1], ROWS_FOR_A_CALL):
        return _walk(game, lambda number: _with_log_probs(act(game.show(number))), state, noise, columns)
    known = _with_log_probs(act(game.boards))  # [S, A] each
    with one_thread():  # a step is three small operations
        return _walk(game, lambda number: [x.index_select(0, number) for x in known], state, noise, columns)


def _with_log_probs(logits: Tensor) -> list[Tensor]:
    return [logits, logits.log_softmax(-1)]


def _walk(game: CatchTables, look: Look, state: CatchState, noise: Tensor, columns: Tensor) -> Played:
    """From state to state; `look` gives logits and log-probabilities of numbered states."""
    number, taken = game.number(state), []
    for step_noise, step_columns in zip(noise.unbind(), columns.unbind(), strict=True):
        logits, log_probs = look(number)
        actions = ops.gumbel_argmax(log_probs, step_noise)
        taken.append((number, actions, logits))
        number = game.step(number, actions, step_columns)
    numbers, all_actions, all_logits = (torch.stack(field) for field in zip(*taken, strict=True))
    return game.state(numbers), all_actions, all_logits, game.state(number)
