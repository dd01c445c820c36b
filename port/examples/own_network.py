"""An agent with a network of one's own: a convolution sees boards of Catch; `WithHeads` adds what the rule reads."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import port
from port.environments import Catch

STEPS = 600  # rollouts


class Torso(nn.Module):
    """From boards [N, rows, columns, 1] to embeddings [N, 64]."""

    def __init__(self, rows: int, columns: int) -> None:
        """Makes the layers."""
        super().__init__()
        self.conv = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.dense = nn.Linear(8 * rows * columns, 64)

    def forward(self, boards: Tensor) -> Tensor:
        """The embeddings."""
        seen = torch.relu(self.conv(boards.permute(0, 3, 1, 2)))
        return torch.relu(self.dense(seen.flatten(1)))


def main(steps: int = STEPS, out: str | None = None) -> float:
    """Trains on boards of 5x5; the share of balls caught in fresh episodes."""
    torch.manual_seed(0)
    agent, rule = port.load_rule()
    network = port.WithHeads(Torso(5, 5), embedding_size=64, config=agent, num_actions=3)
    world = port.CatchWorld(Catch(5, 5), num_envs=4)
    trainer = port.Trainer(world, agent, rule, network=network, out=out)
    trainer.run(steps, lambda report: print(report.sentence()) if report.step % 100 == 0 else None)
    scores = trainer.evaluate(port.CatchWorld(Catch(5, 5), num_envs=50), episodes=200)
    trainer.close()
    return float((scores.returns > 0).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m port.examples.own_network", description=__doc__)
    parser.add_argument("steps", type=int, nargs="?", default=STEPS, help="rollouts (%(default)s: a minute or two)")
    print(f"{main(parser.parse_args().steps):.2f} of balls are caught.")
