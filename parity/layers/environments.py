"""Both Catch environments, how seeds spread over a batch, the replay buffer, accumulated returns.

What is random takes its draws as inputs: the column in which each new ball starts. A board has `fall` + 1 rows, so that
an episode takes `fall` steps.
"""

from __future__ import annotations

import numpy as np

from parity.layers import edits
from parity.layers.cases import PLAIN, sized
from parity.layers.spec import Arrays, Case, Edit, Settings, Spec, fixed, index, register

ACTIONS = 3  # left, stay, right
BOARD: Settings = {"B": 12, "fall": 7, "columns": 8}
BOARDS = (
    PLAIN,
    *sized("B1"),
    Case("odd_columns", {"columns": 5, "fall": 4}),
    Case("tall", {"columns": 3, "fall": 11}),
    Case("wide", {"columns": 13, "fall": 2}),
    Case("smallest", {"columns": 1, "fall": 1}),
)
STATE = {
    "state/ball_row": index("B", below="fall+1"),
    "state/ball_column": index("B", below="columns"),
    "state/paddle_column": index("B", below="columns"),
}
FALLING = {**STATE, "state/ball_row": index("B", below="fall")}
SHOWN = {"observation": fixed("B fall+1 columns 1"), "reward": fixed("B"), "step_type": index("B", below=3)}


def whole(value: int | str, *names: str) -> Edit:
    """Sets integer inputs, to a number or to a setting less one."""

    def edit(inputs: Arrays, settings: Settings) -> Arrays:
        number = settings[value] - 1 if isinstance(value, str) else value
        return {**inputs, **{name: np.full_like(inputs[name], number) for name in names}}

    return edit


LAST_ROW = whole("fall", "state/ball_row")
ABOVE_THE_PADDLE = edits.same_as("state/paddle_column", "state/ball_column")  # so that staying catches the ball

register(
    "env/catch_reset",
    "Vectorised Catch starts: new balls in the given columns, paddles in the middle; a middle step, reward 0.",
    {"ball_columns": index("B", below="columns")},
    {**STATE, **SHOWN},
    BOARD,
    BOARDS,
)
register(
    "env/catch_step",
    "Vectorised Catch takes a step; where an episode ends, it shows the next one's first board.",
    {**FALLING, "actions": index("B", below=ACTIONS), "ball_columns": index("B", below="columns")},
    {**STATE, **SHOWN},
    BOARD,
    (
        *BOARDS,
        Case("all_end", edits=(LAST_ROW,)),
        Case("all_end_caught", edits=(LAST_ROW, ABOVE_THE_PADDLE, whole(1, "actions"))),
        Case("none_ends", edits=(whole(0, "state/ball_row"),)),
        Case("at_the_left_edge", edits=(whole(0, "actions", "state/paddle_column"),)),
        Case("at_the_right_edge", edits=(whole(2, "actions"), whole("columns", "state/paddle_column"))),
    ),
    ("env/catch_reset",),
)
register(
    "env/host_catch",
    "A batch of host Catch, made and then reset: T steps with given actions; each takes its own columns in turn.",
    {"actions": index("T B", below=ACTIONS), "ball_columns": index("T+2 B", below="columns")},
    {
        "observation": fixed("T+1 B fall+1 columns"),
        "reward": fixed("T+1 B"),
        "step_type": index("T+1 B", below=3),
    },
    {"T": 17, "B": 4, "fall": 4, "columns": 5},
    (
        PLAIN,
        *sized("B1", "T1"),
        Case("notebook_board", {"fall": 7, "columns": 8, "T": 29, "B": 2}),
        Case("smallest", {"columns": 1, "fall": 1}),
        Case("always_left", edits=(whole(0, "actions"),)),
        Case("always_right", edits=(whole(2, "actions"),)),
    ),
)
register(
    "env/batched_seeds",
    "The seeds that the environments of a batch get, drawn from the batch's seed by JAX in 32 bits.",
    {"seed": index("", below=2**31 - 1)},
    {"seeds": index("B", below=2**31 - 1)},
    {"B": 7},
    (
        PLAIN,
        *sized("B1", "B64"),
        Case("seed_0", edits=(whole(0, "seed"),)),
        Case("seed_1", edits=(whole(1, "seed"),)),
        Case("largest_seed", edits=(whole(2**31 - 1, "seed"),)),
    ),
)
register(
    "replay/sample",
    "S times: E trajectories of L steps enter a buffer (first in, first out), then G are drawn with replacement.",
    {"trajectories": fixed("S L E"), "seed": index("", below=1000)},
    {
        "sampled": fixed("S L G"),
        "indices": index("S G", below="capacity"),
        "size": Spec(("S",), "int", below="capacity+1"),
    },
    {"S": 9, "L": 3, "E": 2, "G": 5, "capacity": 7},
    (
        PLAIN,
        Case("never_full", {"capacity": 64}),
        Case("capacity_1", {"capacity": 1}),
        Case("more_than_fit_at_once", {"E": 9}),
        Case("one_at_a_time", {"E": 1, "L": 2}),
        Case("notebook_seed", {"S": 40, "E": 2, "L": 2, "G": 64, "capacity": 64}, (whole(17, "seed"),)),
    ),
    notebook="eval",
)
register(
    "eval/accumulate_returns",
    "Rewards added up within episodes, over the borders of rollouts; the last step's reward counts.",
    {"so_far": fixed("B"), "rewards": fixed("T B"), "discounts": Spec(("T", "B"), draw="zero_one")},
    {"so_far": fixed("B"), "returns": fixed("T B")},
    {"T": 9, "B": 4},
    (
        PLAIN,
        *sized("T1", "B1"),
        Case("ends_at_the_first", edits=(edits.terminal("first", "discounts"),)),
        Case("ends_at_the_last", edits=(edits.terminal("last", "discounts"),)),
        Case("ends_at_every", edits=(edits.terminal("every", "discounts"),)),
        Case("never_ends", edits=(edits.terminal("none", "discounts"),)),
    ),
    notebook="eval",
)
