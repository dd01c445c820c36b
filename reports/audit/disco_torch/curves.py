"""Training runs of `disco-torch`, for learning curves: its trainer and its rollouts, as its README tells to use them.

The package brings neither an agent nor Catch. The agent is this project's network, which is the original's; the boards
below do what those of the package's own example do: a board whose ball has landed shows the next ball at once, so that
an episode takes a step less than in the original, which shows the landed ball as well.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parity.runs.curves import Step
from parity.runs.spec import RunSpec
from port.adapter.curves import agent_config
from port.agent import Agent
from port.networks import agent_net
from reports.audit.disco_torch.learning import Flat, UsersAgent, trainer


class Boards:
    """Boards of Catch side by side."""

    def __init__(self, count: int, rows: int, columns: int, rng: np.random.Generator):
        """Starts with a ball on each."""
        self.rows, self.columns, self.rng = rows, columns, rng
        self.height = np.zeros(count, int)
        self.ball, self.paddle = rng.integers(columns, size=count), np.full(count, columns // 2)

    def seen(self) -> np.ndarray:
        """[B, rows, columns], 1 at ball and paddle."""
        shown = np.zeros((len(self.ball), self.rows, self.columns), np.float32)
        every = np.arange(len(self.ball))
        shown[every, self.height, self.ball] = 1.0
        shown[every, self.rows - 1, self.paddle] = 1.0
        return shown

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What is seen next, rewards, and 1 where a ball has landed."""
        self.paddle = np.clip(self.paddle + actions - 1, 0, self.columns - 1)
        self.height = self.height + 1
        has_landed = self.height == self.rows - 1
        rewards = np.where(has_landed, np.where(self.ball == self.paddle, 1.0, -1.0), 0.0).astype(np.float32)
        drawn = self.rng.integers(self.columns, size=len(self.ball))
        self.ball = np.where(has_landed, drawn, self.ball)
        self.paddle = np.where(has_landed, self.columns // 2, self.paddle)
        self.height = np.where(has_landed, 0, self.height)
        return self.seen(), rewards, has_landed.astype(np.float32)


class ActingAgent(UsersAgent):
    """The network with the two methods that the package acts through."""

    def init_lstm_state(self, batch_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """A state that the network does not have."""
        return torch.zeros(batch_size, 1, device=device), torch.zeros(batch_size, 1, device=device)

    def forward_step(self, observations: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Flat, tuple[Tensor, Tensor]]:
        """The heads at one step."""
        heads = agent_net.step(dict(self._parameters), observations[None], lead=2)  # type: ignore[arg-type]
        return {name: value[0] for name, value in heads.items()}, state


def new_trainer(agent: nn.Module, spec: RunSpec) -> Any:
    """The package's trainer for a run."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it has loaded the weights
        return trainer.DiscoTrainer(
            agent,
            device=torch.device("cpu"),
            lr=spec.agent["learning_rate"],
            replay_capacity=spec.loop.capacity,
            batch_size=spec.loop.batch_size,
            weights_path=str(spec.weights_path()),
        )


def train(spec: RunSpec) -> Iterator[Step] | None:
    """A run with Disco103; the package has no other rule and no other size."""
    if spec.weights != "disco103" or not hasattr(trainer, "DiscoTrainer"):
        return None
    return _steps(spec)


def _steps(spec: RunSpec) -> Iterator[Step]:
    torch.set_num_threads(1)
    torch.manual_seed(spec.seed)  # the package draws its actions from torch's own generator
    np.random.seed(spec.seed)  # and what it replays from NumPy's
    loop, device = spec.loop, torch.device("cpu")
    length, count = spec.rollout_shape
    boards = Boards(count, loop.rows, loop.columns, np.random.default_rng(spec.seed))
    fresh = Agent(agent_config(spec), (loop.rows * loop.columns,), 3)
    generator = torch.Generator().manual_seed(spec.seed)
    agent = ActingAgent(fresh.initial_learner_state(generator, torch.float32).params)
    made = new_trainer(agent, spec)
    seen, state = boards.seen(), agent.init_lstm_state(count, device)
    for step in range(spec.num_steps):
        rollout, seen, state = trainer.collect_rollout(agent, boards.step, seen, state, length, device)
        logs = made.step(rollout)
        caught = (rollout["rewards"][rollout["discounts"] == 0] > 0).tolist()
        yield (step + 1) * length * count, caught, logs.get("q_loss")
