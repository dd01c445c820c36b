"""Catch as tables: a board is small, so every state can be looked up, and a step takes three tensor operations.

The tables are filled by asking `Catch` itself about every state, so there is one definition of the game.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from port.environments.catch import NUM_ACTIONS, Catch, CatchState

MOST_NUMBERS = 2**22  # in the table of boards; larger games are played without


class CatchTables(NamedTuple):
    """All S states of a game, numbered: row, then column of the ball, then column of the paddle.

    Attributes:
        boards: [S, rows, columns, 1], what each state shows.
        following: [S * A], the state after each action; after the last step, with the new ball in column 0.
        reset_stride: [S], what a new ball's column adds to that: 0 unless the episode ends.
        columns: of the board.
    """

    boards: Tensor
    following: Tensor
    reset_stride: Tensor
    columns: int

    def number(self, state: CatchState) -> Tensor:
        """States [*I] as numbers."""
        return (state.ball_row * self.columns + state.ball_column) * self.columns + state.paddle_column

    def state(self, number: Tensor) -> CatchState:
        """Numbers [*I] as states."""
        ball = number.div(self.columns, rounding_mode="floor")
        return CatchState(
            ball.div(self.columns, rounding_mode="floor"), ball.remainder(self.columns), number.remainder(self.columns)
        )

    def show(self, number: Tensor) -> Tensor:
        """Observations of states [B]."""
        return self.boards.index_select(0, number)

    def step(self, number: Tensor, actions: Tensor, ball_columns: Tensor) -> Tensor:
        """The states after actions [B], with new balls in the given columns [B] where an episode ends."""
        moved = self.following.index_select(0, torch.add(actions, number, alpha=NUM_ACTIONS))
        return torch.addcmul(moved, self.reset_stride.index_select(0, number), ball_columns)


def fits(env: Catch) -> bool:
    """Whether the tables of a game are small enough to be worth having."""
    return env.rows * env.columns**2 * env.rows * env.columns <= MOST_NUMBERS


@lru_cache(maxsize=16)
def tables(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> CatchTables:
    """The tables of a game."""
    env = Catch(rows, columns, dtype)
    sizes = (rows, columns, columns)
    grids = torch.meshgrid(*(torch.arange(size, device=device) for size in sizes), indexing="ij")
    every = CatchState(*(grid.reshape(-1, 1) for grid in grids))  # [S, 1]
    fallen = env.move(every, torch.arange(NUM_ACTIONS, device=device))  # [S, A], by broadcasting
    fallen = CatchState(*(part.expand(-1, NUM_ACTIONS) for part in fallen))
    # States whose ball is down already are never asked about; they count as ended, so that their numbers stay inside.
    is_last = fallen.ball_row >= rows - 1
    following = env.restart(fallen, is_last, torch.zeros_like(fallen.ball_column))
    boards = env.render(CatchState(*(part.squeeze(1) for part in every)))
    blank = CatchTables(boards, following.ball_row, is_last[:, 0] * columns, columns)
    return blank._replace(following=blank.number(following).reshape(-1))
