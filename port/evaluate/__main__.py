"""Judges an update rule: fresh agents learn Catch by it, one from each seed.

example: python -m port.evaluate --weights my_rule.npz --seeds 5 --steps 1000 --at-least 4
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from port import agent_flags, bundled, command_line
from port.config import DiscoConfig
from port.evaluate import multi_seed
from port.evaluate.eval_loop import EvalConfig, EvalResult
from port.evaluate.multi_seed import Task

DEFAULT_OUT = Path("runs/evaluate")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser, loop = command_line.make_parser("port.evaluate", __doc__), EvalConfig()
    agent_flags.add_arguments(parser)
    for name, text in (("rows", "of the board"), ("columns", "of the board"), ("batch_size", "of a learner step")):
        default = getattr(loop, name)
        parser.add_argument(command_line.flag(name), type=int, default=default, help=f"{text} (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=loop.num_steps, help="rollouts of a run (default: %(default)s)")
    parser.add_argument("--seeds", default="5", help="how many, or which: 5, or 3,7,12 (default: %(default)s)")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="(default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=multi_seed.cores(), help="processes (default: one for each core)")
    parser.add_argument(
        "--bar", type=float, default=0.95, help="catch rate that counts as solved (default: %(default)s)"
    )
    parser.add_argument("--at-least", type=int, default=0, metavar="N", help="exit with 1 if fewer seeds solve it")
    command_line.add_outputs(parser, DEFAULT_OUT, str(DEFAULT_OUT))
    return parser


def read_seeds(text: str) -> list[int]:
    """The seeds that `5` or `3,7,12` mean."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes a number, or seeds separated by commas; got {text!r}.") from None
    if "," not in text:
        seeds = list(range(seeds[0]))
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise ValueError(f"--seeds {text} gives no list of different seeds.")
    if max(seeds) >= 2**63:
        raise ValueError(f"--seeds {text} gives a seed that does not fit into 63 bits.")
    return seeds


def task_of(arguments: argparse.Namespace) -> Task:
    """What every run has in common."""
    loop = EvalConfig(
        num_steps=arguments.steps, batch_size=arguments.batch_size, rows=arguments.rows, columns=arguments.columns
    )
    config, file = agent_flags.chosen_config(arguments)
    return Task(config, loop, file, arguments.dtype)


def write_curve(run: EvalResult, folder: Path) -> None:
    """Leaves a run as a CSV file, one row per step."""
    with (folder / f"seed_{run.config.seed}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("step", *run.columns))
        for step, row in enumerate(zip(*run.columns.values(), strict=True)):
            writer.writerow((step + 1, *(f"{x:.9g}" for x in row)))


def summary(task: Task, runs: Sequence[EvalResult], bar: float, seconds: float) -> dict[str, Any]:
    """What came out, for machines."""
    is_disco = isinstance(task.agent.rule, DiscoConfig)
    agent = asdict(task.agent)
    if is_disco:
        del agent["meta_net"]["inputs"]  # Disco103's, always
    else:
        del agent["meta_net"]
    return {
        "weights": str(task.weights) if task.weights else None,
        "rule": "disco" if is_disco else "actor_critic",
        "agent": agent,
        "loop": asdict(task.loop),
        "dtype": task.dtype,
        "bar": bar,
        "solved": sum(run.catch_rate >= bar for run in runs),
        "seeds": [
            {"seed": run.config.seed, "catch_rate": run.catch_rate, "solved_at": run.solved_at(bar)}
            for run in sorted(runs, key=lambda run: run.config.seed)
        ],
        "seconds": round(seconds, 1),
    }


def verdict(found: dict[str, Any]) -> str:
    """The outcome in words."""
    loop, lines = found["loop"], []
    for run in found["seeds"]:
        when = f", first reached after step {run['solved_at']}" if run["solved_at"] else ""
        lines.append(f"seed {run['seed']}: {run['catch_rate']:.2f} of the last 100 balls caught{when}")
    source = "the bundled rule" if found["weights"] == str(bundled.WEIGHTS) else found["weights"] or found["rule"]
    lines.append(
        f"{found['solved']} of {len(found['seeds'])} seeds catch at least {found['bar']:g} on "
        f"{loop['rows']}x{loop['columns']} after {loop['num_steps']} steps with {source} ({found['seconds']:.0f} s)."
    )
    return "\n".join(lines)


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluates all seeds; 0 done, 1 fewer solve it than asked for."""
    task, seeds, target = task_of(arguments), read_seeds(arguments.seeds), command_line.summary_path(arguments)
    if not isfinite(arguments.bar):
        raise ValueError(f"--bar {arguments.bar} is no catch rate.")
    if not 0 <= arguments.at_least <= len(seeds):
        raise ValueError(f"--at-least {arguments.at_least} cannot be met by {len(seeds)} seeds.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    began, runs = time.perf_counter(), []
    with command_line.progress("seeds", len(seeds), is_quiet=arguments.quiet) as show:
        for run in multi_seed.run_all(task, seeds, arguments.jobs):
            write_curve(run, arguments.out)
            runs.append(run)
            show(len(runs), f"seed {run.config.seed}: {run.catch_rate:.2f} caught")
    found = summary(task, runs, arguments.bar, time.perf_counter() - began)
    command_line.write_summary(target, found)
    print(verdict(found))
    return 1 if found["solved"] < arguments.at_least else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = parser().parse_args(argv)
    kept = f"; the curves of the seeds that ended are in {arguments.out}"
    return command_line.run("port.evaluate", lambda: evaluate(arguments), lambda: kept)


if __name__ == "__main__":
    sys.exit(main())
