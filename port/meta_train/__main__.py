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
from typing import Any

from port import distributed
from port.meta_train.config import SMALL, MetaTrainConfig
from port.meta_train.ranks import Ranks
from port.meta_train.run import Files, Report, run
from port.meta_train.workers import Workers


def parser() -> argparse.ArgumentParser:
    """The command line: a flag for each setting, beside the run's own."""
    text = (__doc__ or "").split("example: ")
    made = argparse.ArgumentParser(
        "python -m port.meta_train", description=text[0], epilog=f"example: {text[1]}", allow_abbrev=False
    )
    made.add_argument("--out", type=Path, default=Path("runs/meta_train"), help="where everything is written")
    made.add_argument("--weights", type=Path, help="start from this .npz file, in the original's names")
    made.add_argument("--small", action="store_true", help="defaults of a small rule instead of the notebook's")
    made.add_argument("--workers", type=int, default=2, help="processes over which the population is spread")
    made.add_argument("--quiet", action="store_true", help="no progress bar")
    for setting in fields(MetaTrainConfig):
        flag, default = f"--{setting.name.replace('_', '-')}", setting.default
        made.add_argument(flag, type=_reader(default), help=f"{setting.metadata['help']} (notebook: {_shown(default)})")
    return made


def _shown(default: Any) -> str:
    """A default as it would be typed."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _reader(default: Any) -> Any:
    """Reads a setting of the kind of its default; lists are separated by commas."""
    if isinstance(default, bool):
        return _yes_or_no
    if not isinstance(default, tuple):
        return type(default)
    kind = type(default[0])

    def items(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"give one or more, as {_shown(default)}, not {text!r}") from None

    return items


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"say yes or no, not {text!r}")
    return text == "yes"


def read_config(arguments: argparse.Namespace) -> MetaTrainConfig:
    """The settings that the command line asks for."""
    asked = {f.name: getattr(arguments, f.name) for f in fields(MetaTrainConfig)}
    given = {name: value for name, value in asked.items() if value is not None}
    return MetaTrainConfig(**{**(SMALL if arguments.small else {}), **given})


class Progress:
    """A bar with the newest figures beside it."""

    def __init__(self, total: int) -> None:
        """Makes the bar."""
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("meta-updates"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Bar(*columns, TextColumn("{task.fields[figures]}"))
        self._task = self.bar.add_task("", total=total, figures="")

    def show(self, report: Report) -> None:
        """Moves the bar."""
        figures = f"meta-loss {report.row['meta_loss']:+.3f}  reward {report.row['rewards']:+.3f}"
        if report.best_step > 0:
            figures += f"  best {report.best_score:.3f} at {report.best_step}"
        self.bar.update(self._task, completed=report.step, figures=figures)
        if report.score is not None:
            self.bar.console.print(f"after {report.step} meta-updates fresh agents catch {report.score:.3f} of balls")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command."""
    return distributed.leave(_run(parser().parse_args(argv)))


def _serve(ranks: Ranks) -> int:
    """What all ranks but the first do."""
    try:
        ranks.serve()
    except distributed.RankLost as problem:
        print(f"port.meta_train: {problem}", file=sys.stderr)
        return 2
    return 0


def _run(arguments: argparse.Namespace) -> int:
    """0 done, 2 could not run."""
    try:
        config = read_config(arguments)
        averaging = distributed.connect()
        workers = Ranks(config, averaging) if averaging else Workers(config, arguments.workers)
    except (ValueError, distributed.RankLost) as problem:
        print(f"port.meta_train: {problem}", file=sys.stderr)
        return 2
    if averaging and averaging.rank > 0 and isinstance(workers, Ranks):
        return _serve(workers)
    began, progress = time.perf_counter(), None if arguments.quiet else Progress(config.num_meta_updates)
    reports: list[int] = []

    def on_step(report: Report) -> None:
        reports.append(report.step)
        if progress:
            progress.show(report)

    try:
        if progress:
            progress.bar.start()
        end = run(config, arguments.out, workers, arguments.weights, on_step)
    except (ValueError, OSError, RuntimeError, FloatingPointError) as problem:
        print(f"port.meta_train: {problem}", file=sys.stderr)
        return 2
    finally:
        if progress:
            progress.bar.stop()
        workers.close()
    plot(arguments.out)
    rate = (time.perf_counter() - began) / max(1, len(reports))
    print(f"{end.step} meta-updates are done, {rate:.2f} s for each of the last {len(reports)}; see {arguments.out}.")
    return 0


def plot(out: Path) -> None:
    """Draws the log."""
    from port.meta_train.plot import draw

    draw(Files(out))


if __name__ == "__main__":
    sys.exit(main())
