"""When are two runs the same? The verdict of lockstep, over runs of one preset and precision.

float64: no action differs, as long as the original does not diverge from itself where its initial parameters are
perturbed by one unit in the last place. float32: actions diverge, in the median over runs, no earlier than rounding
makes the original diverge from its own float64 run. Of two rounding errors of the same size now one shows first, now
the other, so "earlier" must be more than chance (the test of Mann and Whitney). Both: until then the parameters drift
no further than a few times as far as the original's after that perturbation; drift shows within a few learner steps
what actions show later.

Where the port is resynchronised with the original every N steps (float64), no action may differ at all, and the
learner's whole state after the next learner step must be equal by the rule of `parity.tolerance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.stats import mannwhitneyu

from parity.errors import CannotRun
from parity.runs.lockstep import Comparison, drift_ratio

DRIFT_LIMIT = 20.0  # times the original's own
# Of the step at which the original diverges from itself. What grows to a different action in half the time was about
# 1e-8 when the original was perturbed by 1e-16: no rounding.
EARLIEST = 0.5
CHANCE = 0.05  # in float32: how probable it may be that what diverges earlier does so by chance


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


def counted(runs: int) -> str:
    """A number of runs."""
    return "1 run" if runs == 1 else f"{runs} runs"


def in_words(step: float) -> str:
    """A step, or that there is none."""
    if np.isnan(step):
        return "not known"
    return "none" if np.isinf(step) else f"step {step:.0f}" if step == int(step) else f"step {step:.1f}"


@dataclass(frozen=True)
class Group:
    """The runs of one preset in one precision."""

    preset: str
    dtype: str
    runs: Sequence[ComparedRun]

    @property
    def first(self) -> float:
        """Median over runs of the step of the first different action."""
        return float(np.median([run.port.first_step for run in self.runs]))

    @property
    def own_first(self) -> float:
        """The same for the original against itself, over all its perturbed runs."""
        return float(np.median(self._own_firsts)) if self._own_firsts else float("nan")

    @property
    def _own_firsts(self) -> list[float]:
        return [first for run in self.runs for first in run.own_firsts]

    @property
    def chance(self) -> float:
        """How probable it is that the port diverges this early by chance, if it diverges like the original."""
        if not self._own_firsts:
            return float("nan")
        test = mannwhitneyu([run.port.first_step for run in self.runs], self._own_firsts, alternative="less")
        return float(test.pvalue)

    @property
    def ratio(self) -> float:
        """The largest drift, in times of the original's own; NaN where actions diverge before anything is learned."""
        known = [run.ratio for run in self.runs if not np.isnan(run.ratio)]
        return max(known, default=float("nan"))

    @property
    def to_truth(self) -> float:
        """Median over runs of the distance to the float64 run, in times of the original's; NaN if not known."""
        return float(np.median([run.to_truth for run in self.runs]))

    @property
    def acts_alike(self) -> bool:
        """Whether the actions are what they must be."""
        if self.dtype == "float32":
            by_chance = self.first >= EARLIEST * self.own_first and self.chance >= CHANCE
            return self.first >= self.own_first or by_chance
        return all(run.port.first_step >= EARLIEST * min(run.own_firsts) for run in self.runs)

    @property
    def is_equal(self) -> bool:
        """The verdict."""
        return self.acts_alike and not self.ratio > DRIFT_LIMIT

    @property
    def every(self) -> int:
        """Steps from one resynchronisation to the next; 0 where there is none."""
        return max(run.every for run in self.runs)

    @property
    def learner_steps(self) -> list[LearnerStep]:
        """Those that were compared, over all runs."""
        return [step for run in self.runs for step in run.learner_steps]

    @property
    def actions(self) -> int:
        """Compared, up to the first different ones."""
        return sum(run.port.actions for run in self.runs)

    @property
    def worst_loss(self) -> float:
        """The largest distance of losses while all act alike."""
        losses = [run.port.loss[: run.port.together] for run in self.runs]
        return float(np.nanmax([np.nanmax(loss, initial=0.0) for loss in losses]))

    @property
    def worst_drift(self) -> float:
        """The largest while all act alike."""
        return max(float(run.port.drift[: run.port.together].max(initial=0.0)) for run in self.runs)

    def sentence(self) -> str:
        """The verdict in words."""
        state = "equal" if self.is_equal else "DIFFERENT"
        runs = f"{counted(len(self.runs))} of up to {max(run.port.steps for run in self.runs)} steps"
        first = f"first different action: {in_words(self.first)}"
        return f"{self.preset}, {self.dtype}: {state}. {runs}, {self.actions:,} actions alike; {first}; {self._why()}."

    @property
    def _yardstick(self) -> str:
        """Which of the original's own divergences the port's is compared with."""
        is_wide = any(run.wide is not None for run in self.runs)
        return "the original against its own float64 run" if is_wide else "the original against itself"

    def _why(self) -> str:
        """What the verdict goes by."""
        own = f"{self._yardstick}: {in_words(self.own_first)}"
        if self.dtype == "float32" and self.first < self.own_first:
            own += f" (earlier by chance with a probability of {self.chance:.2f})"
        drift = f"drift {self.ratio:.2g} times the original's own (at most {DRIFT_LIMIT:g})"
        if self.to_truth > 0:
            drift += f"; {self.to_truth:.2g} times as far as it from its float64 run"
        return f"{own}; {drift}"


class ResyncedGroup(Group):
    """Resynchronised runs of one preset."""

    @property
    def acts_alike(self) -> bool:
        """Whether no action differs."""
        return bool(np.isinf([run.port.first_step for run in self.runs]).all())

    @property
    def worst_learner_step(self) -> LearnerStep | None:
        """The one that takes most of its tolerance; None where nothing was compared."""
        return max(self.learner_steps, key=lambda step: step.share, default=None)

    @property
    def is_equal(self) -> bool:
        """The verdict."""
        is_compared = all(run.learner_steps for run in self.runs)
        return self.acts_alike and is_compared and all(step.is_equal for step in self.learner_steps)

    def _why(self) -> str:
        """What the verdict goes by."""
        worst, steps = self.worst_learner_step, "no learner step was compared"
        if worst is not None:
            steps = (
                f"of {len(self.learner_steps)} learner steps from the same state the worst is at step {worst.step}: "
                f"{worst.tensor} is off by {worst.error:.1e} of its scale, {worst.sigmas:.2g} sigmas, "
                f"{worst.share:.2g} of its tolerance"
            )
        drift = f"the parameters drifted by at most {self.worst_drift:.1e} before the next time"
        return f"resynchronised every {self.every} steps; {steps}; {drift}"


@dataclass(frozen=True)
class Verdict:
    """All runs, what was skipped and why, and how long it took."""

    runs: Sequence[ComparedRun]
    skipped: dict[str, str]
    seconds: float

    def __post_init__(self) -> None:
        for run in self.runs:
            run.check()

    @cached_property
    def groups(self) -> list[Group]:
        """By preset and precision."""
        by_key: dict[tuple[str, str], list[ComparedRun]] = {}
        for run in self.runs:
            by_key.setdefault((run.preset, run.dtype), []).append(run)
        return [(ResyncedGroup if runs[0].every else Group)(*key, runs) for key, runs in by_key.items()]

    @property
    def is_equal(self) -> bool:
        """Whether all are."""
        return all(group.is_equal for group in self.groups)

    def sentence(self) -> str:
        """The verdict in one line."""
        count = sum(run.port.actions for run in self.runs)
        wrong = [f"{group.preset} in {group.dtype}" for group in self.groups if not group.is_equal]
        every = self.groups[0].every
        resynced = f" (resynchronised every {every} steps)" if every else ""
        runs = f"{counted(len(self.runs))} compared with the original's{resynced}, {count:,} actions alike"
        return f"{runs}: {'different in ' + ', '.join(wrong) if wrong else 'in lockstep'}."
