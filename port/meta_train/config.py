"""Settings of a meta-training run, flat, so that they are a command line and a JSON file as well."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from port.command_line import setting
from port.config import (
    AgentConfig,
    AgentNetConfig,
    DiscoConfig,
    MetaNetConfig,
    MetaRnnConfig,
    check_positive,
    check_sizes,
    is_number,
)
from port.environments.catch import check_board
from port.meta_train.meta_gradient import OuterLossConfig
from port.value_fns.value_fn import ValueFnConfig


@dataclass(frozen=True)
class MetaTrainConfig:
    """Settings; the defaults are those of the original's `meta_train` notebook, which never starts agents over."""

    num_meta_updates: int = setting(800, "how long to train")
    boards: tuple[str, ...] = setting(("5x5", "5x5"), "board of each agent of the population, rows x columns")
    lifetime: int = setting(0, "meta-updates after which an agent starts over, staggered; 0 for never")
    num_inner_steps: int = setting(2, "updates of an agent in a meta-update")
    rollout_length: int = setting(16, "acted steps in a training rollout; a validation rollout has twice as many")
    batch_size: int = setting(32, "environments of each agent")
    meta_learning_rate: float = setting(5e-4, "of Adam on the meta-parameters")
    max_meta_grad_norm: float = setting(0.0, "longer meta-gradients are cut to this norm; 0 for never")
    seed: int = setting(4, "of everything that is random")
    recompute: bool = setting(False, "yes: less memory, in which inner updates are computed twice; no: faster")

    prediction_size: int = setting(600, "size of the predictions y and z")
    hidden_size: int = setting(256, "of the meta-network's LSTM")
    meta_hidden_size: int = setting(128, "of the LSTM that runs over an agent's lifetime")
    num_bins: int = setting(601, "of the agents' action values")
    max_abs_value: float = setting(300.0, "the outermost bin")
    dense: tuple[int, ...] = setting((512, 512), "layers of the agents' torso")
    head_mlp_hiddens: tuple[int, ...] = setting((256,), "hidden layers of the agents' model heads")
    lstm_size: int = setting(256, "of the agents' action-conditional model")
    learning_rate: float = setting(5e-4, "of the agents")
    value_dense: tuple[int, ...] = setting((256, 256), "layers of the value function")
    value_learning_rate: float = setting(1e-3, "of the value function")

    evaluate_every: int = setting(0, "meta-updates between evaluations on fresh agents; 0 for never")
    evaluate_boards: tuple[str, ...] = setting(("8x8",), "boards of the fresh agents")
    evaluate_seeds: int = setting(2, "fresh agents on each board")
    evaluate_steps: int = setting(600, "learner steps of a fresh agent")
    checkpoint_every: int = setting(50, "meta-updates between checkpoints")

    def __post_init__(self) -> None:
        check_sizes(self, "num_meta_updates", "num_inner_steps", "batch_size", "checkpoint_every")
        check_sizes(self, "evaluate_seeds", "evaluate_steps")
        for name in ("lifetime", "evaluate_every", "max_meta_grad_norm"):
            if not (is_number(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 (off) or more.")
        check_positive(self, "meta_learning_rate")
        if self.rollout_length < 2:
            raise ValueError(f"rollout_length is {self.rollout_length}; one transition takes 2 steps.")
        if not self.boards or not self.evaluate_boards:
            raise ValueError("A population needs at least one board, and so does an evaluation.")
        for board in (*self.boards, *self.evaluate_boards):
            board_size(board)
        _ = self.agent, self.value_fn  # which refuse sizes that make no sense

    @property
    def agent(self) -> AgentConfig:
        """Of every agent of the population."""
        return AgentConfig(
            learning_rate=self.learning_rate,
            rule=DiscoConfig(num_bins=self.num_bins, max_abs_value=self.max_abs_value),
            meta_net=MetaNetConfig(
                prediction_size=self.prediction_size,
                hidden_size=self.hidden_size,
                meta_rnn=MetaRnnConfig(hidden_size=self.meta_hidden_size),
            ),
            net=AgentNetConfig(dense=self.dense, head_mlp_hiddens=self.head_mlp_hiddens, lstm_size=self.lstm_size),
        )

    @property
    def value_fn(self) -> ValueFnConfig:
        """Of every agent's value function."""
        return ValueFnConfig(dense=self.value_dense, learning_rate=self.value_learning_rate)

    @property
    def outer(self) -> OuterLossConfig:
        """Of the outer loss."""
        return OuterLossConfig()

    def to_json(self) -> str:
        """As text; `from_json` reads it."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> MetaTrainConfig:
        """The inverse of `to_json`."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in json.loads(text).items()}
        odd = sorted(values.keys() - known)
        if odd:
            raise ValueError(f"There are no settings called {', '.join(odd)}.")
        return cls(**values)


# Sizes at which a rule can be meta-trained on two cores within hours.
SMALL: dict[str, Any] = {
    "prediction_size": 30,
    "hidden_size": 64,
    "meta_hidden_size": 32,
    "num_bins": 61,
    "max_abs_value": 30.0,
    "dense": (64, 64),
    "head_mlp_hiddens": (32,),
    "lstm_size": 32,
    "learning_rate": 5e-3,
    "num_inner_steps": 4,
    "meta_learning_rate": 1e-3,
    "lifetime": 200,
}


def board_size(board: str) -> tuple[int, int]:
    """Rows and columns of a board written as 8x8."""
    rows, _, columns = board.partition("x")
    if not (rows.isdecimal() and columns.isdecimal()):
        raise ValueError(f"A board is written as 8x8, rows x columns; got {board!r}.")
    check_board(int(rows), int(columns))
    return int(rows), int(columns)
