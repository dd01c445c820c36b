"""Reference against candidate on inputs that nobody has recorded: the live comparison behind `parity/test_live.py`.

The reference is the original where it is installed, else the stand-in. Its own sensitivity is measured on the spot, so
that an ill-conditioned input (and Hypothesis looks for those) is judged by how far the reference itself moves when its
inputs move by one unit in the last place. Few samples underestimate an extreme, hence the factor on what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.check import Judge, cast
from parity.compare import HALF_ULP32, TOLERANCE64, Row
from parity.implementation import CannotRun, Implementation, load
from parity.layers.draw import case_cotangents, draw, generator, jittered
from parity.layers.spec import Arrays, Layer, Settings
from parity.store import Accuracy, Golden

JITTERS = 4
FACTOR = 8.0
NOT_A_GRADIENT = 1e-200


def live_reference() -> Implementation:
    """The original where it can be imported, else the stand-in."""
    try:
        return load("original")
    except CannotRun:
        return load("standin")


@dataclass(frozen=True)
class Sample:
    """One input of a layer, as Hypothesis or a caller chose it."""

    settings: Settings
    inputs: Arrays
    label: str = "live"


def drawn(layer: Layer, settings: Settings, seed: int) -> Arrays:
    """Inputs from a seed, as the registry's generator makes them."""
    rng = generator(layer.name, "live", str(seed))
    return {name: draw(spec, settings, rng) for name, spec in layer.inputs(settings).items()}


class Reference:
    """What the reference says about one sample, and how exact it is."""

    def __init__(self, implementation: Implementation, layer: Layer, sample: Sample):
        """Takes the sample; nothing runs yet."""
        self.implementation, self.layer, self.sample = implementation, layer, sample
        self.wrt = layer.differentiable(sample.settings)
        self.cotangents = case_cotangents(layer, sample.label, sample.settings) if self.wrt else {}

    def values(self, inputs: Arrays, dtype: str = "float64") -> Arrays:
        """Outputs on some inputs."""
        return self.implementation.run(self.layer.name, cast(inputs, dtype), self.sample.settings, dtype)

    def vjps(self, inputs: Arrays) -> Arrays:
        """VJPs on some inputs."""
        if not self.wrt:
            return {}
        given = cast(inputs, "float64")
        return self.implementation.vjp(
            self.layer.name, given, self.sample.settings, "float64", self.cotangents, self.wrt
        )

    def golden(self, jitters: int = JITTERS) -> Golden:
        """The reference's answer in the form in which goldens are judged."""
        sample, rng = self.sample, generator(self.layer.name, self.sample.label, "live jitter")
        near = [jittered(sample.inputs, "float64", rng) for _ in range(jitters)]
        rough = [jittered(sample.inputs, "float32", rng) for _ in range(jitters)]
        values, vjps = self.values(sample.inputs), self.vjps(sample.inputs)
        moved_values, moved_vjps = [self.values(x) for x in near], [self.vjps(x) for x in near]
        distances = self._distances(values, rough)
        accuracy = {
            "value": {
                k: Accuracy(_scale(v), FACTOR * _movement(k, v, moved_values), distances[k]) for k, v in values.items()
            },
            "vjp": {k: Accuracy(_scale(v), FACTOR * _movement(k, v, moved_vjps)) for k, v in vjps.items()},
        }
        return Golden(
            layer=self.layer.name,
            case=sample.label,
            settings=sample.settings,
            origin="live",
            meta_params="seeded",
            inputs=sample.inputs,
            cotangents=self.cotangents,
            outputs={"float64": values, "float32": values},
            vjps=vjps,
            sides={"value": _sides(values, moved_values), "vjp": _sides(vjps, moved_vjps)},
            accuracy=accuracy,
            near_branch={},
        )

    def _distances(self, values: Arrays, rough: Sequence[Arrays]) -> dict[str, float]:
        """Per output: the reference's own float32 error, and how far a float32 rounding of the inputs moves it."""
        own = {k: _gap(v, values[k]) for k, v in self.values(self.sample.inputs, "float32").items()}
        for inputs in rough:
            exact, single = self.values(inputs), self.values(inputs, "float32")
            for k, truth in exact.items():
                own[k] = max(own[k], _gap(single[k], truth) + _gap(truth, values[k]))
        return {k: 2.0 * distance + HALF_ULP32 * _scale(values[k]) for k, distance in own.items()}


def _scale(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values.reshape(-1)
    return float(np.abs(finite.astype(np.float64)).max()) if finite.size else 0.0


def _gap(got: np.ndarray, ref: np.ndarray) -> float:
    if ref.dtype.kind != "f" or not ref.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        return float(np.where(np.isfinite(ref) & np.isfinite(got), np.abs(got.astype(np.float64) - ref), 0.0).max())


JUMP = 1e-6


def _jumps(ref: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Elements at a branch: they move by far more than a unit in the last place can explain."""
    return np.abs(other - ref) > JUMP * max(_scale(ref), np.finfo(np.float64).tiny)


def _movement(name: str, ref: np.ndarray, others: Sequence[Arrays]) -> float:
    """Largest movement of the elements that do not stand at a branch."""
    if ref.dtype.kind != "f":
        return 0.0
    gaps = [np.where(_jumps(ref, other[name]), 0.0, np.abs(other[name] - ref)) for other in others]
    return max((float(np.nan_to_num(gap).max()) for gap in gaps if gap.size), default=0.0)


def _sides(refs: Arrays, others: Sequence[Arrays]) -> dict[str, list[np.ndarray]]:
    """The answers on either side, for outputs with an element at a branch."""
    found = {}
    for name, ref in refs.items():
        if ref.dtype.kind == "f" and any(_jumps(ref, other[name]).any() for other in others):
            found[name] = [other[name] for other in others]
    return found


def judge(candidate: Implementation, golden: Golden) -> list[Row]:
    """Rows of a live comparison; a stopped gradient may come out as an underflow, which is no gradient."""
    rows = []
    for row in Judge(candidate).rows(golden):
        leak = row.kind == "vjp" and "stopped" in row.problem
        if leak and _largest_gradient(candidate, golden, row.output) < NOT_A_GRADIENT:
            continue
        rows.append(row)
    return rows


def _largest_gradient(candidate: Implementation, golden: Golden, name: str) -> float:
    given = cast(golden.inputs, "float64")
    result = candidate.vjp(golden.layer, given, golden.settings, "float64", golden.cotangents, [name])
    return float(np.abs(result[name]).max())


def worst_ratio(rows: Sequence[Row]) -> float:
    """The largest error over budget, finite, for Hypothesis to aim at."""
    return min(max((row.ratio for row in rows), default=0.0), 1e6)


def compare_live(reference: Implementation, candidate: Implementation, layer: Layer, sample: Sample) -> list[Row]:
    """All comparisons of one sample."""
    return judge(candidate, Reference(reference, layer, sample).golden())


assert TOLERANCE64 < JUMP
