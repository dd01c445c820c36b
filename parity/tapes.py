"""Tapes: what happened in a life, step by step, and the files in which the original's lives are kept.

`fixtures/tapes/manifest.json` says where everything came from. Beside it lie safetensors files: the initial parameters
of each life, once, in float32; and its tapes, `LIFE.float32` and `LIFE.float64`, and `LIFE.float32.moved1` and so on,
the same life with every initial parameter moved by one unit in the last place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from parity.layers.draw import generator, jittered
from parity.layers.spec import Arrays
from parity.lives import Life
from parity.store import FIXTURES, FixtureError, canonical, manifest_bytes, sketch, write_atomically

FORMAT = 1
TAPES = FIXTURES / "tapes"
LOGS = ("total_loss", "global_gradient_norm", "global_update_norm", "parameter_norm")
SKETCH_WIDTH = 16  # sums of the parameters with random signs, from which drift is estimated
DIGEST_BYTES = 8
ACTION_BITS = 2
STEPS_AFTER = (
    20  # lived on after the first different action: from there on two lives are compared that are not the same
)
REMEDY = "Restore it with `git checkout -- fixtures`, or record again with `python -m reference tape`."


class FirstDifference(NamedTuple):
    """The first action that is not the other life's.

    Attributes:
        step: the rollout, from 0.
        time: the step within it.
        environment: which one.
        margin: by how much the action taken was better than the next best, in perturbed logits; NaN if not known.
    """

    step: int
    time: int
    environment: int
    margin: float = float("nan")


@dataclass(frozen=True)
class Tape:
    """A life, step by step.

    Attributes:
        life: which one.
        dtype: in which it was lived.
        direction: 0, or the number of the direction in which its initial parameters were moved.
        actions: [S, L, B], uint8.
        logs: [S, 4], those of `LOGS`; NaN while the buffer fills, but for the parameters' norm.
        sketches: [S, 16], of the parameters after each step.
        digests: [S, 8], bytes, of the parameters after each step.
        noise: [S, 8], bytes: digests of the noise of each rollout.
        first: where it parted from the life beside which it was lived, if it did.
    """

    life: Life
    dtype: str
    direction: int
    actions: np.ndarray
    logs: np.ndarray
    sketches: np.ndarray
    digests: np.ndarray
    noise: np.ndarray
    first: FirstDifference | None = None

    @property
    def name(self) -> str:
        """E.g. `embedded_seed0.float32.moved1`."""
        return tape_name(self.life, self.dtype, self.direction)

    @property
    def steps(self) -> int:
        """How many were lived."""
        return len(self.actions)


def tape_name(life: Life, dtype: str, direction: int = 0) -> str:
    """The name of a tape, and of its file."""
    return f"{life.name}.{dtype}" + (f".moved{direction}" if direction else "")


def moved(params: Arrays, dtype: str, direction: int) -> Arrays:
    """Every parameter moved by one unit in the last place, up or down as the direction says; not at all for 0."""
    return jittered(params, dtype, generator("tape", dtype, str(direction))) if direction else params


def short_digest(array: np.ndarray) -> np.ndarray:
    """[8], bytes."""
    return np.frombuffer(hashlib.blake2b(array.tobytes(), digest_size=DIGEST_BYTES).digest(), np.uint8)


class Recording:
    """A tape that is being made, beside another one if there is one to compare with."""

    def __init__(self, life: Life, dtype: str, direction: int = 0, beside: Tape | None = None):
        """Starts empty."""
        self.life, self.dtype, self.direction, self.beside = life, dtype, direction, beside
        self.first: FirstDifference | None = None
        self._steps: list[tuple[np.ndarray, ...]] = []

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to see: all steps lived, or two lives that parted some steps ago."""
        has_parted = self.first is not None and len(self._steps) > self.first.step + STEPS_AFTER
        longest = self.life.loop.num_steps if self.beside is None else self.beside.steps
        return has_parted or len(self._steps) >= longest

    def add(
        self, actions: np.ndarray, perturbed: np.ndarray, noise: np.ndarray, logs: Mapping[str, float], params: Arrays
    ) -> None:
        """Takes one step of the loop.

        Args:
            actions: [L, B].
            perturbed: [L, B, A], log-probabilities plus noise, whose largest entry is the action.
            noise: [L, B, A], float32.
            logs: of the learner step, empty if there was none.
            params: after it, by the original's names.
        """
        step = len(self._steps)
        self._check_noise(step, noise)
        if self.beside is not None and self.first is None:
            self.first = first_difference(step, self.beside.actions[step], actions, perturbed)
        flat = np.concatenate([params[name].reshape(-1) for name in sorted(params)])
        wide = flat.astype(np.float64)
        told = [float(logs.get(name, np.nan)) for name in LOGS[:-1]] + [float(np.linalg.norm(wide))]
        sums = sketch(wide, SKETCH_WIDTH)
        row = (np.asarray(actions, np.uint8), np.array(told), sums, short_digest(flat), short_digest(noise))
        self._steps.append(row)

    def _check_noise(self, step: int, noise: np.ndarray) -> None:
        if self.beside is not None and not np.array_equal(short_digest(noise), self.beside.noise[step]):
            raise FixtureError(
                f"{self.beside.name}: the noise of step {step} as made here is not the one of the tape; it was "
                "recorded with other random numbers."
            )

    def tape(self) -> Tape:
        """What there is so far."""
        return Tape(
            self.life, self.dtype, self.direction, *(np.stack(c) for c in zip(*self._steps, strict=True)), self.first
        )


def first_difference(
    step: int, ref: np.ndarray, got: np.ndarray, perturbed: np.ndarray | None = None
) -> FirstDifference | None:
    """The first action [L, B] of a rollout that differs, in the order of time."""
    places = np.argwhere(ref != got)
    if not len(places):
        return None
    time, environment = (int(i) for i in places[0])
    if perturbed is None:
        return FirstDifference(step, time, environment)
    second, best = np.sort(perturbed[time, environment])[-2:]
    return FirstDifference(step, time, environment, float(best - second))


def pack(actions: np.ndarray) -> np.ndarray:
    """Actions below 4 as bytes, four in each."""
    if actions.size and actions.max() >= 2**ACTION_BITS:
        raise ValueError(f"A tape holds actions below {2**ACTION_BITS}; got {actions.max()}.")
    bits = np.unpackbits(actions.reshape(-1, 1), axis=1, count=ACTION_BITS, bitorder="little")
    return np.packbits(bits, bitorder="little")


def unpack(packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `pack`."""
    count = ACTION_BITS * int(np.prod(shape))
    bits = np.unpackbits(packed, count=count, bitorder="little").reshape(-1, ACTION_BITS)
    return np.packbits(bits, axis=1, bitorder="little").reshape(shape)


PLAIN = ("logs", "sketches", "digests", "noise")


def tape_bytes(tape: Tape) -> bytes:
    """The content of a tape's file."""
    arrays = {name: np.ascontiguousarray(getattr(tape, name)) for name in PLAIN}
    arrays["actions"] = pack(tape.actions)
    arrays["first"] = np.array(tape.first or (), np.float64)
    return save_tensors(arrays)


def tape_from(content: bytes, life: Life, dtype: str, direction: int) -> Tape:
    """The inverse of `tape_bytes`; raises what safetensors and NumPy raise where the content does not fit."""
    arrays = load_tensors(content)
    actions = unpack(arrays["actions"], (len(arrays["logs"]), *life.acted))
    *place, margin = arrays["first"].tolist() or (None,)
    first = None if margin is None else FirstDifference(*(int(i) for i in place), margin)
    return Tape(life, dtype, direction, actions, *(arrays[name] for name in PLAIN), first)


@dataclass
class TapeStore:
    """Reads and writes tapes; nothing comes out that was not checked against the manifest."""

    root: Path = TAPES
    _manifest: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def path(self) -> Path:
        """Of the manifest."""
        return self.root / "manifest.json"

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, its own digest checked."""
        if self._manifest is None:
            self._manifest = self._read_manifest()
        return self._manifest

    def _read_manifest(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.path.read_text())
            body = {key: value for key, value in content.items() if key != "digest"}
            is_intact = hashlib.sha256(canonical(body).encode()).hexdigest() == content["digest"]
        except FileNotFoundError:
            raise FixtureError(f"{self.path} is missing: there are no tapes. {REMEDY}") from None
        except (ValueError, KeyError, AttributeError) as error:
            raise FixtureError(f"{self.path} is damaged ({type(error).__name__}: {error}). {REMEDY}") from None
        if not is_intact:
            raise FixtureError(f"{self.path} is not what was recorded: its digest does not fit its content. {REMEDY}")
        if content["format"] != FORMAT:
            raise FixtureError(f"{self.path} has format {content['format']}; this version reads format {FORMAT}.")
        return content

    def lives(self) -> dict[str, Life]:
        """The recorded lives by name."""
        return {name: Life.from_json(entry["life"]) for name, entry in self.manifest["lives"].items()}

    def tapes(self, life: str) -> list[tuple[str, int]]:
        """Dtype and direction of each tape of a life, the unmoved ones first."""
        found = self.manifest["lives"][life]["tapes"].values()
        return sorted(((entry["dtype"], entry["direction"]) for entry in found), key=lambda of: of[::-1])

    def has_life(self, life: Life) -> bool:
        """Whether this very life was begun."""
        entry = self.manifest["lives"].get(life.name)
        return entry is not None and entry["life"] == life.as_json()

    def has(self, life: Life, dtype: str, direction: int = 0) -> bool:
        """Whether this tape of this very life was recorded."""
        return self.has_life(life) and tape_name(life, dtype, direction) in self.manifest["lives"][life.name]["tapes"]

    def params(self, life: str) -> Arrays:
        """Initial parameters by the original's names, float32."""
        content = self._checked(f"{life}.params", self.manifest["lives"][life]["params"])
        return self._parsed(f"{life}.params", load_tensors, content)  # type: ignore[no-any-return]

    def load(self, life: str, dtype: str, direction: int = 0) -> Tape:
        """Reads a tape."""
        of = self.lives()[life]
        name = tape_name(of, dtype, direction)
        if name not in self.manifest["lives"][life]["tapes"]:
            raise FixtureError(f"There is no tape {name} in {self.root}; `python -m reference tape` records it.")
        content = self._checked(name, self.manifest["lives"][life]["tapes"][name])
        return self._parsed(name, lambda raw: tape_from(raw, of, dtype, direction), content)  # type: ignore[no-any-return]

    def _file(self, name: str) -> Path:
        return self.root / f"{name}.safetensors"

    def _checked(self, name: str, entry: dict[str, Any]) -> bytes:
        path = self._file(name)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise FixtureError(f"{path} is missing. {REMEDY}") from None
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise FixtureError(f"{path} is damaged: its sha256 is not the recorded one. {REMEDY}")
        return content

    def _parsed(self, name: str, parse: Any, content: bytes) -> Any:
        try:
            return parse(content)
        except (SafetensorError, ValueError, TypeError, KeyError) as error:
            raise FixtureError(f"{self._file(name)} holds no tape ({error}). {REMEDY}") from None

    def begin(self, provenance: dict[str, Any]) -> None:
        """Makes sure that what is added goes with what is there: same original, packages and flags."""
        if not self.path.is_file():
            self._write_manifest({**provenance, "format": FORMAT, "lives": {}})
            return
        stale = [key for key in provenance if self.manifest.get(key) != provenance[key]]
        if stale:
            raise FixtureError(
                f"The tapes in {self.root} were recorded with other {', '.join(stale)}; record into another folder."
            )

    def write_params(self, life: Life, params: Arrays) -> None:
        """Starts a life that is not there yet, or is another one under this name, whose tapes are then dropped."""
        if self.has_life(life):
            return
        known = self.manifest["lives"].get(life.name)
        content = save_tensors({name: np.ascontiguousarray(x, np.float32) for name, x in sorted(params.items())})
        write_atomically(self._file(f"{life.name}.params"), content)
        entry = {"life": life.as_json(), "params": {"sha256": hashlib.sha256(content).hexdigest()}, "tapes": {}}
        self._write_manifest({**self.manifest, "lives": {**self.manifest["lives"], life.name: entry}})
        for name in known["tapes"] if known else ():
            self._file(name).unlink(missing_ok=True)

    def write(self, tape: Tape) -> None:
        """Adds a tape to a life that was started."""
        content = tape_bytes(tape)
        write_atomically(self._file(tape.name), content)
        entry = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "dtype": tape.dtype,
            "direction": tape.direction,
            "steps": tape.steps,
            "first": None if tape.first is None else list(tape.first[:3]),
        }
        life = self.manifest["lives"][tape.life.name]
        life = {**life, "tapes": {**life["tapes"], tape.name: entry}}
        self._write_manifest({**self.manifest, "lives": {**self.manifest["lives"], tape.life.name: life}})

    def _write_manifest(self, content: dict[str, Any]) -> None:
        write_atomically(self.path, manifest_bytes(content))
        self._manifest = None
