"""Traces: what happened in a training run, step by step, in a form that is small and can be compared."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from parity.errors import FixtureError
from parity.sketch import sketch
from parity.layers.draw import generator, jittered
from parity.layers.spec import Arrays
from parity.runs.spec import RunSpec

LOGS = ("total_loss", "global_gradient_norm", "global_update_norm", "parameter_norm")
SKETCH_WIDTH = 8  # sums of the parameters with random signs, from which drift is estimated
DIGEST_BYTES = 8
ACTION_BITS = 2
PLAIN = {  # columns of a trace that are stored as they are, [S, ...]
    "logs": (np.float64, len(LOGS)),
    "sketches": (np.float64, SKETCH_WIDTH),
    "digests": (np.uint8, DIGEST_BYTES),
    "noise": (np.uint8, DIGEST_BYTES),
}
STEPS_AFTER = 20  # still run after the first different action, from where two runs are no longer the same


class FirstDifference(NamedTuple):
    """The first action that is not the other run's.

    Attributes:
        step: the rollout, from 0.
        time: the step within it.
        environment: which one.
        margin: by how much the action taken was better than the next best, in logits plus noise; NaN if not known.
    """

    step: int
    time: int
    environment: int
    margin: float = float("nan")


@dataclass(frozen=True)
class Trace:
    """A training run, step by step.

    Attributes:
        spec: of the run.
        dtype: it computed in.
        direction: 0, or the number of the direction in which its initial parameters were perturbed.
        actions: [S, L, B], uint8.
        logs: [S, 4], those of `LOGS`; NaN while the buffer fills, but for the parameters' norm.
        sketches: [S, 8], of the parameters after each step.
        digests: [S, 8], bytes, of the parameters after each step.
        noise: [S, 8], bytes: digests of the noise of each rollout.
        first: where it diverged from the run that it was compared with, if it did.
    """

    spec: RunSpec
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
        """E.g. `bundled_seed0.float32.perturbed1`."""
        return trace_name(self.spec, self.dtype, self.direction)

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.actions)

    def cut(self, steps: int) -> Trace:
        """The first steps of it."""
        first = self.first if self.first is not None and self.first.step < steps else None
        columns = {name: getattr(self, name)[:steps] for name in ("actions", *PLAIN)}
        return replace(self, first=first, **columns)


def trace_name(spec: RunSpec, dtype: str, direction: int = 0) -> str:
    """The name of a trace, and of its file."""
    return f"{spec.name}.{dtype}" + (f".perturbed{direction}" if direction else "")


def perturbed(params: Arrays, dtype: str, direction: int) -> Arrays:
    """Every parameter, one unit in the last place up or down as the direction says; as it is for direction 0."""
    if not direction:
        return params
    in_order = dict(sorted(params.items()))  # safetensors gives them in any, and each takes the next random numbers
    return jittered(in_order, dtype, generator("tape", dtype, str(direction)))


def short_digest(array: np.ndarray) -> np.ndarray:
    """[8], bytes."""
    return np.frombuffer(hashlib.blake2b(array.tobytes(), digest_size=DIGEST_BYTES).digest(), np.uint8)


class Recording:
    """A trace that is being recorded, and compared with a reference trace where there is one."""

    def __init__(self, spec: RunSpec, dtype: str, direction: int = 0, reference: Trace | None = None):
        """Starts empty."""
        self.spec, self.dtype, self.direction, self.reference = spec, dtype, direction, reference
        self.first: FirstDifference | None = None
        self._steps: list[tuple[np.ndarray, ...]] = []

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to see: all steps are there, or the runs diverged some steps ago."""
        has_diverged = self.first is not None and len(self._steps) > self.first.step + STEPS_AFTER
        longest = self.spec.num_steps if self.reference is None else self.reference.steps
        return has_diverged or len(self._steps) >= longest

    def add(
        self, actions: np.ndarray, scores: np.ndarray, noise: np.ndarray, logs: Mapping[str, float], params: Arrays
    ) -> None:
        """Takes one step of the loop.

        Args:
            actions: [L, B].
            scores: [L, B, A], log-probabilities plus noise, whose largest entry is the action.
            noise: [L, B, A], float32.
            logs: of the learner step, empty if there was none.
            params: after it, by the original's names.
        """
        step, reference, noise_digest = len(self._steps), self.reference, short_digest(noise)
        if reference is not None and not np.array_equal(noise_digest, reference.noise[step]):
            raise FixtureError(
                f"{reference.name}: the noise of step {step} as made here is not the one of the trace; it was "
                "recorded with other random numbers."
            )
        if reference is not None and self.first is None:
            self.first = first_difference(step, reference.actions[step], actions, scores)
        flat = np.concatenate([params[name].reshape(-1) for name in sorted(params)])
        wide = flat.astype(np.float64)
        numbers = [float(logs.get(name, np.nan)) for name in LOGS[:-1]] + [float(np.linalg.norm(wide))]
        sums = sketch(wide, SKETCH_WIDTH)
        self._steps.append((np.asarray(actions, np.uint8), np.array(numbers), sums, short_digest(flat), noise_digest))

    def trace(self) -> Trace:
        """What there is so far."""
        columns = (np.stack(column) for column in zip(*self._steps, strict=True))
        named = dict(zip(("actions", *PLAIN), columns, strict=True))
        return Trace(self.spec, self.dtype, self.direction, **named, first=self.first)


def first_difference(
    step: int, ref: np.ndarray, got: np.ndarray, scores: np.ndarray | None = None
) -> FirstDifference | None:
    """The first action [L, B] of a rollout that differs, in the order of time."""
    places = np.argwhere(ref != got)
    if not len(places):
        return None
    time, environment = (int(i) for i in places[0])
    if scores is None:
        return FirstDifference(step, time, environment)
    second, best = np.sort(scores[time, environment])[-2:]
    return FirstDifference(step, time, environment, float(best - second))


def pack(actions: np.ndarray) -> np.ndarray:
    """Actions below 4 as bytes, four in each."""
    if actions.size and actions.max() >= 2**ACTION_BITS:
        raise ValueError(f"A trace holds actions below {2**ACTION_BITS}; got {actions.max()}.")
    bits = np.unpackbits(actions.reshape(-1, 1), axis=1, count=ACTION_BITS, bitorder="little")
    return np.packbits(bits, bitorder="little")


def unpack(packed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `pack`."""
    count = ACTION_BITS * math.prod(shape)
    if packed.dtype != np.uint8 or packed.shape != (-(-count // 8),):
        raise ValueError(f"actions are {packed.dtype} {packed.shape}")
    bits = np.unpackbits(packed, count=count, bitorder="little").reshape(-1, ACTION_BITS)
    return np.packbits(bits, axis=1, bitorder="little").reshape(shape)


def trace_bytes(trace: Trace) -> bytes:
    """The content of a trace's file."""
    arrays = {name: np.ascontiguousarray(getattr(trace, name)) for name in PLAIN}
    arrays["actions"] = pack(trace.actions)
    arrays["first"] = np.array(trace.first or (), np.float64)
    return save_tensors(arrays)


def trace_from(content: bytes, spec: RunSpec, dtype: str, direction: int = 0) -> Trace:
    """The inverse of `trace_bytes`; raises what safetensors and NumPy raise where the content does not fit."""
    arrays = load_tensors(content)
    for name, (kind, width) in PLAIN.items():
        if arrays[name].dtype != kind or arrays[name].shape != (len(arrays["logs"]), width):
            raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}")
    actions = unpack(arrays["actions"], (len(arrays["logs"]), *spec.rollout_shape))
    first = None
    if len(arrays["first"]):
        step, time, environment, margin = arrays["first"].tolist()
        first = FirstDifference(int(step), int(time), int(environment), margin)
    return Trace(spec, dtype, direction, actions, **{name: arrays[name] for name in PLAIN}, first=first)
