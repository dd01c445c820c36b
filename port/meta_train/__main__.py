"""Meta-trains an update rule on Catch.

Each meta-update leaves a row in log.csv: means over the population (of losses too, where the original's notebook logs
its last agent's), then age and catch rate of each agent. One run at a time can use an --out; a killed one goes on.
Started by torchrun, the population is spread over its processes instead of --workers; the outcome is the same.

example: python -m port.meta_train --small --boards 5x5,6x6,7x7,8x8 --num-meta-updates 4000 --evaluate-every 200 \
--out runs/meta_train
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from port import command_line, distributed
from port.meta_train.checkpoint import Files
from port.meta_train.config import SMALL, MetaTrainConfig
from port.meta_train.plot import draw
from port.meta_train.run import Report, run
from port.meta_train.workers import Ranks, Workers


def parser() -> argparse.ArgumentParser:
    """The command line: a flag for each setting, beside the run's own."""
    parser = command_line.make_parser("port.meta_train", __doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/meta_train"), help="where everything is written")
    parser.add_argument("--weights", type=Path, help="start from this .npz file, in the original's names")
    parser.add_argument("--small", action="store_true", help="defaults of a small rule instead of the notebook's")
    parser.add_argument("--workers", type=int, default=2, help="processes over which the population is spread")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    command_line.add_settings(parser, MetaTrainConfig, "notebook: ", keeps_defaults=False)
    return parser


def read_config(arguments: argparse.Namespace) -> MetaTrainConfig:
    """The settings that the command line asks for."""
    chosen = command_line.chosen(arguments, (f.name for f in fields(MetaTrainConfig)))
    return MetaTrainConfig(**{**(SMALL if arguments.small else {}), **chosen})


def figures(report: Report) -> str:
    """The newest figures of a run, to stand beside its progress."""
    best = f"  best {report.best_score:.3f} at {report.best_step}" if report.best_step > 0 else ""
    return f"meta-loss {report.row['meta_loss']:+.3f}  reward {report.row['rewards']:+.3f}{best}"


def meta_train(arguments: argparse.Namespace) -> int:
    """Runs the loop; 0 as it is done."""
    config = read_config(arguments)
    averaging = distributed.connect()
    workers = Ranks(config, averaging) if averaging else Workers(config, arguments.workers)
    if averaging and averaging.rank > 0 and isinstance(workers, Ranks):
        workers.serve()
        return 0
    began, steps = time.perf_counter(), 0
    with command_line.progress("meta-updates", config.num_meta_updates, is_quiet=arguments.quiet) as show:

        def on_step(report: Report) -> None:
            nonlocal steps
            steps += 1
            show(report.step, figures(report))
            if report.score is not None and not arguments.quiet:
                print(f"after {report.step} meta-updates fresh agents catch {report.score:.3f} of balls")

        try:
            end = run(config, arguments.out, workers, arguments.weights, on_step)
        finally:
            workers.close()
    draw(Files(arguments.out))
    rate = (time.perf_counter() - began) / max(1, steps)
    print(f"{end.step} meta-updates are done, {rate:.2f} s for each of the last {steps}; see {arguments.out}.")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = parser().parse_args(argv)
    kept = f"; the same command goes on from the last checkpoint in {arguments.out}, if there is one"
    return command_line.run("port.meta_train", lambda: meta_train(arguments), lambda: kept)


if __name__ == "__main__":
    sys.exit(main())
