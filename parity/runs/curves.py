"""Learning curves: how a training run is kept, and the original's recorded runs.

A run is kept as a CSV file with a row for each step of the loop: frames acted so far, the catch rate over the last 100
episodes, the value loss that the learner logged (empty where it logs none), and the episodes that ended in the step, in
order, `1` where the ball was caught and `0` where not. The catch rate follows from the last column, and is checked when
a file is read.

An implementation that learns has one more method beside its layers:

    train(spec) -> iterator of (frames, caught, value_loss), one for each step: frames acted so far; for each episode
    that ended in the step whether the ball was caught; the value loss of the learner step (the original's log
    `q_loss`), None while nothing is learned and for a rule that logs none. None where it cannot train that run

`spec` is a `RunSpec`; computing is in float32. The same spec gives the same run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from parity.errors import FixtureError
from parity.files import reading
from parity.goldens import manifests
from parity.goldens.manifests import FIXTURES
from parity.runs.spec import RunSpec

LAST_EPISODES = 100  # over which the catch rate is taken
FOLDER = FIXTURES / "curves"
HEADER = "step,frames,catch_rate,value_loss,caught"
REMEDY = "Restore it with `git checkout -- fixtures`, or record it with `python -m reference curves`."
FORM = {"curves": {str: {"spec": {"loop": {"num_steps": int}}, "seeds": {str: str}}}}  # as of `check_form`
Step: TypeAlias = tuple[int, Sequence[bool], float | None]


class Learner(Protocol):
    """An implementation that learns."""

    name: str
    description: str

    def train(self, spec: RunSpec) -> Iterator[Step] | None:
        """A training run, step by step."""


@dataclass(frozen=True)
class Curve:
    """A training run.

    Attributes:
        frames: [N], frames acted up to each step.
        caught: [N], for each step the episodes that ended in it, in order.
        value_losses: [N], of each learner step; None where there is none.
    """

    frames: tuple[int, ...]
    caught: tuple[tuple[bool, ...], ...]
    value_losses: tuple[float | None, ...]

    @cached_property
    def catch_rates(self) -> np.ndarray:
        """[N], over the last 100 episodes up to each step; NaN before the first has ended."""
        ends = self.episodes
        every = np.array([c for step in self.caught for c in step], float)
        total = np.concatenate(([0.0], np.cumsum(every)))
        starts = np.maximum(ends - LAST_EPISODES, 0)
        counts = np.where(ends > 0, ends - starts, 1)
        return np.where(ends > 0, (total[ends] - total[starts]) / counts, np.nan)

    @cached_property
    def episodes(self) -> np.ndarray:
        """[N], episodes ended up to each step."""
        return np.cumsum([len(step) for step in self.caught])

    def __len__(self) -> int:
        return len(self.frames)

    def first(self, num_steps: int) -> Curve:
        """The first steps."""
        return Curve(self.frames[:num_steps], self.caught[:num_steps], self.value_losses[:num_steps])

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Curve:
        """A run from its steps, numbers as they come back from a file."""
        frames, caught, losses = [], [], []
        for frame, ended, loss in steps:
            frames.append(int(frame))
            caught.append(tuple(bool(c) for c in ended))
            losses.append(None if loss is None else float(f"{loss:.9g}"))
        return cls(tuple(frames), tuple(caught), tuple(losses))


def to_csv(curve: Curve) -> bytes:
    """A run as a file."""
    rows = zip(curve.frames, curve.catch_rates, curve.value_losses, curve.caught, strict=True)
    lines = [_line(number, *row) for number, row in enumerate(rows, start=1)]
    return "\n".join([HEADER, *lines, ""]).encode()


def _line(number: int, frames: int, rate: float, loss: float | None, caught: Sequence[bool]) -> str:
    return f"{number},{frames},{rate:.6g},{'' if loss is None else f'{loss:.9g}'},{''.join('01'[c] for c in caught)}"


def from_csv(content: bytes, name: str) -> Curve:
    """Reads a run; FixtureError says what is wrong with the file called `name`."""
    lines = content.decode("ascii", errors="replace").split("\n")
    if lines[0] != HEADER or lines[-1] != "":
        raise FixtureError(f"{name} is no whole curve: it must begin with `{HEADER}` and end with a line break.")
    steps = list[Step]()
    for number, line in enumerate(lines[1:-1], start=1):
        try:
            _, frames, _, loss, caught = line.split(",")
            steps.append((int(frames), [c == "1" for c in caught], float(loss) if loss else None))
        except ValueError:
            raise FixtureError(
                f"{name}, line {number + 1}, is {line!r}; it must be step {number} as `{HEADER}`."
            ) from None
    curve = Curve.of(steps)
    if not steps or list(curve.frames) != sorted((0, *curve.frames))[1:]:
        raise FixtureError(f"{name} is no curve: it has no step, or its frames become fewer.")
    for number, (line, own) in enumerate(zip(lines, to_csv(curve).decode().split("\n"), strict=True), start=1):
        if line != own:
            what = "the catch rate is not the one of the episodes listed"
            raise FixtureError(f"{name}, line {number}: {what}, or a number is not written as here: {own!r}.")
    return curve


def file_name(preset: str, seed: int) -> str:
    """The name of a run's file."""
    return f"{preset}_seed{seed}.csv"


def manifest_entry(spec: RunSpec) -> dict[str, Any]:
    """All that the runs of a preset have in common."""
    entry = spec.as_json()
    del entry["seed"]
    if spec.weights:
        entry["weights_sha256"] = spec.weights_sha256()
    return entry


class Recorded:
    """The original's recorded runs, each checked against the manifest when it is read."""

    def __init__(self, folder: Path = FOLDER):
        """Reads the manifest."""
        self.folder, self.path = folder, folder / "manifest.json"
        self.manifest = manifests.read(self.path, REMEDY, FORM, what="there are no recorded curves")
        self._presets: dict[str, Any] = self.manifest["curves"]

    def presets(self) -> list[str]:
        """Those that were recorded."""
        return list(self._presets)

    def curves(self, spec: RunSpec) -> dict[int, Curve]:
        """Seed -> run, all of one preset; FixtureError where they were recorded with another spec."""
        entry = self._presets.get(spec.preset)
        if entry is None:
            raise FixtureError(f"No curve of {spec.preset} is recorded in {self.folder}. {REMEDY}")
        with reading(self.path, REMEDY):
            _check_spec(spec, entry["spec"])
            return {int(seed): self._read(spec.preset, int(seed), sha256) for seed, sha256 in entry["seeds"].items()}

    def _read(self, preset: str, seed: int, sha256: str) -> Curve:
        path = self.folder / file_name(preset, seed)
        with reading(path, REMEDY):
            content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != sha256:
            raise FixtureError(f"{path} is damaged: its sha256 is not the one in the manifest. {REMEDY}")
        return from_csv(content, str(path))


def _check_spec(spec: RunSpec, recorded: Mapping[str, Any]) -> None:
    """A run may be shorter than what was recorded; all else must be the same."""
    wanted = manifest_entry(spec.with_steps(recorded["loop"]["num_steps"]))
    odd = [name for name in sorted({*wanted, *recorded}) if wanted.get(name) != recorded.get(name)]
    if odd:
        raise FixtureError(f"The curves of {spec.preset} were recorded with another {odd[0]}. {REMEDY}")
