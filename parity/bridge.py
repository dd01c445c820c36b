"""A program in any language as an implementation: `--impl "cmd:./program arguments"`.

One process answers requests on its standard input and output for the whole run; it is started again where it failed.
`parity/README.md` has the protocol, and `parity/examples/` a program in C.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import IO

from safetensors.numpy import load, save

from parity.errors import CannotRun
from parity.layers.spec import Arrays, Settings

PREFIX = "cmd:"
SECONDS = 120.0  # for one answer
LARGEST = 2**32  # bytes of an answer; text in the place of a length gives far more
AT_ONCE = 2**20  # bytes
ONLY_FRAMES = "only frames may stand on its standard output"


class ProgramFailed(Exception):
    """A program gave no right answer; the message says why."""


class ProgramEnded(ProgramFailed):
    """A program ended with exit code 0 before it had answered."""


class Program:
    """An implementation that is a process."""

    def __init__(self, command: str, seconds: float = SECONDS):
        """Starts the program and asks for its layers; CannotRun if that fails.

        Args:
            command: program and arguments, as for a shell.
            seconds: that it may take for one answer.
        """
        self._command, self.seconds = _arguments(command), seconds
        self._process: Process | None = None
        try:
            about, _ = self._ask({"call": "hello", "protocol": "1"}, {})
        except ProgramFailed as error:
            raise CannotRun(f"{PREFIX}{command}: {error}") from None
        self.name = about.get("name") or os.path.basename(self._command[0])
        self.description = about.get("description") or shlex.join(self._command)
        self._is_choosy = "settings" in about
        self.layers, self._with_vjp = (about.get(key, "").split() for key in ("layers", "vjps"))
        optional = (entry.partition("=") for entry in about.get("optional", "").split())
        self.optional_outputs = {layer: patterns.split(",") for layer, _, patterns in optional}

    def unsupported(self, layer: str, settings: Settings) -> str:
        """Why a layer cannot be computed with these settings, of programs that want to be asked; empty if it can."""
        with contextlib.suppress(ProgramFailed):  # it will fail again as it computes
            request = _request("supports", layer, settings, "float64")
            return self._ask(request, {})[0].get("unsupported", "") if self._is_choosy else ""
        return ""

    def run(self, layer: str, inputs: Arrays, settings: Settings, dtype: str) -> Arrays:
        """The layer's outputs."""
        return self._ask(_request("run", layer, settings, dtype), inputs)[1]

    def vjp(
        self, layer: str, inputs: Arrays, settings: Settings, dtype: str, cotangents: Arrays, wrt: Sequence[str]
    ) -> Arrays:
        """The VJPs, of layers for which the program lists them."""
        if layer not in self._with_vjp:
            raise NotImplementedError
        request = {**_request("vjp", layer, settings, dtype), "wrt": " ".join(wrt)}
        return self._ask(request, {**inputs, **{f"cotangent:{name}": value for name, value in cotangents.items()}})[1]

    def _ask(self, request: Mapping[str, str], tensors: Arrays) -> tuple[dict[str, str], Arrays]:
        has_answered = self._process is not None and not self._process.has_ended
        if not has_answered:
            self._process = Process(self._command)
        assert self._process is not None
        try:
            metadata, answer = _parsed(self._process.ask(save(tensors, dict(request)), self.seconds))
        except BaseException as error:  # it may be in the middle of an answer, so only a new process can go on
            self._process.end()
            self._process = None
            if has_answered and isinstance(error, ProgramEnded):  # perhaps it was ending since its last answer
                return self._ask(request, tensors)
            raise
        if "error" in metadata:
            raise ProgramFailed(f"the program answered with an error: {metadata['error']}")
        return metadata, answer


def _arguments(command: str) -> list[str]:
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise CannotRun(f"{PREFIX}{command} cannot be split into arguments ({error}).") from None
    if not arguments:
        raise CannotRun(f"{PREFIX} names no program; write it as cmd:./my_program.")
    return arguments


def _request(call: str, layer: str, settings: Settings, dtype: str) -> dict[str, str]:
    numbers = {f"settings/{name}": json.dumps(value) for name, value in settings.items()}
    return {"call": call, "layer": layer, "dtype": dtype, **numbers}


def _parsed(answer: bytes) -> tuple[dict[str, str], Arrays]:
    """Metadata and tensors of a safetensors file."""
    try:
        tensors = load(answer)
        metadata = json.loads(answer[8 : 8 + int.from_bytes(answer[:8], "little")]).get("__metadata__")
    except Exception as error:
        raise ProgramFailed(
            f"the program's answer is no safetensors file: {error}; it begins {answer[:40]!r}"
        ) from None
    return metadata or {}, tensors


class Process:
    """A running program that answers frames: a length of 8 bytes, the lowest first, then so many bytes."""

    def __init__(self, arguments: Sequence[str]):
        """Starts it; CannotRun where there is no such program."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it is read where the program fails
        pipe = subprocess.PIPE
        try:
            # In a session of its own, so that what the program starts ends with it.
            self._popen = subprocess.Popen(
                arguments, bufsize=0, stdin=pipe, stdout=pipe, stderr=self._errors, start_new_session=True
            )
        except OSError as error:
            self._errors.close()
            hint = f" Did you mean {PREFIX}./{arguments[0]}?" if os.path.isfile(arguments[0]) else ""
            raise CannotRun(f"The program {arguments[0]!r} cannot be started: {error.strerror}.{hint}") from None
        assert self._popen.stdin and self._popen.stdout
        self._requests, self._answers = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        self.end = weakref.finalize(self, _close, self._popen, self._errors)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._popen.poll() is not None

    def ask(self, request: bytes, seconds: float) -> bytes:
        """The answer to a request, or ProgramFailed."""
        self._deadline = time.monotonic() + seconds
        try:
            self._refuse_what_is_there_already()
            self._write(len(request).to_bytes(8, "little") + request)
            length = self._read(8)
            size = int.from_bytes(length, "little")
            if size > LARGEST:
                raise ProgramFailed(f"the program wrote {length!r} for the length of its answer; {ONLY_FRAMES}")
            return self._read(size)
        except TimeoutError:
            raise ProgramFailed(f"the program gave no answer within {seconds:g} s{self._last_words()}") from None
        except (EOFError, BrokenPipeError):
            words = self._end_in_words() + self._last_words()
            raise (ProgramEnded if self._popen.poll() == 0 else ProgramFailed)(words) from None

    def _refuse_what_is_there_already(self) -> None:
        if select.select([self._answers], [], [], 0)[0] and (rest := os.read(self._answers, 40)):
            raise ProgramFailed(f"the program wrote {rest!r} without a request; {ONLY_FRAMES}")

    def _write(self, content: bytes) -> None:
        left = memoryview(content)
        while left:
            self._wait([], [self._requests])
            left = left[os.write(self._requests, left[: select.PIPE_BUF]) :]  # what surely fits

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            self._wait([self._answers], [])
            part = os.read(self._answers, min(count - len(parts), AT_ONCE))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _wait(self, readable: list[int], writable: list[int]) -> None:
        if not any(select.select(readable, writable, [], max(0.0, self._deadline - time.monotonic()))):
            raise TimeoutError

    def _end_in_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._popen.wait(1.0)
            names = {number.value: number.name for number in signal.Signals}
            how = f"by signal {names.get(-code, -code)}" if code < 0 else f"with exit code {code}"
            return f"the program ended {how} before it had answered"
        return "the program closed its standard output before it had answered"

    def _last_words(self) -> str:
        """The last line of what the program wrote to standard error."""
        self._errors.seek(max(0, os.fstat(self._errors.fileno()).st_size - 400))
        lines = self._errors.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; its standard error ends: {said}" if said else ""


def _close(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    """Ends a process and what it has started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout, errors):
        if stream is not None:
            stream.close()
    process.wait()
