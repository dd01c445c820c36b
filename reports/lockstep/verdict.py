"""When are two lives the same? The verdict of lockstep, over lives of one kind and precision.

float64: no action differs, as long as the original does not part from itself. float32: actions part, in the median over
lives, no earlier than the original parts from itself; two rounding errors of the same size part now one first, now the
other, so that "earlier" must be more than chance (Mann and Whitney's test). Both: until then the parameters drift no
further apart than a few times what the original's own do, which tells within a few learner steps what actions tell
later.

The original parts from itself where its initial parameters are moved by one unit in the last place.

Where the port takes over the original's state every so many steps (float64), no action may differ at all, and the
learner's whole state after the next learner step must be equal by the rule of `parity.tolerance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.stats import mannwhitneyu

from parity.errors import CannotRun
from parity.runs.lockstep import Comparison, drift_ratio

DRIFT_LIMIT = 20.0  # times the original's own
# Of the step at which the original parts from itself. What grows to a different action in half the time was about 1e-8
# when the original was moved by 1e-16: no rounding.
EARLIEST = 0.5
CHANCE = 0.05  # in float32: how probable it may be that what parts earlier does so by chance


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
class Lived:
    """A life of the port beside the original's tape.

    Attributes:
        kind: of the life.
        life: its name.
        dtype: of port and tape.
        port: against the tape.
        own: the original's moved lives against the same tape, by name.
        wide: in float32, the original's life in float64 against the same tape, to be shown beside.
        to_truth: in float32, how far the port is from the original's float64 life, in times of the original's own
            distance in float32; NaN if not known.
        renewed: 0, or after how many steps, again and again, the port took over the original's state.
        learner_steps: of such a life, the first learner step after each time; and the first of all.
    """

    kind: str
    life: str
    dtype: str
    port: Comparison
    own: dict[str, Comparison]
    wide: Comparison | None = None
    to_truth: float = float("nan")
    renewed: int = 0
    learner_steps: Sequence[LearnerStep] = ()

    @property
    def own_firsts(self) -> list[float]:
        """The steps at which the original parts from itself, infinity where it does not."""
        return [other.first_step for other in self.own.values()]

    @property
    def ratio(self) -> float:
        """How many times further the port drifts than the original from itself."""
        return drift_ratio(self.port, list(self.own.values()))

    def check(self) -> None:
        """Raises CannotRun where there is nothing to judge by."""
        if not self.own and not self.renewed:
            raise CannotRun(
                f"{self.life} has no moved tape in {self.dtype}; `python -m reference tape --moved 1` makes one."
            )
        if not self.port.has_learned.any():
            raise CannotRun(f"{self.life}: nothing is learned in {self.port.steps} steps; give --steps more.")


def counted(lives: int) -> str:
    """So many lives."""
    return "1 life" if lives == 1 else f"{lives} lives"


def in_words(step: float) -> str:
    """A step, or that there is none."""
    if np.isnan(step):
        return "not known"
    return "none" if np.isinf(step) else f"step {step:.0f}" if step == int(step) else f"step {step:.1f}"


@dataclass(frozen=True)
class Group:
    """The lives of one kind in one precision."""

    kind: str
    dtype: str
    lived: Sequence[Lived]

    @property
    def first(self) -> float:
        """Median over lives of the step of the first different action."""
        return float(np.median([one.port.first_step for one in self.lived]))

    @property
    def own_first(self) -> float:
        """The same for the original against itself, over all its moved lives."""
        return float(np.median(self._own_firsts)) if self._own_firsts else float("nan")

    @property
    def _own_firsts(self) -> list[float]:
        return [first for one in self.lived for first in one.own_firsts]

    @property
    def chance(self) -> float:
        """How probable it is that the port parts this early by chance, if it parts like the original from itself."""
        if not self._own_firsts:
            return float("nan")
        found = mannwhitneyu([one.port.first_step for one in self.lived], self._own_firsts, alternative="less")
        return float(found.pvalue)

    @property
    def ratio(self) -> float:
        """The largest drift, in times of the original's own; NaN where actions part before anything is learned."""
        known = [one.ratio for one in self.lived if not np.isnan(one.ratio)]
        return max(known, default=float("nan"))

    @property
    def to_truth(self) -> float:
        """Median over lives of the distance to the float64 life, in times of the original's; NaN if not known."""
        return float(np.median([one.to_truth for one in self.lived]))

    @property
    def acts_alike(self) -> bool:
        """Whether the actions are what they must be."""
        if self.renewed:
            return bool(np.isinf([one.port.first_step for one in self.lived]).all())
        if self.dtype == "float32":
            by_chance = self.first >= EARLIEST * self.own_first and self.chance >= CHANCE
            return self.first >= self.own_first or by_chance
        return all(one.port.first_step >= EARLIEST * min(one.own_firsts) for one in self.lived)

    @property
    def renewed(self) -> int:
        """After how many steps, again and again, the port took over the original's state; 0 where it never did."""
        return max(one.renewed for one in self.lived)

    @property
    def learner_steps(self) -> list[LearnerStep]:
        """Those that were compared, over all lives."""
        return [step for one in self.lived for step in one.learner_steps]

    @property
    def worst_learner_step(self) -> LearnerStep | None:
        """The one that takes most of its tolerance; None where nothing was compared."""
        return max(self.learner_steps, key=lambda step: step.share, default=None)

    @property
    def is_equal(self) -> bool:
        """The verdict."""
        if self.renewed:
            every = all(one.learner_steps and all(step.is_equal for step in one.learner_steps) for one in self.lived)
            return self.acts_alike and every
        return self.acts_alike and not self.ratio > DRIFT_LIMIT

    @property
    def actions(self) -> int:
        """Compared, up to the first different ones."""
        return sum(one.port.actions for one in self.lived)

    @property
    def worst_loss(self) -> float:
        """The largest distance of losses while all act alike."""
        losses = [one.port.loss[: one.port.together] for one in self.lived]
        return float(np.nanmax([np.nanmax(loss, initial=0.0) for loss in losses]))

    @property
    def worst_drift(self) -> float:
        """The largest while all act alike."""
        return max(float(one.port.drift[: one.port.together].max(initial=0.0)) for one in self.lived)

    def sentence(self) -> str:
        """The verdict in words."""
        said = "equal" if self.is_equal else "DIFFERENT"
        lives = f"{counted(len(self.lived))} of up to {max(one.port.steps for one in self.lived)} steps"
        return f"{self.kind}, {self.dtype}: {said}. {lives}, {self.actions:,} actions alike; {self._of_what()}."

    def _of_learner_steps(self) -> str:
        worst = self.worst_learner_step
        if worst is None:
            return "no learner step was compared"
        return (
            f"of {len(self.learner_steps)} learner steps from the same state the worst is at step {worst.step}: "
            f"{worst.tensor} is off by {worst.error:.1e} of its scale, {worst.sigmas:.2g} sigmas, {worst.share:.2g} of "
            "its tolerance"
        )

    def _of_what(self) -> str:
        """What the verdict goes by."""
        first = f"first different action: {in_words(self.first)}"
        if self.renewed:
            return (
                f"{first}; the original's state was taken over every {self.renewed} steps; {self._of_learner_steps()}; "
                f"the parameters drifted by at most {self.worst_drift:.1e} before the next time"
            )
        own = f"the original against itself: {in_words(self.own_first)}"
        if self.dtype == "float32" and self.first < self.own_first:
            own += f" (that the port's is earlier has a chance of {self.chance:.2f} to be luck)"
        drift = f"drift {self.ratio:.2g} times the original's own (at most {DRIFT_LIMIT:g})"
        if self.to_truth > 0:
            drift += f"; {self.to_truth:.2g} times as far as it from its float64 life"
        return f"{first}; {own}; {drift}"


@dataclass(frozen=True)
class Verdict:
    """All that was lived, what was not and why, and how long it took."""

    lived: Sequence[Lived]
    skipped: dict[str, str]
    seconds: float

    def __post_init__(self) -> None:
        for one in self.lived:
            one.check()

    @cached_property
    def groups(self) -> list[Group]:
        """By kind and precision."""
        keys = dict.fromkeys((one.kind, one.dtype) for one in self.lived)
        return [Group(*key, [one for one in self.lived if (one.kind, one.dtype) == key]) for key in keys]

    @property
    def is_equal(self) -> bool:
        """Whether all are."""
        return all(group.is_equal for group in self.groups)

    def sentence(self) -> str:
        """The verdict in one line."""
        count = sum(one.port.actions for one in self.lived)
        wrong = [f"{group.kind} in {group.dtype}" for group in self.groups if not group.is_equal]
        every = self.groups[0].renewed
        taken = f" (whose state was taken over every {every} steps)" if every else ""
        lived = f"{counted(len(self.lived))} lived beside the original's{taken}, {count:,} actions alike"
        return f"{lived}: {'different in ' + ', '.join(wrong) if wrong else 'in lockstep'}."
