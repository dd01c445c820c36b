"""Tapes: what happened in a life, step by step, in a form that is small and can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from parity.errors import FixtureError
from parity.layers.draw import generator, jittered
from parity.layers.spec import Arrays
from parity.runs.spec import Life
from parity.sketch import sketch

LOGS = ("total_loss", "global_gradient_norm", "global_update_norm", "parameter_norm")
SKETCH_WIDTH = 8  # sums of the parameters with random signs, from which drift is estimated
DIGEST_BYTES = 8
ACTION_BITS = 2
PLAIN = ("logs", "sketches", "digests", "noise")  # columns of a tape that are stored as they are
STEPS_AFTER = (
    20  # lived on after the first different action: from there on two lives are compared that are not the same
)


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
        sketches: [S, 8], of the parameters after each step.
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

    def cut(self, steps: int) -> Tape:
        """The first steps of it."""
        first = self.first if self.first is not None and self.first.step < steps else None
        columns = {name: getattr(self, name)[:steps] for name in ("actions", *PLAIN)}
        return replace(self, first=first, **columns)


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
        columns = (np.stack(column) for column in zip(*self._steps, strict=True))
        named = dict(zip(("actions", *PLAIN), columns, strict=True))
        return Tape(self.life, self.dtype, self.direction, **named, first=self.first)


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
    first = None
    if len(arrays["first"]):
        step, time, environment, margin = arrays["first"].tolist()
        first = FirstDifference(int(step), int(time), int(environment), margin)
    return Tape(life, dtype, direction, actions, **{name: arrays[name] for name in PLAIN}, first=first)
