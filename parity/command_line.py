"""What all commands share: how layers are chosen, where results go, and how errors and signals become exit codes."""

from __future__ import annotations

import argparse
import io
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from enum import IntEnum
from multiprocessing import resource_tracker
from os import _exit  # an adapter may put another in its place
from pathlib import Path
from typing import Any

from parity.errors import CannotRun, FixtureError, NothingCompared, WeightsMissing, in_words
from parity.files import write_atomically
from parity.implementation import IMPLEMENTATIONS, Implementation, did_you_mean
from parity.weights import WeightsError


class ExitCode(IntEnum):
    """What every command ends with; `pytest` too, where nothing was compared."""

    EQUAL = 0  # or done
    DIFFERENT = 1
    COULD_NOT_RUN = 2
    NOTHING_COMPARED = 3
    INTERRUPTED = 130  # by Ctrl-C or SIGTERM


ENDING = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 1.0  # seconds that a command has to end in order after a signal; then it ends at once
SENTENCES = (CannotRun, FixtureError, WeightsMissing, WeightsError)
STANDARD_OUTPUT = Path("-")
_results: ContextVar[Any] = ContextVar("results")  # what `--json -` writes to
OPTIONS: dict[str, dict[str, Any]] = {
    "layers": {"nargs": "*", "metavar": "LAYER", "help": "names, or prefixes such as values (default: all)"},
    "--impl": {"default": "port", "metavar": "NAME", "help": IMPLEMENTATIONS},
    "--device": {"metavar": "DEVICE", "help": "that an adapter of `parity.adapters` computes on, as cuda"},
    "--json": {"type": Path, "metavar": "FILE", "help": "write the result for machines; - for standard output"},
    "--timeout": {"type": float, "metavar": "SECONDS", "help": "for each call of a layer; one that takes longer fails"},
}


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Declares options that several commands have."""
    for name in names:
        parser.add_argument(name, **OPTIONS[name])


class Output:
    """A stream that goes silent where its reader has gone (`| head`), so that a command still ends with its verdict."""

    def __init__(self, stream: Any):
        """Wraps standard output or standard error; None where it is closed."""
        self._stream = stream or io.StringIO()
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # what an encoding lacks is no reason to fail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes, if somebody reads."""
        return self._guarded(lambda: self._stream.write(text)) or 0

    def flush(self) -> None:
        """Flushes, if somebody reads."""
        self._guarded(self._stream.flush)

    def _guarded(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except OSError as error:  # what is left in the buffer must not fail again as Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not isinstance(error, BrokenPipeError):
                raise
            return None


def exit_code(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, command: Callable[[argparse.Namespace], int]
) -> int:
    """Runs a command; whatever stops it becomes a sentence on standard error, and 2, or 130 for a signal.

    Args:
        parser: of its command line.
        arguments: of the command line; None for those of this process.
        command: gives the exit code.
    """
    program = parser.prog.removeprefix("python -m ")
    parser.allow_abbrev = False  # an option that is not there may be there tomorrow, and another one
    with redirect_stdout(Output(sys.stdout)), redirect_stderr(Output(sys.stderr)):
        args = parser.parse_args(arguments)
        try:
            with ExitStack() as stack:
                stack.enter_context(ending_on_signals(program))
                _results.set(sys.stdout)
                if getattr(args, "json", None) == STANDARD_OUTPUT:
                    stack.enter_context(redirect_stdout(sys.stderr))
                check_places(args)
                code = int(command(args))
                sys.stdout.flush()
                return code
        except KeyboardInterrupt:
            leave(program)
            return ExitCode.INTERRUPTED
        except BaseException as error:  # a SystemExit of an adapter, too: a crash is no verdict
            if sys.flags.dev_mode:  # python -X dev
                traceback.print_exc()
            print(f"{program}: {sentence_of(error)}", file=sys.stderr)
            return ExitCode.NOTHING_COMPARED if isinstance(error, NothingCompared) else ExitCode.COULD_NOT_RUN


def sentence_of(error: BaseException) -> str:
    """What went wrong, and where it was if nobody expected it."""
    if isinstance(error, SENTENCES):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'A file or stream'} cannot be used: {error.strerror}."
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{in_words(error)} ({place.filename}, line {place.lineno}; `python -X dev -m ...` shows how it came there)"


@contextmanager
def ending_on_signals(program: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt in the block; what has not ended soon after is ended at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    has_ended, (reader, writer) = threading.Event(), os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:  # in a thread: the main one may be inside a compiler, where no handler runs
        with open(reader, "rb", buffering=0) as signals:
            while number := signals.read(1):  # of each signal that has a handler, also another's
                if number[0] in ENDING and not has_ended.wait(PATIENCE):
                    leave(program)
                    _exit(ExitCode.INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()
    before = {number: signal.signal(number, signal.default_int_handler) for number in ENDING}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        has_ended.set()
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started in the block take no SIGINT, which a terminal sends to all; so they stay silent."""
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")  # it tidies up after an abrupt end
    resource_tracker.ensure_running()  # which would let SIGINT through again, if it were started in the block
    sys.warnoptions.pop()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Called in a process that another one started: it ends soon after that one, however that ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        _exit(1)

    threading.Thread(target=watch, daemon=True).start()


def leave(program: str) -> None:
    """Ends the processes that this one started, and says that it was interrupted."""
    for child in multiprocessing.active_children():
        child.kill()
    print(f"{program}: interrupted; what was written until now is whole, and is kept.", file=sys.stderr, flush=True)


def check_places(args: argparse.Namespace) -> None:
    """Raises CannotRun where a result could not be written, before the work is done."""
    for option, is_folder in (("json", False), ("out", True), ("diagram", False)):
        path = getattr(args, option, None)
        if not isinstance(path, Path) or path == STANDARD_OUTPUT:
            continue
        if path.is_dir() and not is_folder:
            raise CannotRun(f"--{option} is {path}, a folder; give a file.")
        for folder in (path, *path.parents) if is_folder else path.parents:
            if folder.exists() and not folder.is_dir():
                raise CannotRun(f"--{option} is {path}, but {folder} is a file; give another place.")


def chosen(layers: Sequence[str], known: Sequence[str]) -> list[str]:
    """The layers of these names, or under these prefixes (`values`), in data-flow order; all if none is named."""
    under = {asked: {name for name in known if f"{name}/".startswith(f"{asked.rstrip('/')}/")} for asked in layers}
    if unknown := [asked for asked, names in under.items() if not names]:
        raise CannotRun(f"No layer is called {unknown[0]!r}. {did_you_mean(unknown[0])}")
    return [name for name in known if not layers or name in set().union(*under.values())]


def require_some(implementation: Implementation) -> None:
    """Raises CannotRun where an implementation has no layer at all."""
    if not implementation.layers:
        raise CannotRun(f"{implementation.name} provides no layer; list the names of its layers in `layers`.")


def finite(number: float | None) -> float | None:
    """A number for JSON, which has no infinity."""
    return number if number is not None and math.isfinite(number) else None


def write_json(path: Path | None, content: object) -> None:
    """Writes a result for machines, if it is asked for."""
    write_result(path, (json.dumps(content, indent=1) + "\n").encode())


def write_result(path: Path | None, content: bytes) -> None:
    """Writes a file that an option names, if it does; standard output for `-`."""
    if path == STANDARD_OUTPUT:
        _results.get(sys.stdout).write(content.decode())
    elif path is not None:
        write_atomically(path, content)
