"""A run of the port in comparison with the original's trace, as the verdict takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from parity.errors import CannotRun
from parity.runs.lockstep import Comparison, drift_ratio


class LearnerStep(NamedTuple):
    """One learner step from the original's own state, by the rule of `parity.tolerance`.

    Attributes:
        step: of the run.
        tensor: of the learner's state, the one that takes most of its tolerance.
        error: of that tensor, relative to its scale.
        sigmas: the C that its worst number needs.
        share: of the tolerance that this number takes.
        is_equal: whether all tensors are equal.
    """

    step: int
    tensor: str
    error: float
    sigmas: float
    share: float
    is_equal: bool


@dataclass(frozen=True)
class ComparedRun:
    """A run of the port in comparison with the original's trace.

    Attributes:
        preset: of the run.
        name: of the run.
        dtype: of port and trace.
        port: against the trace.
        own: the original's perturbed runs against the same trace, by name.
        wide: in float32, the original's run in float64 against the same trace.
        to_truth: in float32, how far the port is from the original's float64 run, in times of the original's own
            distance in float32; NaN if not known.
        every: steps from one resynchronisation of the port to the next; 0 where there is none.
        learner_steps: of a resynchronised run the first of all, and the first after each resynchronisation.
    """

    preset: str
    name: str
    dtype: str
    port: Comparison
    own: Mapping[str, Comparison] = field(default_factory=dict)
    wide: Comparison | None = None
    to_truth: float = float("nan")
    every: int = 0
    learner_steps: Sequence[LearnerStep] = ()

    @property
    def own_firsts(self) -> list[float]:
        """The steps at which rounding makes the original diverge from itself, infinity where it does not.

        In float32 that is its float64 run from its float32 run: every operation of the latter rounds. A perturbation of
        the initial parameters alone moves it less, since both runs then round in the same way.
        """
        if self.wide is not None:
            return [self.wide.first_step]
        return [other.first_step for other in self.own.values()]

    @property
    def ratio(self) -> float:
        """How many times further the port drifts than the original from itself."""
        return drift_ratio(self.port, list(self.own.values()))

    def check(self) -> None:
        """Raises CannotRun where there is nothing to judge by."""
        if not self.own and not self.every:
            raise CannotRun(
                f"{self.name} has no perturbed trace in {self.dtype}; `python -m reference trace --perturbed 1` "
                "records one."
            )
        if not self.port.has_learned.any():
            raise CannotRun(f"{self.name}: nothing is learned in {self.port.steps} steps; give --steps more.")
