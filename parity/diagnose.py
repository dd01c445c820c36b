"""Which mistake is it? Asks, for each layer that differs, what makes the port give the candidate's wrong numbers.

Every catalogued mistake that can reach the layer is planted in a copy of the port; one that reproduces the candidate's
outputs and VJPs on all stored cases of the layer, within budget, is the diagnosis. Layers are taken in data-flow order,
and what was found upstream is planted already, so that a layer that only inherits an error is told from one that adds
its own. Where no single mistake fits, pairs of mistakes of the same layer are tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from parity.bugs import Bug, catalogue, implementation_with
from parity.bugs.patterns import patterns
from parity.bugs.reach import Entered, entered, is_reached, stored_cases
from parity.check import Judge, cast, load
from parity.compare import Row
from parity.implementation import CannotRun, Implementation
from parity.layers import REGISTRY
from parity.layers.spec import Arrays
from parity.store import Accuracy, Golden, Store, reduced

NO_NUMBERS = ("raised", "changed its input", "expected ", "is missing", "is not an output")
SINGLE = 1e-6  # what rounding to float32 somewhere inside may leave, relative to an output's scale
Precision = Literal["within budget", "to float32 precision"]


@dataclass(frozen=True)
class Finding:
    """What is wrong with one layer.

    Attributes:
        layer: its name.
        feeding: layers upstream of it that differ as well; none means that the error is its own.
        worst: the comparison furthest past its budget, as a sentence.
        mistakes: names of the catalogued mistakes that reproduce it, together; none if none fits.
        is_inherited: whether what was found upstream explains it already.
        blocked_by: layers that this one consists of, which differ without a diagnosis: so it cannot have one either.
        precision: how well they reproduce it.
        scope: `everything`, or `values` where the gradients differ in another way.
        also: other mistakes that would explain this layer just as well.
        patterns: what the error looks like, where no mistake fits.
    """

    layer: str
    feeding: list[str]
    worst: str
    mistakes: list[str]
    is_inherited: bool = False
    blocked_by: tuple[str, ...] = ()
    precision: str = "within budget"
    scope: str = "everything"
    also: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The finding for machines, with what the catalogue says about each mistake."""
        about = [
            {k: getattr(catalogue()[name], k) for k in ("name", "explanation", "formula", "origin")}
            for name in self.mistakes
        ]
        return asdict(self) | {"mistakes": about}

    def lines(self) -> list[str]:
        """The finding for people."""
        where = (
            f"of what feeds it, {', '.join(self.feeding)} differs too" if self.feeding else "all that feeds it is equal"
        )
        found = [f"{self.layer} differs; {where}.", f"  {self.worst}"]
        if self.is_inherited:
            return [*found, f"  Nothing new: it inherits {' and '.join(self.mistakes)}."]
        if self.blocked_by:
            return [*found, f"  Not asked: {', '.join(self.blocked_by)} is part of it, and has no diagnosis."]
        for name in self.mistakes:
            bug = catalogue()[name]
            found += [f"  Mistake: {name} ({bug.origin}). {bug.explanation}", f"  Right:   {bug.formula}"]
        if self.mistakes and self.precision != "within budget":
            found.append("  It fits to float32 precision only: something is computed in float32 as well.")
        if self.mistakes and self.scope == "values":
            found.append("  It explains the values; the gradients differ in another way.")
        if self.also:
            found.append(f"  On this layer the same numbers come from: {', '.join(self.also)}.")
        if not self.mistakes:
            found += ["  No catalogued mistake fits.", *(f"  {sentence}" for sentence in self.patterns)]
        return found


def upstream(layer: str) -> set[str]:
    """All layers that feed a layer, directly or not."""
    found: set[str] = set()
    waiting = list(REGISTRY[layer].upstream)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += REGISTRY[name].upstream
    return found


class Suspect:
    """A candidate's answers on one layer, and the question which changed port gives the same."""

    def __init__(self, store: Store, candidate: Implementation, layer: str):
        """Runs the candidate on the layer's stored cases."""
        self.candidate, self.layer = candidate, layer
        self.goldens = [load(store, layer, case) for case in stored_cases(store, layer)]
        judge = Judge(candidate)
        self.rows = {golden.case: list(judge.rows(golden)) for golden in self.goldens}
        self.different = [row for rows in self.rows.values() for row in rows if not row.equal]
        self.has_gradients = not judge.without_gradients
        self._answers: list[Golden] | None = None

    @property
    def worst(self) -> Row:
        """The comparison furthest past its budget, values in float64 before all others."""
        rank = {("value", "float64"): 2, ("vjp", "float64"): 1}
        return max(self.different, key=lambda row: (rank.get((row.kind, row.dtype), 0), row.ratio))

    @property
    def failures(self) -> set[str]:
        """How it fails without giving numbers; in float64, the precision in which it is asked."""
        return _failures(self.different)

    def answers(self) -> list[Golden]:
        """The goldens with the candidate's answers in the place of the original's, the worst case first."""
        if self._answers is None:
            ordered = sorted(self.goldens, key=lambda golden: golden.case != self.worst.case)
            self._answers = [self._answer(golden) for golden in ordered]
        return self._answers

    def _answer(self, golden: Golden) -> Golden:
        given = (golden.settings, "float64")
        values = self.candidate.run(self.layer, cast(golden.inputs, "float64"), *given)
        vjps: Arrays = {}
        if golden.vjps and self.has_gradients:
            more = (cast(golden.cotangents, "float64"), sorted(golden.vjps))
            vjps = self.candidate.vjp(self.layer, cast(golden.inputs, "float64"), *given, *more)
        answer = {"value": _reduced(values, golden.outputs["float64"]), "vjp": _reduced(vjps, golden.vjps)}
        accuracy = {
            kind: {name: _rescaled(golden.accuracy[kind][name], value) for name, value in arrays.items()}
            for kind, arrays in answer.items()
        }
        outputs, sides = {"float64": answer["value"]}, {"value": {}, "vjp": {}}  # type: ignore[var-annotated]
        return replace(golden, outputs=outputs, vjps=answer["vjp"], sides=sides, accuracy=accuracy)

    def fit(self, bugs: Sequence[Bug], scope: str = "everything") -> Precision | None:
        """Whether the port with these mistakes gives the candidate's answers, and how exactly."""
        try:
            mutant = implementation_with(*bugs)
        except CannotRun:  # two changes of the same line cannot be planted together
            return None
        if self.failures:
            seen = _failures([row for golden in self.goldens for row in Judge(mutant).rows(golden)])
            return "within budget" if self.failures == seen else None
        return self._agreement(mutant, scope)

    def _agreement(self, mutant: Implementation, scope: str) -> Precision | None:
        precision: Precision = "within budget"
        for answer in self.answers():
            asked = replace(answer, vjps={}) if scope == "values" else answer
            for row in Judge(mutant).rows(asked):
                if row.equal:
                    continue
                if row.problem or row.max_rel > min(SINGLE, 0.01 * self.worst.max_rel):
                    return None
                precision = "to float32 precision"
        return precision


def _failures(rows: Iterable[Row]) -> set[str]:
    return {row.problem for row in rows if row.dtype == "float64" and row.problem.startswith(NO_NUMBERS)}


def _reduced(given: Arrays, asked: Collection[str]) -> Arrays:
    return {name: reduced(np.asarray(given[name])) for name in asked if name in given}


def _rescaled(accuracy: Accuracy, values: np.ndarray) -> Accuracy:
    """The same accuracy for an answer of another size."""
    finite = np.abs(values[np.isfinite(values)]) if values.dtype.kind == "f" else np.zeros(0)
    scale = max(accuracy.scale, float(finite.max(initial=0.0)))
    growth = scale / accuracy.scale if accuracy.scale else 1.0
    return Accuracy(scale, accuracy.sensitivity64 * growth, accuracy.distance32)


class Map:
    """Which functions of the port each layer enters, asked for once."""

    def __init__(self, store: Store):
        """Takes the goldens, whose inputs the layers run on."""
        self.store, self._known = store, dict[str, Entered]()

    def entered(self, layer: str) -> Entered:
        """The functions that a layer enters."""
        if layer not in self._known:
            self._known[layer] = entered(self.store, implementation_with(), layer)
        return self._known[layer]

    def is_part_of(self, part: str, layer: str) -> bool:
        """Whether a layer does within itself what another one does: it enters most of the same functions."""
        own = {place for place in self.entered(part) if "adapter" not in Path(place[0]).parts}
        return len(own & self.entered(layer)) > len(own) / 2

    def suspects_of(self, layer: str) -> list[Bug]:
        """The mistakes that can reach a layer, those named for it first."""
        reaching = [bug for bug in catalogue().values() if is_reached(bug.edits, self.entered(layer))]
        return sorted(reaching, key=lambda bug: bug.layer != layer)


def explain(suspect: Suspect, possible: Sequence[Bug], feeding: list[str], known: Sequence[Bug]) -> Finding:
    """Looks for the mistake, or the pair, behind one layer; `known` were found upstream."""
    finding = Finding(suspect.layer, feeding, suspect.worst.sentence(), [])
    inherited = [bug for bug in known if bug in possible]
    if inherited and (precision := suspect.fit(inherited)):
        names = [bug.name for bug in inherited]
        return replace(finding, mistakes=names, is_inherited=True, precision=precision)
    new = [bug for bug in possible if bug not in inherited]
    own = [bug for bug in new if bug.layer == suspect.layer]
    attempts: list[tuple[Iterable[tuple[Bug, ...]], str]] = [(((bug,) for bug in new), "everything")]
    attempts += [(combinations(own, 2), "everything")]
    if suspect.has_gradients:
        attempts += [(((bug,) for bug in new), "values")]
    for groups, scope in attempts:
        if scope == "values" and suspect.worst.kind == "vjp":
            continue
        fits = {group: fit for group in groups if (fit := suspect.fit([*inherited, *group], scope))}
        if fits:
            best, *others = sorted(fits, key=lambda group: fits[group] != "within budget")
            also = tuple(" + ".join(bug.name for bug in group) for group in others if fits[group] == fits[best])
            names = [bug.name for bug in best]
            return replace(finding, mistakes=names, precision=fits[best], scope=scope, also=also)
    return replace(finding, patterns=tuple(patterns(suspect.goldens, suspect.candidate, suspect.worst)))


def diagnose(store: Store, candidate: Implementation, layers: Iterable[str]) -> list[Finding]:
    """Findings for the layers that differ, in the given (data-flow) order; none if all are equal."""
    findings: list[Finding] = []
    known: list[Bug] = []
    where = Map(store)
    for layer in layers:
        if layer not in candidate.layers:
            continue
        suspect = Suspect(store, candidate, layer)
        if not suspect.different:
            continue
        feeding = [finding.layer for finding in findings if finding.layer in upstream(layer)]
        blocked = [f.layer for f in findings if not f.mistakes and where.is_part_of(f.layer, layer)]
        if blocked:
            finding = Finding(layer, feeding, suspect.worst.sentence(), [], blocked_by=tuple(blocked))
        else:
            finding = explain(suspect, where.suspects_of(layer), feeding, known)
        known += [catalogue()[name] for name in finding.mistakes if not finding.is_inherited]
        findings.append(finding)
    return findings


def closing_line(findings: Sequence[Finding], compared: int) -> str:
    """The verdict in a sentence."""
    if not findings:
        return f"{compared} layers compared on their stored cases: all equal, nothing to diagnose."
    named = sorted({name for finding in findings for name in finding.mistakes})
    unknown = [finding.layer for finding in findings if not finding.mistakes]
    first = f"The first layer that differs is {findings[0].layer}. "
    known = f"Mistakes recognised: {', '.join(named)}. " if named else ""
    open_ = f"Without a diagnosis: {', '.join(unknown)}." if unknown else "Every difference is explained."
    return f"{len(findings)} of {compared} layers differ. {first}{known}{open_}"
