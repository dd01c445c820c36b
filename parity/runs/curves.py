"""Learning curves: what is lived, how a life is kept, and the original's recorded ones.

A life is kept as a CSV file with a row for each step of the loop: frames acted so far, the catch rate over the last 100
episodes, the value loss that the learner logged (empty where it logs none), and the episodes that ended in the step, in
order, `1` where the ball was caught and `0` where not. The catch rate follows from the last column, and is checked when
a file is read.

An implementation that learns has, beside its layers, one more method, and says by it which settings it can live:

    live(setting, seed) -> iterator of (frames, caught, value_loss), one for each step: frames acted so far; for each
    episode that ended in the step whether the ball was caught; the value loss of the learner step (the original's log
    `q_loss`), None while nothing is learned and for a rule that logs none. Or None where it cannot live that setting

`setting` is a `Setting`; computing is in float32. The same seed gives the same life.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from parity import weights
from parity.errors import FixtureError
from parity.goldens.store import FIXTURES

LAST_EPISODES = 100  # over which the catch rate is taken
FOLDER = FIXTURES / "curves"
HEADER = "step,frames,catch_rate,value_loss,caught"
ROW = re.compile(r"(?P<step>\d+),(?P<frames>\d+),(?P<rate>[\d.]+|nan),(?P<loss>-?[\d.]+(e-?\d+)?)?,(?P<caught>[01]*)")
REMEDY = "restore it with `git checkout -- fixtures`, or record it with `python -m reference curves`"
Step: TypeAlias = tuple[int, Sequence[bool], float | None]


class Learner(Protocol):
    """An implementation that learns."""

    name: str
    description: str

    def live(self, setting: Setting, seed: int) -> Iterator[Step] | None:
        """A life, step by step."""


@dataclass(frozen=True)
class Setting:
    """What every life under one rule has in common, in words that any framework can follow.

    Attributes:
        name: of the setting.
        title: for readers.
        rule: `disco` or `actor_critic`.
        weights: `disco103`, `embedded`, or None for a rule without weights.
        agent: learning rate and sizes of the agent, sizes of the meta-network, options of the rule.
        loop: of the evaluation: `num_steps`, `batch_size`, `rollout_length`, `replay_ratio`, `capacity`, `rows`,
            `columns`, `replay_seed`.
        seconds_per_step: about, on one core; for time estimates only.
    """

    name: str
    title: str
    rule: str
    weights: str | None
    agent: Mapping[str, Any]
    loop: Mapping[str, int]
    seconds_per_step: float = field(default=0.1, compare=False)

    @property
    def num_steps(self) -> int:
        """Steps of a life."""
        return self.loop["num_steps"]

    def shortened(self, num_steps: int | None) -> Setting:
        """The same, but for so many steps."""
        return self if num_steps is None else replace(self, loop={**self.loop, "num_steps": num_steps})

    def as_json(self) -> dict[str, Any]:
        """All that makes a life what it is."""
        kept = asdict(self)
        del kept["seconds_per_step"], kept["title"]
        if self.weights:
            kept["weights_sha256"] = hashlib.sha256(self.weights_path().read_bytes()).hexdigest()
        return kept

    def weights_path(self) -> Path:
        """The file of weights, verified; WeightsMissing or FixtureError says what is wrong."""
        if self.weights == "embedded":
            return _embedded_path()
        try:
            found: Path = weights.find_weights(download=False).path
            return found
        except weights.WeightsError as error:
            raise FixtureError(f"Disco103 cannot be lived: {error}") from None


NOTEBOOK = {"num_steps": 1000, "batch_size": 64, "rollout_length": 29, "replay_ratio": 32, "capacity": 1024}
BOARD = {"rows": 8, "columns": 8, "replay_seed": 17}
FULL_SIZE: dict[str, Any] = {
    **{"learning_rate": 1e-2, "dense": (512, 512), "head_mlp_hiddens": (128,), "lstm_size": 128},
    **{"num_bins": 601, "max_abs_value": 300.0, "prediction_size": 600, "hidden_size": 256, "meta_hidden_size": 128},
}


def _embedded_path() -> Path:
    path, card = FIXTURES / "weights" / "catch_rule.npz", _embedded_card()
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != card["sha256"]:
        raise FixtureError(f"{path} is not what its card says; restore it with `git checkout -- fixtures`.")
    return path


def _embedded_card() -> dict[str, Any]:
    path = FIXTURES / "weights" / "catch_rule.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError) as error:
        raise FixtureError(f"{path} cannot be read ({error}); restore it with `git checkout -- fixtures`.") from None


def _embedded_sizes() -> dict[str, Any]:
    sizes = {name: value for name, value in _embedded_card().items() if name in FULL_SIZE}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in sizes.items()}


def settings() -> dict[str, Setting]:
    """The settings by name. The first two are the original's `eval` notebook; actor-critic learns from what it acts."""
    notebook = {**NOTEBOOK, **BOARD}
    critic = {"learning_rate": 5e-3, "dense": (64, 32, 32), "entropy_cost": 0.01, "normalize_adv": True}
    every = (
        Setting("disco103", "Disco103", "disco", "disco103", FULL_SIZE, notebook, 0.3),
        Setting("embedded", "the rule in the box", "disco", "embedded", _embedded_sizes(), notebook, 0.045),
        Setting(
            *("actor_critic", "actor-critic", "actor_critic", None, critic),
            {**notebook, "num_steps": 300, "replay_ratio": 1, "capacity": 64},
            0.012,
        ),
    )
    return {setting.name: setting for setting in every}


@dataclass(frozen=True)
class Curve:
    """A life.

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
        """The first so many steps."""
        return Curve(self.frames[:num_steps], self.caught[:num_steps], self.value_losses[:num_steps])

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Curve:
        """A life from its steps, numbers as they come back from a file."""
        frames, caught, losses = [], [], []
        for frame, ended, loss in steps:
            frames.append(int(frame))
            caught.append(tuple(bool(c) for c in ended))
            losses.append(None if loss is None else float(f"{loss:.9g}"))
        return cls(tuple(frames), tuple(caught), tuple(losses))


def to_csv(curve: Curve) -> bytes:
    """A life as a file."""
    rows = zip(curve.frames, curve.catch_rates, curve.value_losses, curve.caught, strict=True)
    lines = [_line(number, *row) for number, row in enumerate(rows, start=1)]
    return "\n".join([HEADER, *lines, ""]).encode()


def _line(number: int, frames: int, rate: float, loss: float | None, caught: Sequence[bool]) -> str:
    return f"{number},{frames},{rate:.6g},{'' if loss is None else f'{loss:.9g}'},{''.join('01'[c] for c in caught)}"


def from_csv(content: bytes, name: str) -> Curve:
    """Reads a life; FixtureError says what is wrong with the file called `name`."""
    lines = content.decode("ascii", errors="replace").split("\n")
    if lines[0] != HEADER or lines[-1] != "":
        raise FixtureError(f"{name} is no whole curve: it must begin with `{HEADER}` and end with a line break.")
    steps, rates = [], []
    for number, line in enumerate(lines[1:-1], start=1):
        found = ROW.fullmatch(line)
        if found is None or found["step"] != str(number):
            raise FixtureError(f"{name}, line {number + 1}, is {line!r}; it must be step {number} as `{HEADER}`.")
        caught = [c == "1" for c in found["caught"]]
        steps.append((int(found["frames"]), caught, float(found["loss"]) if found["loss"] else None))
        rates.append(found["rate"])
    curve = Curve.of(steps)
    wrong = [i for i, rate in enumerate(curve.catch_rates) if f"{rate:.6g}" != rates[i]]
    if wrong:
        raise FixtureError(f"{name}, line {wrong[0] + 2}: the catch rate is not the one of the episodes listed.")
    return curve


def file_name(setting: str, seed: int) -> str:
    """The name of a life's file."""
    return f"{setting}_seed{seed}.csv"


class Recorded:
    """The original's recorded lives, each checked against the manifest when it is read."""

    def __init__(self, folder: Path = FOLDER):
        """Reads the manifest."""
        self.folder, path = folder, folder / "manifest.json"
        try:
            self.manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._files: dict[str, Any] = self.manifest["curves"]
        except FileNotFoundError:
            raise FixtureError(f"There are no recorded curves at {folder}; {REMEDY}.") from None
        except (ValueError, KeyError, TypeError) as error:
            raise FixtureError(f"{path} is damaged ({error}); {REMEDY}.") from None

    def settings(self) -> list[str]:
        """Names of the settings that were recorded."""
        return list(self._files)

    def curves(self, setting: Setting) -> dict[int, Curve]:
        """Seed -> life, all of one setting; FixtureError where they were lived under another."""
        entry = self._files.get(setting.name)
        if entry is None:
            raise FixtureError(f"No curve of {setting.name} is recorded in {self.folder}; {REMEDY}.")
        self._check_setting(setting, entry["setting"])
        return {int(seed): self._read(setting.name, int(seed), sha256) for seed, sha256 in entry["seeds"].items()}

    def _check_setting(self, setting: Setting, recorded: dict[str, Any]) -> None:
        """What is asked for may be shorter than what was recorded; all else must be the same."""
        mine = json.loads(json.dumps(setting.shortened(recorded["loop"]["num_steps"]).as_json()))
        odd = [name for name in sorted({*mine, *recorded}) if mine.get(name) != recorded.get(name)]
        if odd:
            raise FixtureError(f"The curves of {setting.name} were recorded with another {odd[0]}; {REMEDY}.")

    def _read(self, setting: str, seed: int, sha256: str) -> Curve:
        path = self.folder / file_name(setting, seed)
        try:
            content = path.read_bytes()
        except OSError:
            raise FixtureError(f"{path} is missing; {REMEDY}.") from None
        if hashlib.sha256(content).hexdigest() != sha256:
            raise FixtureError(f"{path} is damaged: its sha256 is not the one in the manifest; {REMEDY}.")
        return from_csv(content, str(path))
