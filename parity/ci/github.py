"""What GitHub reads of a step: annotations on standard output, and files that environment variables name."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from parity.implementation import Implementation

SUMMARY, OUTPUT, WORKSPACE = "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_WORKSPACE"
MOST_BYTES = 1_000_000  # of a summary; GitHub shows nothing of a longer one
ESCAPED = {"%": "%25", "\r": "%0D", "\n": "%0A", ":": "%3A", ",": "%2C"}


def append(variable: str, text: str) -> None:
    """Adds text to the file that a variable of the runner names; nothing outside of a runner."""
    if path := os.environ.get(variable):
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(text)


def cut(summary: str) -> str:
    """As much of a summary as GitHub shows."""
    content = summary.encode()
    if len(content) <= MOST_BYTES:
        return summary
    return content[:MOST_BYTES].decode(errors="ignore") + "\n\nThe rest does not fit here; summary.md has it.\n"


def annotate(level: str, title: str, message: str, place: tuple[str, int] | None = None) -> None:
    """Prints the line that makes GitHub show a message at a place of the sources; nothing outside of a runner.

    Args:
        level: `error`, `warning` or `notice`.
        title: of the message.
        message: what is wrong.
        place: file and line; None shows it for the whole run.
    """
    properties = {"title": title, **(dict(zip(("file", "line"), place, strict=True)) if place else {})}
    named = ",".join(f"{key}={_escaped(str(value), ESCAPED)}" for key, value in properties.items())
    if WORKSPACE in os.environ:
        print(f"::{level} {named}::{_escaped(message, list(ESCAPED)[:3])}")


def _escaped(text: str, characters: Iterable[str]) -> str:
    return "".join(ESCAPED[each] if each in characters else each for each in text)


def place_of(implementation: Implementation, layer: str) -> tuple[str, int] | None:
    """Where an adapter has a layer, as a path from the workspace and a line; None if that is outside of it."""
    workspace = Path(os.environ.get(WORKSPACE) or ".").resolve()
    for file, line in _places(implementation, layer):
        path = Path(file).resolve()
        if path.is_relative_to(workspace) and path.is_file():
            return path.relative_to(workspace).as_posix(), line
    return None


def _places(implementation: Implementation, layer: str) -> Iterator[tuple[str, int]]:
    """The layer's function, the first line that quotes its name, and the adapter's class, as far as there are any."""
    functions = implementation.layers
    code = (
        getattr(functions[layer], "__code__", None) if isinstance(functions, Mapping) and layer in functions else None
    )
    if code:
        yield code.co_filename, code.co_firstlineno
    with contextlib.suppress(OSError, TypeError):  # a class without sources
        file = inspect.getfile(type(implementation))
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        yield from ((file, i) for i, text in enumerate(lines, 1) if f'"{layer}"' in text or f"'{layer}'" in text)
        yield file, inspect.getsourcelines(type(implementation))[1]
