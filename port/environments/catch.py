"""Catch on tensors: thousands of environments step at once, and all randomness comes from outside.

A ball falls one row per step; the paddle at the bottom moves left, stays or moves right. An episode ends as the ball
reaches the paddle's row, with reward 1 if it is caught and -1 if not. The next episode begins at once: the last step
already shows the new board.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from port import ops
from port.environments.base import MID_STEP
from port.types import Timestep

NUM_ACTIONS = 3  # left, stay, right


class CatchState(NamedTuple):
    """Where ball and paddle are, integers of [*I] each; the paddle's row is the lowest."""

    ball_row: Tensor
    ball_column: Tensor
    paddle_column: Tensor


class Catch:
    """Any number of boards; holds sizes only, states are given and returned.

    Leading axes I are the caller's: [B], or [agents, B].

    Reference: disco_rl/environments/jittable_envs.py::CatchJittableEnvironment
    """

    num_actions = NUM_ACTIONS

    def __init__(self, rows: int = 8, columns: int = 8, dtype: torch.dtype = torch.float32) -> None:
        """Makes boards of one size.

        Args:
            rows: at least 2, so that the ball has a way to fall.
            columns: at least 1.
            dtype: of observations and rewards.
        """
        check_board(rows, columns)
        self.rows, self.columns, self.dtype = rows, columns, dtype

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        """Shape of one observation."""
        return self.rows, self.columns, 1

    def draw_columns(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Columns for balls to start in, uniform, on the generator's device: what `reset` and `step` ask for."""
        return torch.randint(self.columns, shape, generator=generator, device=generator.device)

    def reset(self, ball_columns: Tensor) -> tuple[CatchState, Timestep]:
        """Starts every environment.

        Args:
            ball_columns: [*I], the column in which each ball starts.

        Returns:
            The states and what they show: a middle step, as in the original, with reward 0.

        Reference: disco_rl/environments/wrappers/batched_jittable_env.py::BatchedJittableEnvironment.reset
        """
        ball_columns = self.checked_columns(ball_columns)
        zeros = torch.zeros_like(ball_columns)
        state = CatchState(zeros, ball_columns, torch.full_like(ball_columns, self.columns // 2))
        return state, Timestep(self.render(state), zeros + MID_STEP, zeros.to(self.dtype))

    def step(self, state: CatchState, actions: Tensor, ball_columns: Tensor) -> tuple[CatchState, Timestep]:
        """Moves every environment on by one step, into the next episode where one ends.

        Args:
            state: of the environments, [*I].
            actions: [*I], 0 left, 1 stay, 2 right.
            ball_columns: [*I], the column in which the next ball starts, read only where an episode ends.

        Returns:
            The new states, and what they show. Where an episode ends, step type and reward are those of its last step,
            and the observation is the first of the next one.

        Reference: disco_rl/environments/wrappers/batched_jittable_env.py::BatchedJittableEnvironment.step
        """
        ops.check_tensors(actions=actions, ball_columns=ball_columns)
        if not actions.shape == ball_columns.shape == state.ball_row.shape:
            raise ValueError(
                f"The environments are {tuple(state.ball_row.shape)}, but actions are {tuple(actions.shape)} "
                f"and ball columns {tuple(ball_columns.shape)}; give one of each per environment."
            )
        ops.check_actions(actions, NUM_ACTIONS)
        fallen = self.move(state, actions)
        is_last = self.is_last(fallen)
        state = self.restart(fallen, is_last, self.checked_columns(ball_columns))
        return state, Timestep(self.render(state), is_last + MID_STEP, self.reward(fallen))

    def move(self, state: CatchState, actions: Tensor) -> CatchState:
        """Paddle moved, not past the edge, and ball one row lower.

        Reference: disco_rl/environments/jittable_envs.py::_SingleStreamCatch.step
        """
        paddle_column = (state.paddle_column + (actions - 1)).clamp(0, self.columns - 1)
        return CatchState(state.ball_row + 1, state.ball_column, paddle_column)

    def is_last(self, state: CatchState) -> Tensor:
        """Whether the ball is in the paddle's row, [*I].

        Reference: disco_rl/environments/jittable_envs.py::_SingleStreamCatch.is_terminal
        """
        return state.ball_row == self.rows - 1

    def reward(self, state: CatchState) -> Tensor:
        """Reward of having arrived in a state: 1 or -1 where the ball is down, else 0; [*I].

        Reference: disco_rl/environments/jittable_envs.py::_SingleStreamCatch.reward
        """
        is_caught = (state.ball_column == state.paddle_column).to(self.dtype)
        return (2 * is_caught - 1).masked_fill(~self.is_last(state), 0.0)

    def restart(self, state: CatchState, is_last: Tensor, ball_columns: Tensor) -> CatchState:
        """A new ball and the paddle in the middle, where an episode has ended.

        Reference: disco_rl/environments/jittable_envs.py::_SingleStreamCatch.episode_reset
        """
        return CatchState(
            state.ball_row.masked_fill(is_last, 0),
            torch.where(is_last, ball_columns, state.ball_column),
            state.paddle_column.masked_fill(is_last, self.columns // 2),
        )

    def render(self, state: CatchState) -> Tensor:
        """Boards that are 1 at ball and paddle and 0 elsewhere: [*I, rows, columns, 1].

        Reference: disco_rl/environments/jittable_envs.py::_SingleStreamCatch.render
        """
        lead = state.ball_row.shape
        ball = torch.add(state.ball_column, state.ball_row, alpha=self.columns)
        cells = torch.stack((ball, state.paddle_column + (self.rows - 1) * self.columns), dim=-1)
        boards = torch.zeros(*lead, self.rows * self.columns, dtype=self.dtype, device=cells.device)
        return boards.scatter_(-1, cells, 1.0).view(*lead, *self.observation_shape)

    def checked_columns(self, ball_columns: Tensor) -> Tensor:
        """The columns as indices, or ValueError or TypeError."""
        ops.check_indices(ball_columns, self.columns, "ball_columns", "check the board's width")
        return ball_columns.long()


def check_board(rows: int, columns: int) -> None:
    """Raises ValueError for a board that no game can be played on."""
    if rows < 2 or columns < 1:
        raise ValueError(f"A board of {rows} rows and {columns} columns is too small; give at least 2 rows, 1 column.")
