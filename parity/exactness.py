"""How exact the live reference is on one sample: what it says, and how far that may be from the truth.

Its roundings are measured, not guessed. It runs at inputs a unit in the last place away (what that moves is
uncertain), and in float32 (an error there, scaled by the ratio of the two precisions, is what its float64 roundings
add up to; this finds cancellations that no movement of the inputs shows). In float32 it runs at inputs further away
too: where a softmax is saturated, or a value moves in steps (the inverse of the signed hyperbolic makes 500 of one unit
in the last place), all nearer ones round alike, and one rounding may be a lucky one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.check import cast
from parity.compare import FLOAT32_TO_FLOAT64, HALF_ULP32, TOLERANCE64
from parity.implementation import Implementation
from parity.layers.draw import case_cotangents, generator, jittered, shifted
from parity.layers.spec import Arrays, Case, Layer, Settings
from parity.store import Accuracy, Golden

LIVE = "live"
HALF_ULP64 = 2.0**-53
FACTOR = 8.0  # few samples underestimate an extreme
JUMP = 1e-6  # of the output's scale: no rounding of the inputs explains such a movement
UNDERFLOW = {"float64": 1e-290, "float32": 1e-37}  # XLA flushes to zero what is smaller
assert TOLERANCE64 < JUMP

ASIDE = 1e-6  # how far beside a sample branches are left behind
STEPS_ASIDE = (ASIDE, 1e-4)  # how far beside it roundings are measured too

Answer = dict[str, Arrays]  # "value" -> outputs, "vjp" -> gradients
Pair = tuple[Answer, Answer]  # in float64 and in float32, at the same inputs


@dataclass(frozen=True)
class Sample:
    """One input of a layer: a case of the registry as template, drawn anew; perhaps with edges, perhaps cut smaller.

    Attributes:
        case: says in which precisions it is judged, and whether by gradients too.
        settings: sizes and static numbers.
        inputs: the arrays.
        how: in words, for a failure.
    """

    case: Case
    settings: Settings
    inputs: Arrays
    how: str = ""

    def __repr__(self) -> str:
        return f"<sample {self.how}>"


class Reference:
    """What the reference says about one sample, and how exact it is."""

    def __init__(self, implementation: Implementation, layer: Layer, sample: Sample):
        """Takes the sample; nothing runs yet."""
        self.implementation, self.layer, self.sample = implementation, layer, sample
        self.wrt = layer.differentiable(sample.settings) if sample.case.gradients else []
        self.cotangents = case_cotangents(layer, LIVE, sample.settings) if self.wrt else {}

    def says(self, inputs: Arrays, dtype: str = "float64", gradients: bool = True) -> Answer:
        """Outputs and VJPs on some inputs; from one compiled program where the reference offers that."""
        name, settings, given = self.layer.name, self.sample.settings, cast(inputs, dtype)
        if not (self.wrt and gradients):
            return {"value": self.implementation.run(name, given, settings, dtype), "vjp": {}}
        asked = (name, given, settings, dtype, cast(self.cotangents, dtype), self.wrt)
        if hasattr(self.implementation, "run_and_vjp"):
            return dict(zip(("value", "vjp"), self.implementation.run_and_vjp(*asked), strict=True))
        return {"value": self.implementation.run(*asked[:4]), "vjp": self.implementation.vjp(*asked)}

    def unmeasured(self) -> Golden:
        """Its answer, taken to be exact in float64, and in float32 as far from the truth as it is on this input."""
        truth, dtypes = self.says(self.sample.inputs), self.sample.case.dtypes
        single = self.says(self.sample.inputs, "float32", gradients=False) if "float32" in dtypes else None
        accuracy = {kind: {name: Accuracy(_scale(v), 0.0) for name, v in truth[kind].items()} for kind in truth}
        if single:
            accuracy["value"] = {
                name: Accuracy(_scale(v), 0.0, _distance32(single["value"][name], v))
                for name, v in truth["value"].items()
            }
        return self._golden(truth, accuracy)

    def moved(self, jitters: int, gradients: bool = True) -> Golden:
        """The same in float64 alone, with its exactness measured by inputs a unit in the last place away alone.

        That allows no more than `measured` does, and needs no other program than `unmeasured`.
        """
        inputs, rng = self.sample.inputs, generator(self.layer.name, "live jitter")
        truth = self.says(inputs, gradients=gradients)
        near = [self.says(jittered(inputs, "float64", rng), gradients=gradients) for _ in range(jitters)]
        accuracy = {
            kind: {
                name: Accuracy(_scale(ref), FACTOR * _movement(kind, name, ref, near)) for name, ref in arrays.items()
            }
            for kind, arrays in truth.items()
        }
        return replace(self._golden(truth, accuracy), outputs={"float64": truth["value"]})

    def measured(self, jitters: int, gradients: bool = True) -> Golden:
        """The same with its exactness measured at so many inputs nearby; with or without VJPs, which cost most."""
        inputs, rng = self.sample.inputs, generator(self.layer.name, "live jitter")
        truth = self.says(inputs, gradients=gradients)
        near = [self.says(jittered(inputs, "float64", rng), gradients=gradients) for _ in range(jitters)]
        rough = [inputs, *(jittered(inputs, "float32", rng) for _ in range(jitters))]
        aside = [shifted(inputs, step, rng) for step in STEPS_ASIDE for _ in range(jitters)]
        pairs, pairs_aside = ([self._in_both(x, gradients) for x in where] for where in (rough, aside))
        made_of = _largest(self.cotangents) * max(_largest(truth["value"]), 1.0) * max(_largest(inputs), 1.0)
        least = {"value": 0.0, "vjp": HALF_ULP64 * made_of}
        accuracy = {
            kind: {
                name: _accuracy(kind, name, ref, near, pairs, pairs_aside, least[kind]) for name, ref in arrays.items()
            }
            for kind, arrays in truth.items()
        }
        return self._golden(truth, accuracy)

    def _in_both(self, inputs: Arrays, gradients: bool) -> Pair:
        return self.says(inputs, gradients=gradients), self.says(inputs, "float32", gradients)

    def _golden(self, truth: Answer, accuracy: dict[str, dict[str, Accuracy]]) -> Golden:
        return Golden(
            layer=self.layer.name,
            case=LIVE,
            settings=self.sample.settings,
            origin="live",
            meta_params="seeded",
            inputs=self.sample.inputs,
            cotangents=self.cotangents,
            outputs=dict.fromkeys(self.sample.case.dtypes, truth["value"]),
            vjps=truth["vjp"],
            sides={},
            accuracy=accuracy,
            near_branch={},
        )


def _accuracy(
    kind: str,
    name: str,
    ref: np.ndarray,
    near: Sequence[Answer],
    pairs: Sequence[Pair],
    pairs_aside: Sequence[Pair],
    least: float,
) -> Accuracy:
    """From answers at inputs nearby: `near` in float64, `pairs` in both precisions, `pairs_aside` a bit further away.

    A gradient is uncertain by at least half a unit in the last place of what it is made of, cotangents times outputs
    times inputs: where a softmax or a gate is saturated these cancel, and float32, in which it is 0 or 1, is blind.
    """
    if ref.dtype.kind != "f":
        return Accuracy(_scale(ref), 0.0, 0.0)
    moved = _movement(kind, name, ref, near)
    rounded = max(_gap(single[kind][name], exact[kind][name]) for exact, single in [*pairs, *pairs_aside])
    distances = [
        _distance32(single[kind][name], exact[kind][name]) + _gap(exact[kind][name], ref) for exact, single in pairs
    ]
    distances += [_distance32(single[kind][name], exact[kind][name]) for exact, single in pairs_aside]
    sensitivity = FACTOR * max(moved, FLOAT32_TO_FLOAT64 * rounded, least) + UNDERFLOW["float64"]
    return Accuracy(_scale(ref), sensitivity, FACTOR / 2.0 * max(distances))


def _movement(kind: str, name: str, ref: np.ndarray, near: Sequence[Answer]) -> float:
    """How far an answer is from `ref` at the farthest of some inputs; what jumps there counts as not moved."""
    if ref.dtype.kind != "f":
        return 0.0
    others = [answer[kind][name] for answer in near]
    return max(_gap(np.where(_jumps(ref, other), ref, other), ref) for other in others)


def _scale(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values.reshape(-1)
    return float(np.abs(finite.astype(np.float64)).max()) if finite.size else 0.0


def _largest(arrays: Arrays) -> float:
    return max((_scale(value) for value in arrays.values() if value.dtype.kind == "f"), default=0.0)


def _gap(got: np.ndarray, ref: np.ndarray) -> float:
    """Largest difference between elements that are both finite."""
    if ref.dtype.kind != "f" or not ref.size:
        return 0.0
    with np.errstate(invalid="ignore"):
        return float(np.where(np.isfinite(ref) & np.isfinite(got), np.abs(got.astype(np.float64) - ref), 0.0).max())


def _distance32(got: np.ndarray, ref: np.ndarray) -> float:
    """Distance of a float32 answer from the truth; infinite where it overflows although the truth does not."""
    if ref.dtype.kind != "f":
        return 0.0
    if not np.array_equal(np.isfinite(got), np.isfinite(ref)):
        return np.inf
    return max(_gap(got, ref), HALF_ULP32 * _scale(ref)) + UNDERFLOW["float32"]


def _jumps(ref: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Elements at a branch: they move by far more than a rounding can explain."""
    with np.errstate(invalid="ignore"):
        return np.abs(other - ref) > JUMP * max(_scale(ref), UNDERFLOW["float64"])
