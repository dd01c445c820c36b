"""What the port's commands share: flags made from settings, a progress bar, a summary, and errors as sentences."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from port import distributed
from port.processes import interruptible

INTERRUPTED = 130
ERRORS = (ValueError, TypeError, OSError, RuntimeError, FloatingPointError)
SETTING = re.compile(r"\b(?:Train|MetaTrain|Agent|AgentNet|Disco|ActorCritic|MetaNet)Config\.(\w+)")


def setting(default: Any, text: str) -> Any:
    """A field of a dataclass of settings, with the help of its flag."""
    return field(default=default, metadata={"help": text})


def make_parser(command: str, text: str | None) -> argparse.ArgumentParser:
    """A parser that explains a command by the text of its module, which ends with an example."""
    about, _, example = (text or "").partition("example: ")
    return argparse.ArgumentParser(
        f"python -m {command}", description=about, epilog=f"example: {example}", allow_abbrev=False
    )


def flag(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


def add_settings(parser: argparse.ArgumentParser, settings: type, note: str = "", keeps_defaults: bool = True) -> None:
    """Declares a flag for each `setting` of a dataclass.

    Args:
        parser: of the command.
        settings: the dataclass.
        note: what stands before a default in the help.
        keeps_defaults: whether a flag that is left out has the setting's default, rather than None.
    """
    for each in fields(settings):
        text = f"{each.metadata['help']} ({note}{_shown(each.default)})"
        default = each.default if keeps_defaults else None
        parser.add_argument(flag(each.name), type=reader(each.default), default=default, help=text)


def add_outputs(parser: argparse.ArgumentParser, out: Path | None, shown: str) -> None:
    """Declares where a command writes, and whether it shows its progress."""
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"for everything (default: {shown})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the summary for machines (default: in --out)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _shown(value: Any) -> str:
    """A value as it would be typed."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def reader(example: Any) -> Callable[[str], Any]:
    """Reads values of the kind of an example; those of a tuple are separated by commas."""
    if isinstance(example, bool):
        return _yes_or_no
    if not isinstance(example, tuple):
        return type(example)
    kind = type(example[0])

    def items(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"give one or more, as {_shown(example)}, not {text!r}") from None

    return items


def _yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise argparse.ArgumentTypeError(f"say yes or no, not {text!r}")
    return text == "yes"


def chosen(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Values of the flags that were not left out."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def progress(title: str, total: int, done: int = 0, is_quiet: bool = False) -> Iterator[Callable[[int, str], None]]:
    """A bar with the time left; what it yields moves it to a number of steps and shows figures beside it."""
    if is_quiet:
        yield lambda done, figures: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[figures]}")) as bar:
        task = bar.add_task("", total=total, completed=done, figures="")
        yield lambda done, figures: bar.update(task, completed=done, figures=figures)


def summary_path(arguments: argparse.Namespace) -> Path:
    """The file of a command's summary: --json, or one in --out; ValueError where it could not be written."""
    path: Path = arguments.json or arguments.out / "summary.json"
    if path.is_dir():
        raise ValueError(f"The summary cannot be written to {path}, a folder; give a file.")
    if arguments.json and not path.parent.is_dir():
        raise ValueError(f"The summary cannot be written to {path}: there is no folder {path.parent}; make it first.")
    return path


def write_summary(path: Path, summary: dict[str, Any]) -> None:
    """Writes what a command has found, for machines."""
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def run(command: str, work: Callable[[], int], stopped: Callable[[], str] = str) -> int:
    """Does a command's work; its exit code: 2 after a sentence where it could not be done, 130 where it was stopped.

    Args:
        command: its name.
        work: gives the exit code.
        stopped: what becomes of the work where Ctrl-C or SIGTERM stops it; torchrun's processes have their own way.
    """
    try:
        with nullcontext() if distributed.is_one_of_many() else interruptible():
            code = work()
    except KeyboardInterrupt:
        print(f"\n{command}: stopped{stopped()}.", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:  # `| head`, which wants to hear no more
        code = 2
    except ERRORS as problem:
        sentence = SETTING.sub(lambda match: flag(match[1]), str(problem))  # settings are options here
        print(f"{command}: {sentence}", file=sys.stderr)
        code = 2
    try:
        sys.stdout.flush()
    except OSError:  # what Python flushes as it ends must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return distributed.leave(code)
