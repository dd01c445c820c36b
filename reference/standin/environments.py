"""Environments and evaluation: Catch in both forms, seeds of a batch, the replay buffer, accumulated returns.

Settings `s`: `fall` steps from the top row to the paddle's, `columns` of the board, `capacity` of the replay buffer.
Columns in which new balls start are given.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from reference.flat_dict import Array, Settings, Tensors, below, under
from reference.jax_runtime import on_host

FIRST, MIDDLE, LAST = 0, 1, 2
SEEDS_BELOW = 2**31 - 1


class Board(NamedTuple):
    """Row and column of the ball, column of the paddle; [B] each."""

    ball_row: Array
    ball_column: Array
    paddle_column: Array


def opening(columns: Array, s: Settings) -> Board:
    """Balls in the top row, paddles in the middle (right of it where the number of columns is even).

    Reference: disco_rl/environments/catch.py::SingleStreamCatch.reset
    """
    return Board(jnp.zeros_like(columns), columns, jnp.full_like(columns, s["columns"] // 2))


def moved(board: Board, actions: Array, s: Settings) -> Board:
    """One step: the paddle moves by -1, 0 or 1 but stays on the board, the ball falls by one row.

    Reference: disco_rl/environments/jittable_envs.py::_SingleStreamCatch.step
    """
    paddle = jnp.minimum(jnp.maximum(board.paddle_column + actions, 1), s["columns"]) - 1
    return Board(board.ball_row + 1, board.ball_column, paddle)


def picture(board: Board, s: Settings) -> Array:
    """1 where ball and paddle are, 0 elsewhere: [B, rows, columns].

    Reference: disco_rl/environments/jittable_envs.py::_SingleStreamCatch.render
    """
    dtype = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32

    def cells(row: Array, column: Array) -> Array:
        rows = jax.nn.one_hot(row, s["fall"] + 1, dtype=dtype)
        return rows[..., :, None] * jax.nn.one_hot(column, s["columns"], dtype=dtype)[..., None, :]

    ball = cells(board.ball_row, board.ball_column)
    return jnp.maximum(ball, cells(jnp.full_like(board.ball_row, s["fall"]), board.paddle_column))


def reward(board: Board, s: Settings) -> Array:
    """1 for a ball that is down and caught, -1 for one that is down and not, 0 for one that still falls."""
    is_down = board.ball_row == s["fall"]
    is_caught = board.ball_column == board.paddle_column
    return jnp.where(is_down, jnp.where(is_caught, 1.0, -1.0), 0.0)


def chosen(condition: Array, one: Board, other: Board) -> Board:
    """One board where the condition holds, the other elsewhere."""
    return Board(*(jnp.where(condition, a, b) for a, b in zip(one, other, strict=True)))


def stepped(board: Board, actions: Array, columns: Array, s: Settings) -> tuple[Board, Array, Array]:
    """A step that leads on into the next episode.

    Returns:
        The board to show and to go on from, the reward of the step, and whether it was an episode's last.

    Reference: disco_rl/environments/wrappers/batched_jittable_env.py::BatchedJittableEnvironment
    """
    arrived = moved(board, actions, s)
    is_last = arrived.ball_row == s["fall"]
    return chosen(is_last, opening(columns, s), arrived), reward(arrived, s), is_last


def _shown(board: Board, rewards: Array, step_type: Array, s: Settings) -> Tensors:
    seen = {"observation": picture(board, s)[..., None], "reward": rewards, "step_type": step_type}
    return below("state", board._asdict()) | seen


def catch_reset(x: Tensors, s: Settings) -> Tensors:
    """The vectorised form's start, which it calls a middle step."""
    board = opening(x["ball_columns"], s)
    return _shown(board, reward(board, s), jnp.full_like(board.ball_row, MIDDLE), s)


def catch_step(x: Tensors, s: Settings) -> Tensors:
    """The vectorised form's step."""
    board, rewards, is_last = stepped(Board(**under("state", x)), x["actions"], x["ball_columns"], s)
    return _shown(board, rewards, jnp.where(is_last, LAST, MIDDLE), s)


def host_catch(x: Tensors, s: Settings) -> Tensors:
    """The host's form: made (which takes a column), reset (which takes another, and is a first step), stepped.

    Reference: disco_rl/environments/wrappers/single_stream_env.py::SingleStreamEnv.step
    """
    columns = x["ball_columns"]  # [T+2, B]
    start = opening(columns[1], s)
    taken = jnp.full_like(columns[0], 2)

    def step(carry: tuple[Board, Array], actions: Array) -> tuple[tuple[Board, Array], tuple[Array, Array, Array]]:
        board, taken = carry
        following = jnp.take_along_axis(columns, taken[None], axis=0)[0]
        board, rewards, is_last = stepped(board, actions, following, s)
        return (board, taken + is_last), (picture(board, s), rewards, jnp.where(is_last, LAST, MIDDLE))

    _, (boards, rewards, types) = jax.lax.scan(step, (start, taken), x["actions"])
    first = (picture(start, s), jnp.zeros_like(rewards[0]), jnp.full_like(types[0], FIRST))
    names = ("observation", "reward", "step_type")
    later = (boards, rewards, types)
    return {name: jnp.concatenate((a[None], b)) for name, a, b in zip(names, first, later, strict=True)}


def batched_seeds(x: Tensors, s: Settings) -> Tensors:
    """Seeds of the environments of a batch: 32-bit integers from the key of the batch's seed.

    Reference: disco_rl/environments/wrappers/batched_env.py::BatchedSingleStreamEnvironment.__init__
    """
    key = jax.random.PRNGKey(x["seed"])
    return {"seeds": jax.random.randint(key, (s["B"],), 0, SEEDS_BELOW, dtype=jnp.int32)}


@on_host
def replay_sample(x: Tensors, s: Settings) -> Tensors:
    """After each addition, so many trajectories of those that are there: the last `capacity` ones that came."""
    rng = np.random.default_rng(int(x["seed"]))
    arrived = np.concatenate([np.moveaxis(np.asarray(part), 1, 0) for part in x["trajectories"]])  # [S*E, L]
    counts = s["E"] * np.arange(1, s["S"] + 1)
    sizes = np.minimum(counts, s["capacity"])
    indices = np.stack([rng.integers(size, size=s["G"]) for size in sizes])
    sampled = np.swapaxes(arrived[indices + (counts - sizes)[:, None]], 1, 2)  # [S, L, G]
    return {"sampled": sampled, "indices": indices, "size": sizes}


def accumulate_returns(x: Tensors, s: Settings) -> Tensors:
    """Sums of rewards since the episode began; what a rollout leaves unfinished goes on in the next."""

    def step(unfinished: Array, now: Tensors) -> tuple[Array, Array]:
        total = unfinished + now["rewards"]
        return jnp.where(now["discounts"] == 0, 0.0, total * now["discounts"]), total

    rest, returns = jax.lax.scan(step, x["so_far"], {name: x[name] for name in ("rewards", "discounts")})
    return {"so_far": rest, "returns": returns}


LAYERS = {
    "env/catch_reset": catch_reset,
    "env/catch_step": catch_step,
    "env/host_catch": host_catch,
    "env/batched_seeds": batched_seeds,
    "replay/sample": replay_sample,
    "eval/accumulate_returns": accumulate_returns,
}
