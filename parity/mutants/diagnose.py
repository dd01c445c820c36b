"""Which mistake is it? Asks, for each layer that differs, what makes the port give the candidate's wrong numbers.

Every mutant of the catalogue that can reach the layer is tried. One that reproduces the candidate's outputs and VJPs
on all stored cases of the layer, within tolerance, is the diagnosis. Layers are taken in data-flow order, and mutants
diagnosed upstream are kept, so that a layer that only inherits an error is told from one that adds its own. Where no
single mutant fits, pairs of mutants of the same layer are tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from parity.compare import NO_NUMBERS, Problem, Row
from parity.errors import CannotRun, in_words
from parity.goldens.judge import Judge, run, vjp
from parity.goldens.store import Golden, Store
from parity.implementation import Implementation
from parity.layers.spec import Arrays, upstream
from parity.mutants import Mutant, catalogue, implementation_with
from parity.mutants.coverage import entered, is_reached, stored_goldens
from parity.mutants.diagnosis import Diagnosis, closing_line
from parity.mutants.patterns import patterns
from parity.sigma import Rounding
from parity.sketch import reduced
from parity.tolerance import scale_of

__all__ = ["Diagnosis", "closing_line", "diagnose"]

ROUNDS_MORE = "Equal in float64, so the formula is right; in float32 it is less exact than rounding explains."
Precision = Literal["within tolerance", "to float32 precision"]


class Suspect:
    """A candidate's answers on one layer, and the question which changed port gives the same."""

    def __init__(self, store: Store, candidate: Implementation, layer: str):
        """Runs the candidate on the layer's stored cases."""
        self.candidate, self.layer = candidate, layer
        self.goldens = stored_goldens(store, layer)
        judge = Judge(candidate)
        self.rows = {golden.case: list(judge.rows(golden)) for golden in self.goldens}
        self.different = [row for rows in self.rows.values() for row in rows if not row.equal]
        self.has_gradients = not judge.without_gradients

    @property
    def worst(self) -> Row:
        """The comparison furthest past its tolerance, values in float64 before all others."""
        rank = {("value", "float64"): 2, ("vjp", "float64"): 1}
        return max(self.different, key=lambda row: (rank.get((row.kind, row.dtype), 0), row.ratio))

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
        """The goldens with the candidate's answers in the place of the original's, the worst case first."""
        return [
            self._answer(golden) for golden in sorted(self.goldens, key=lambda golden: golden.case != self.worst.case)
        ]

    def _answer(self, golden: Golden) -> Golden:
        values = run(self.candidate, golden)
        vjps = vjp(self.candidate, golden) if golden.vjps and self.has_gradients else {}
        answer = {"value": _reduced(values, golden.outputs), "vjp": _reduced(vjps, golden.vjps)}
        sigmas = {
            kind: {name: _rescaled(golden, kind, name, value) for name, value in arrays.items()}
            for kind, arrays in answer.items()
        }
        return replace(golden, outputs=answer["value"], vjps=answer["vjp"], rounding=Rounding(sigmas))

    def fit(self, mutants: Sequence[Mutant], scope: str = "everything") -> Precision | None:
        """Whether the port with these mistakes gives the candidate's answers, and how exactly."""
        try:
            mutated = implementation_with(*mutants)
        except CannotRun:  # two edits of the same line do not go together
            return None
        if self.failures:
            failures = _failures(row for golden in self.goldens for row in Judge(mutated).rows(golden))
            return "within tolerance" if self.failures == failures else None
        return self._agreement(mutated, scope)

    def _agreement(self, mutated: Implementation, scope: str) -> Precision | None:
        precision: Precision = "within tolerance"
        for answer in self.answers:
            expected = replace(answer, vjps={}) if scope == "values" else answer
            if all(row.equal for row in Judge(mutated, ("float64",)).rows(expected)):
                continue
            rows = list(Judge(mutated, ("float32",), answers_in="float64").rows(expected))
            if not all(row.equal and row.max_rel <= 0.01 * self.worst.max_rel for row in rows):
                return None
            precision = "to float32 precision"
        return precision


def _failures(rows: Iterable[Row]) -> set[Problem]:
    problems = {row.problem for row in rows if row.dtype == "float64" and row.problem}
    return {problem for problem in problems if problem.kind in NO_NUMBERS}


def _reduced(arrays: Arrays, names: Collection[str]) -> Arrays:
    return {name: reduced(np.asarray(arrays[name])) for name in names if name in arrays}


def _rescaled(golden: Golden, kind: str, name: str, answer: np.ndarray) -> dict[int, np.ndarray]:
    """Sigma of an answer of another scale than the golden's."""
    scale = scale_of(golden.truth(kind)[name])
    growth = max(scale_of(answer) / scale, 1.0) if scale else 1.0
    return {bits: growth * golden.sigma(kind, name, bits) for bits in golden.recorded_at(kind)}


class Map:
    """Which functions of the port each layer enters, asked for once."""

    def __init__(self, store: Store):
        """Takes the goldens, whose inputs the layers run on."""
        self.entered = lru_cache(None)(partial(entered, store, implementation_with()))

    def is_part_of(self, part: str, layer: str) -> bool:
        """Whether a layer does within itself what another one does: it enters most of the same functions."""
        of_part = {place for place in self.entered(part) if "adapter" not in Path(place[0]).parts}
        return len(of_part & self.entered(layer)) > len(of_part) / 2

    def suspects_of(self, layer: str) -> list[Mutant]:
        """The mistakes that can reach a layer, those named for it first."""
        reaching = [mutant for mutant in catalogue().values() if is_reached(mutant.edits, self.entered(layer))]
        return sorted(reaching, key=lambda mutant: mutant.layer != layer)


Groups = Iterable[tuple[Mutant, ...]]


def attempts(
    suspect: Suspect, possible: Sequence[Mutant], inherited: Sequence[Mutant], equal: Collection[str]
) -> Iterator[tuple[Groups, str]]:
    """What to try, the likeliest first: groups of mistakes, and in which scope they must fit.

    A mistake that would have shown at a layer that is equal comes late: it can only be one if the candidate does there
    and here the same thing in two ways.
    """
    new = [mutant for mutant in possible if mutant not in inherited]
    open_, settled = ([mutant for mutant in new if (mutant.layer in equal) is known] for known in (False, True))
    of_layer = [mutant for mutant in new if mutant.layer == suspect.layer]
    together = tuple(inherited)
    yield ((*together, mutant) for mutant in open_), "everything"
    yield ((*together, *pair) for pair in combinations(of_layer, 2)), "everything"
    if inherited:
        yield ((mutant,) for mutant in open_), "everything"
    yield ((*together, mutant) for mutant in settled), "everything"
    if suspect.has_gradients and suspect.worst.kind != "vjp":
        yield ((*together, mutant) for mutant in [*open_, *settled]), "values"


def explain(
    suspect: Suspect, possible: Sequence[Mutant], feeding: list[str], known: Sequence[Mutant], equal: Collection[str]
) -> Diagnosis:
    """Looks for the mistake, or the pair, behind one layer.

    Args:
        suspect: the layer.
        possible: mistakes that can reach it.
        feeding: layers upstream that differ.
        known: mutants diagnosed upstream.
        equal: layers that do not differ.
    """
    diagnosis = Diagnosis(suspect.layer, feeding, suspect.worst.sentence(), [])
    if all(row.dtype == "float32" for row in suspect.different):
        return replace(diagnosis, patterns=(ROUNDS_MORE,))
    inherited = [mutant for mutant in known if mutant in possible]
    if inherited and (precision := suspect.fit(inherited)):
        names = [mutant.name for mutant in inherited]
        return replace(diagnosis, mistakes=names, is_inherited=True, precision=precision)
    for groups, scope in attempts(suspect, possible, inherited, equal):
        fits = {group: fit for group in groups if (fit := suspect.fit(group, scope))}
        if fits:
            best, *others = sorted(fits, key=lambda group: fits[group] != "within tolerance")
            also = tuple(" + ".join(_names(group, inherited)) for group in others if fits[group] == fits[best])
            names = _names(best, inherited)
            return replace(diagnosis, mistakes=names, precision=fits[best], scope=scope, also=also)
    sentences = patterns(suspect.goldens, suspect.candidate, suspect.worst)
    return replace(diagnosis, patterns=(*sentences, suspect.equal_on()))


def _names(group: Sequence[Mutant], inherited: Sequence[Mutant]) -> list[str]:
    return [mutant.name for mutant in group if mutant not in inherited]


def diagnose(store: Store, candidate: Implementation, layers: Iterable[str]) -> list[Diagnosis]:
    """Diagnoses for the layers that differ, in the given (data-flow) order; none if all are equal."""
    diagnoses: list[Diagnosis] = []
    known: list[Mutant] = []
    equal: set[str] = set()
    where = Map(store)
    for layer in layers:
        if layer not in candidate.layers:
            continue
        suspect = Suspect(store, candidate, layer)
        if not suspect.different:
            equal.add(layer)
            continue
        feeding = [diagnosis.layer for diagnosis in diagnoses if diagnosis.layer in upstream(layer)]
        blocked = [d.layer for d in diagnoses if not d.mistakes and where.is_part_of(d.layer, layer)]
        if blocked:
            diagnosis = Diagnosis(layer, feeding, suspect.worst.sentence(), [], blocked_by=tuple(blocked))
        else:
            try:
                diagnosis = explain(suspect, where.suspects_of(layer), feeding, known, equal)
            except Exception as error:  # the other layers are diagnosed all the same
                reason = f"It could not be diagnosed: {in_words(error)}."
                diagnosis = Diagnosis(layer, feeding, suspect.worst.sentence(), [], patterns=(reason,))
        known += [catalogue()[name] for name in diagnosis.mistakes if not diagnosis.is_inherited]
        diagnoses.append(diagnosis)
    return diagnoses
