"""A candidate's answers on one layer, and which mutated port comes near to them, or gives the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from parity.compare import NO_NUMBERS, Problem, Row
from parity.errors import CannotRun
from parity.goldens.judge import Judge, run, vjp
from parity.goldens.store import Golden, Store
from parity.implementation import Implementation
from parity.layers.spec import Arrays
from parity.mutants import Mutant, implementation_with
from parity.mutants.coverage import stored_goldens
from parity.sigma import Rounding
from parity.sketch import reduced
from parity.tolerance import scale_of

Precision = Literal["within tolerance", "to float32 precision"]
Scope = Literal["everything", "numbers", "values"]
Group = tuple[Mutant, ...]
Distances = dict[tuple[str, str], float]  # by case and output, relative to the output's scale
FAR = 1e3  # the distance of outputs that cannot be compared
NEAR = 1e-2  # of the error: what a mistake that fits to float32 precision may leave of it
ROUNDING = 1e-9  # of the scale: a distance that may be rounding
SCORED = 2  # cases on which every mutant is tried; all cases decide on one that comes near there


class Suspect:
    """A candidate's answers on one layer, and the question which mutated port gives the same."""

    def __init__(self, store: Store, candidate: Implementation, layer: str):
        """Runs the candidate on the layer's stored cases."""
        self.candidate, self.layer = candidate, layer
        judge = Judge(candidate)
        rows = [(golden, list(judge.rows(golden))) for golden in stored_goldens(store, layer)]
        self.goldens = [golden for golden, of_case in rows if of_case]
        self.different = [row for _, of_case in rows for row in of_case if not row.equal]
        self.has_gradients = not judge.without_gradients
        self._distances: dict[Group, Distances | None] = {}

    @cached_property
    def failed(self) -> set[tuple[str, str, str]]:
        """Case, kind and name of the outputs without numbers."""
        return {(row.case, row.kind, row.output) for row in self.different if _without_numbers(row)}

    @property
    def worst(self) -> Row:
        """The comparison furthest past its tolerance: what has numbers before the rest, values in float64 first."""
        rank = {("value", "float64"): 2, ("vjp", "float64"): 1}

        def order(row: Row) -> tuple[bool, int, float]:
            return not _without_numbers(row), rank.get((row.kind, row.dtype), 0), row.ratio

        return max(self.different, key=order)

    def equal_on(self) -> str:
        """The cases that are equal, in words: what the others have in common leads to the mistake."""
        wrong = {row.case for row in self.different}
        right = [golden.case for golden in self.goldens if golden.case not in wrong]
        return f"It is equal on {', '.join(right)}." if right else "It differs on every case."

    @cached_property
    def failures(self) -> set[Problem]:
        """How it fails without giving numbers; in float64, the precision in which it is asked."""
        return _failures(self.different)

    @cached_property
    def answers(self) -> list[Golden]:
        """The goldens with the candidate's numbers in the place of the original's; first the worst case."""
        differing = [row.case for row in self.different if row.kind == self.worst.kind]
        ranked = sorted(
            self.goldens, key=lambda golden: (golden.case != self.worst.case, -differing.count(golden.case))
        )
        return [self._answer(golden) for golden in ranked]

    def _answer(self, golden: Golden) -> Golden:
        calls = {"value": run, **({"vjp": vjp} if golden.vjps and self.has_gradients else {})}
        answer: dict[str, Arrays] = {"value": {}, "vjp": {}}
        for kind, call in calls.items():
            names = {name for name in golden.truth(kind) if (golden.case, kind, name) not in self.failed}
            with suppress(Exception):  # what raises has its row already
                arrays = call(self.candidate, golden) if names else {}
                answer[kind] = {name: reduced(np.asarray(arrays[name])) for name in names if name in arrays}
        sigmas = {
            kind: {name: _rescaled(golden, kind, name, value) for name, value in arrays.items()}
            for kind, arrays in answer.items()
        }
        return replace(golden, outputs=answer["value"], vjps=answer["vjp"], rounding=Rounding(sigmas))

    def fit(self, mutants: Group, scope: Scope = "everything") -> Precision | None:
        """Whether the port with these mistakes gives the candidate's answers, and how exactly.

        Args:
            mutants: that the port gets.
            scope: `numbers` leaves out outputs without numbers, and `values` gradients too.
        """
        has_numbers = len(self.failed) < len({(row.case, row.kind, row.output) for row in self.different})
        if has_numbers and not self._comes_near(mutants):
            return None
        try:
            mutated = implementation_with(*mutants)
        except CannotRun:  # two edits of the same line do not go together
            return None
        if scope == "everything" and self.failures:
            if self.failures != _failures(row for golden in self.goldens for row in Judge(mutated).rows(golden)):
                return None
        elif not has_numbers:
            return None
        return self._agreement(mutated, scope)

    def _comes_near(self, mutants: Group) -> bool:
        """Whether it may fit, by the cases that all mutants are tried on; that saves the others."""
        distances, before = self.distances(mutants), self.distances(()) or {}
        most = max(NEAR * max(before.values(), default=FAR), ROUNDING)
        return distances is not None and max(distances.values(), default=0.0) <= most

    def _agreement(self, mutated: Implementation, scope: Scope) -> Precision | None:
        precision: Precision = "within tolerance"
        for answer in self.answers:
            expected = replace(answer, vjps={}) if scope == "values" else answer
            if all(row.equal for row in _rows(mutated, expected, "float64")):
                continue
            rows = _rows(mutated, expected, "float32")
            if not all(row.equal and row.max_rel <= NEAR * self.worst.max_rel for row in rows):
                return None
            precision = "to float32 precision"
        return precision

    def distances(self, mutants: Group) -> Distances | None:
        """How far the port with these mistakes is from the candidate, on a few cases; None where it cannot answer.

        Values are compared, or gradients where only these differ.
        """
        if mutants not in self._distances:
            self._distances[mutants] = self._measured(mutants)
        return self._distances[mutants]

    def has_tried(self, mutants: Group) -> bool:
        """Whether these distances are known."""
        return mutants in self._distances

    def left_by(self, mutants: Group) -> str:
        """What mistakes do not explain, in words; on the cases that all mutants are tried on."""
        before, after = self.distances(()) or {}, self.distances(mutants) or {}
        wrong = [key for key, distance in before.items() if distance > ROUNDING]
        left = {key: distance for key, distance in after.items() if distance > ROUNDING}
        case, output = max(left, key=lambda key: left[key], default=("", ""))
        if not left:
            return "the gradients differ in another way" if self.worst.kind == "value" else "other cases differ"
        size = f"{left[case, output]:.2g} of its scale, in {output} [{case}]; it was {before[case, output]:.2g}"
        return f"of {len(wrong)} outputs that differ it leaves {len(left)}, by {size}"

    def _measured(self, mutants: Group) -> Distances | None:
        call = vjp if self.worst.kind == "vjp" else run
        distances: Distances = {}
        try:
            mutated = implementation_with(*mutants)
            for answer in self.answers[:SCORED]:
                got = call(mutated, answer)
                for name, ref in answer.truth(self.worst.kind).items():
                    distances[answer.case, name] = _distance(ref, reduced(np.asarray(got[name])))
        except Exception:  # the mistakes do not go together, or the mutated port cannot run here
            return None
        return distances


def _without_numbers(row: Row) -> bool:
    return row.problem is not None and row.problem.kind in NO_NUMBERS


def _failures(rows: Iterable[Row]) -> set[Problem]:
    return {row.problem for row in rows if row.dtype == "float64" and row.problem and _without_numbers(row)}


def _rows(mutated: Implementation, expected: Golden, precision: str) -> Sequence[Row]:
    """Comparisons in float64 answers; of outputs that the candidate has."""
    rows = Judge(mutated, (precision,), answers_in="float64").rows(expected)
    return [row for row in rows if row.output in expected.truth(row.kind)]


def _rescaled(golden: Golden, kind: str, name: str, answer: np.ndarray) -> dict[int, np.ndarray]:
    """Sigma of an answer of another scale than the golden's."""
    scale = scale_of(golden.truth(kind)[name])
    growth = max(scale_of(answer) / scale, 1.0) if scale else 1.0
    return {bits: growth * golden.sigma(kind, name, bits) for bits in golden.recorded_at(kind)}


def _distance(ref: np.ndarray, got: np.ndarray) -> float:
    """The largest difference, relative to the scale; of integers, the share that differs."""
    if ref.shape != got.shape:
        return FAR
    if ref.dtype.kind != "f":
        return float(np.mean(ref != got)) if ref.size else 0.0
    is_finite = np.isfinite(ref)
    if not np.array_equal(is_finite, np.isfinite(got)):
        return FAR
    error = float(np.abs(got - ref, where=is_finite, out=np.zeros(ref.shape)).max(initial=0.0))
    return min(error / (scale_of(ref) or 1.0), FAR)
