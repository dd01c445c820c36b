"""An environment of one's own as two plain functions, whose state a checkpoint holds exactly: a walk along a corridor.

The agent starts somewhere on the left half and is paid for reaching the right end; a step costs a little, and after 20
steps the episode is cut off.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

import port

CELLS, LIMIT, B = 9, 20, 8
STEPS = 150  # rollouts
State: TypeAlias = dict[str, Tensor]


def show(state: State) -> Tensor:
    """The cell, one-hot: [B, CELLS]."""
    return torch.nn.functional.one_hot(state["cell"], CELLS).float()


def reset(generator: torch.Generator) -> tuple[State, Tensor]:
    """Fresh episodes in all environments."""
    state = {"cell": torch.randint(CELLS // 2, (B,), generator=generator), "age": torch.zeros(B, dtype=torch.long)}
    return state, show(state)


def step(state: State, actions: Tensor, generator: torch.Generator) -> tuple[State, Tensor, Tensor, Tensor, Tensor]:
    """Moves left (0) or right (1): state, observations, rewards, is_terminal, is_truncated."""
    cell = (state["cell"] + 2 * actions - 1).clamp(0, CELLS - 1)
    new = {"cell": cell, "age": state["age"] + 1}
    is_terminal = cell == CELLS - 1
    return new, show(new), is_terminal.float() - 0.05, is_terminal, new["age"] >= LIMIT


def main(steps: int = STEPS, out: str | None = None) -> float:
    """Trains by the actor-critic rule; the mean return of fresh episodes."""
    agent, rule = port.load_rule("actor_critic", dense=(32,), learning_rate=0.01)
    agent = replace(agent, hyper=port.ActorCriticHyperParams(entropy_cost=0.02))
    config = port.TrainConfig(batch_size=16, rollout_length=16)
    trainer = port.Trainer(port.StepFunctions(reset, step, num_actions=2), agent, rule, config, out=out)
    trainer.run(steps, lambda report: print(report.sentence()) if report.step % 50 == 0 else None)
    scores = trainer.evaluate(port.StepFunctions(reset, step, num_actions=2), episodes=40)
    trainer.close()
    return scores.mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m port.examples.step_functions", description=__doc__)
    parser.add_argument("steps", type=int, nargs="?", default=STEPS, help="rollouts (%(default)s: some seconds)")
    print(f"The mean return is {main(parser.parse_args().steps):.2f}; the best there is lies near 0.67.")
