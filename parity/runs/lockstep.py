"""Two runs in comparison: the first action that differs, losses, and how far the parameters have drifted apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parity.errors import FixtureError
from parity.runs.trace import LOGS, FirstDifference, Trace, first_difference

FLOOR = {"float32": 1e-9, "float64": 1e-15}  # of a sketch's own rounding, relative to the parameters


@dataclass(frozen=True)
class Comparison:
    """A trace in comparison with the reference trace of the same run.

    Attributes:
        reference: its name.
        dtype: of the reference.
        actions: that were compared, up to the first that differs.
        first: the first action that differs, if one does.
        loss: [steps], distance of the losses; NaN before learning starts.
        drift: [steps], distance of the parameters relative to their norm, estimated from sketches.
    """

    reference: str
    dtype: str
    actions: int
    first: FirstDifference | None
    loss: np.ndarray
    drift: np.ndarray

    @property
    def steps(self) -> int:
        """Those that both have."""
        return len(self.drift)

    @property
    def has_learned(self) -> np.ndarray:
        """[steps], whether there was a learner step."""
        return ~np.isnan(self.loss)

    @property
    def together(self) -> int:
        """Steps before the first different action."""
        return self.steps if self.first is None else self.first.step

    @property
    def first_step(self) -> float:
        """The step of the first different action, counted from 1; infinity if there is none."""
        return float("inf") if self.first is None else self.first.step + 1.0


def compare(ref: Trace, got: Trace) -> Comparison:
    """Compares a trace with a reference."""
    if ref.spec != got.spec:
        raise FixtureError(f"{got.name} and {ref.name} are not traces of the same run.")
    steps = min(ref.steps, got.steps)
    diverged = np.flatnonzero((ref.actions[:steps] != got.actions[:steps]).any(axis=(1, 2)))
    first = None
    if len(diverged):
        first = first_difference(int(diverged[0]), ref.actions[diverged[0]], got.actions[diverged[0]])
        if got.first is not None and first is not None and got.first[:3] == first[:3]:
            first = got.first  # which knows the margin too
    L, B = ref.spec.rollout_shape
    same = steps * L * B if first is None else (first.step * L + first.time) * B + first.environment
    norms = ref.logs[:steps, LOGS.index("parameter_norm")]
    drift = np.linalg.norm(ref.sketches[:steps] - got.sketches[:steps], axis=1) / norms
    loss = np.abs(ref.logs[:steps, 0] - got.logs[:steps, 0])
    return Comparison(ref.name, ref.dtype, same, first, loss, drift)


def drift_ratio(own: Comparison, others: Sequence[Comparison]) -> float:
    """How many times further a run drifts than others do from the same reference, while all still act alike.

    The median over learner steps of the drift over the others' largest drift; NaN where there is no such step.
    """
    together = min([own.together, *(other.together for other in others)])
    learned = own.has_learned[:together]
    if not others or not learned.any():
        return float("nan")
    theirs = np.max([other.drift[:together] for other in others], axis=0)
    ratios = own.drift[:together] / np.maximum(theirs, FLOOR[own.dtype])
    return float(np.median(ratios[learned]))
