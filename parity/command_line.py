"""What all commands share: how layers are chosen, how results are written, and how errors become sentences."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parity.errors import CannotRun, FixtureError
from parity.files import write_atomically
from parity.implementation import IMPLEMENTATIONS, Implementation, did_you_mean

COULD_NOT_RUN = 2  # exit code; 0 is equal, 1 is different
OPTIONS: dict[str, dict[str, Any]] = {
    "layers": {"nargs": "*", "metavar": "LAYER", "help": "default: all of them"},
    "--impl": {"default": "port", "metavar": "NAME", "help": IMPLEMENTATIONS},
    "--device": {"metavar": "DEVICE", "help": "that an adapter of `parity.adapters` computes on, as cuda"},
    "--json": {"type": Path, "metavar": "FILE", "help": "write the result for machines"},
}


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Declares options that several commands have."""
    for name in names:
        parser.add_argument(name, **OPTIONS[name])


def exit_code(program: str, command: Callable[[], int]) -> int:
    """Runs a command; an error becomes a sentence on standard error and exit code 2."""
    try:
        return command()
    except (CannotRun, FixtureError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return COULD_NOT_RUN


def chosen(layers: Sequence[str], known: Sequence[str]) -> list[str]:
    """The named layers in data-flow order; all of them if none is named."""
    unknown = [name for name in layers if name not in known]
    if unknown:
        raise CannotRun(f"No layer is called {unknown[0]!r}. {did_you_mean(unknown[0])}")
    return [name for name in known if not layers or name in layers]


def require_some(implementation: Implementation) -> None:
    """Raises CannotRun where an implementation has no layer at all."""
    if not implementation.layers:
        raise CannotRun(f"{implementation.name} provides no layer; list the names of its layers in `layers`.")


def finite(number: float | None) -> float | None:
    """A number for JSON, which has no infinity."""
    return number if number is not None and math.isfinite(number) else None


def write_json(path: Path | None, content: object) -> None:
    """Writes a result for machines, if it is asked for."""
    if path is not None:
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
