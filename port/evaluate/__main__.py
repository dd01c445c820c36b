"""Judges an update rule: fresh agents learn Catch by it, one from each seed.

example: python -m port.evaluate --weights my_rule.npz --seeds 5 --steps 1000 --at-least 4
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from math import isfinite
from pathlib import Path
from typing import Any

from port import agent_flags, bundled
from port.config import DiscoConfig
from port.evaluate import multi_seed
from port.evaluate.eval_loop import EvalConfig
from port.evaluate.multi_seed import Run, Task

DEFAULT_OUT = Path("runs/evaluate")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    text, _, example = (__doc__ or "").partition("\n\n")
    made = argparse.ArgumentParser("python -m port.evaluate", description=text, epilog=example, allow_abbrev=False)
    made.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="the rule's weights, .npz in the original's names (default: the bundled rule)",
    )
    made.add_argument("--rule", choices=("disco", "actor_critic"), default="disco", help="(default: %(default)s)")
    made.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="JSON with sizes of agent and rule, such as port.meta_train writes (default: beside the weights, "
        "with .json for .npz, if there)",
    )
    loop = EvalConfig()
    for name, what in (("rows", "of the board"), ("columns", "of the board"), ("batch-size", "of a learner step")):
        default = getattr(loop, name.replace("-", "_"))
        made.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: %(default)s)")
    made.add_argument("--steps", type=int, default=loop.num_steps, help="rollouts of a run (default: %(default)s)")
    made.add_argument("--seeds", default="5", help="how many, or which: 5, or 3,7,12 (default: %(default)s)")
    agent_flags.add_arguments(made)
    made.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="(default: %(default)s)")
    made.add_argument("--jobs", type=int, default=multi_seed.cores(), help="processes (default: one for each core)")
    made.add_argument("--bar", type=float, default=0.95, help="catch rate that counts as solved (default: %(default)s)")
    made.add_argument("--at-least", type=int, default=0, metavar="N", help="exit with 1 unless so many seeds solve it")
    made.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR", help="for curves (default: %(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="the summary for machines (default: in --out)")
    made.add_argument("--quiet", action="store_true", help="no progress bar")
    return made


def read_seeds(text: str) -> list[int]:
    """The seeds that `5` or `3,7,12` mean."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes a number, or seeds separated by commas; got {text!r}.") from None
    if "," not in text:
        found = list(range(found[0]))
    if not found or len(set(found)) != len(found) or min(found) < 0:
        raise ValueError(f"--seeds {text} gives no list of different seeds.")
    if max(found) >= 2**63:
        raise ValueError(f"--seeds {text} gives a seed that does not fit into 63 bits.")
    return found


def task_of(arguments: argparse.Namespace) -> Task:
    """What every run has in common."""
    loop = EvalConfig(
        num_steps=arguments.steps, batch_size=arguments.batch_size, rows=arguments.rows, columns=arguments.columns
    )
    file = agent_flags.weights_of(arguments.rule, arguments.weights)
    config = agent_flags.agent_config(arguments.rule, file, arguments.config, agent_flags.given(arguments))
    return Task(config, loop, file, arguments.dtype)


def write_curve(run: Run, folder: Path) -> Path:
    """Leaves a run as a CSV file, one row per step."""
    path = folder / f"seed_{run.seed}.csv"
    columns = {**run.columns, "catch_rate": run.catch_rates}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("step", *columns))
        for step, row in enumerate(zip(*columns.values(), strict=True)):
            writer.writerow((step + 1, *(f"{x:.9g}" for x in row)))
    return path


def summary(task: Task, runs: Sequence[Run], bar: float, seconds: float) -> dict[str, Any]:
    """What came out, for machines."""
    each = [
        {"seed": run.seed, "catch_rate": run.catch_rate, "solved_at": run.solved_at(bar)}
        for run in sorted(runs, key=lambda run: run.seed)
    ]
    is_disco = isinstance(task.agent.rule, DiscoConfig)
    agent = {f.name: _plain(getattr(task.agent, f.name)) for f in fields(task.agent)}
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
        "seeds": each,
        "seconds": round(seconds, 1),
    }


def _plain(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


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


def check_asked(arguments: argparse.Namespace, seeds: int, target: Path) -> None:
    """Raises ValueError for what would only show after all runs have ended."""
    if not isfinite(arguments.bar):
        raise ValueError(f"--bar {arguments.bar} is no catch rate.")
    if not 0 <= arguments.at_least <= seeds:
        raise ValueError(f"--at-least {arguments.at_least} cannot be met by {seeds} seeds.")
    if target.is_dir() or (arguments.json and not target.parent.is_dir()):
        raise ValueError(f"The summary cannot be written to {target}; give a file in a folder that exists.")


def run(arguments: argparse.Namespace) -> int:
    """Evaluates all seeds; 0 done, 1 fewer solve it than asked for."""
    task, chosen = task_of(arguments), read_seeds(arguments.seeds)
    target = arguments.json or arguments.out / "summary.json"
    check_asked(arguments, len(chosen), target)
    arguments.out.mkdir(parents=True, exist_ok=True)
    began, runs = time.perf_counter(), []
    results: Iterable[Run] = multi_seed.run_all(task, chosen, arguments.jobs)
    if not arguments.quiet:
        from rich.progress import track

        results = track(results, "seeds", total=len(chosen))
    for one in results:
        write_curve(one, arguments.out)
        runs.append(one)
    found = summary(task, runs, arguments.bar, time.perf_counter() - began)
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(verdict(found))
    return 1 if found["solved"] < arguments.at_least else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = parser().parse_args(argv)
    try:
        return run(arguments)
    except (ValueError, OSError, RuntimeError) as problem:
        print(f"port.evaluate: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
