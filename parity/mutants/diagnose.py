"""Which mistake is it? Asks, for each layer that differs, which mutants make the port give the candidate's numbers.

Every mutant of the catalogue that can reach the layer is tried. One that reproduces the candidate's outputs and VJPs
on all stored cases of the layer, within tolerance, is the diagnosis. Layers are taken in data-flow order, and mutants
diagnosed upstream are kept, so that a layer that only inherits an error is told from one that adds its own. Where no
single mutant fits, pairs of mutants of the same layer are tried. Then mutants are added one after another, each the one
that explains most of what is left; what they leave is reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path

from parity.errors import in_words
from parity.goldens.store import Store
from parity.implementation import Implementation
from parity.layers.spec import upstream
from parity.mutants import Mutant, catalogue, implementation_with
from parity.mutants.coverage import entered, is_reached
from parity.mutants.diagnosis import Diagnosis, closing_line
from parity.mutants.patterns import patterns
from parity.mutants.suspect import NEAR, Distances, Group, Scope, Suspect

__all__ = ["Diagnosis", "closing_line", "diagnose"]

ROUNDS_MORE = "Equal in float64, so the formula is right; in float32 it is less exact than rounding explains."
MOST_TOGETHER = 6  # mutants that are added to each other
SECONDS = 60.0  # of processor time, before unlikely mistakes are left out
THERE = 1e-12  # of the scale: what is nearer than this is there
SCOPES: tuple[Scope, ...] = ("everything", "numbers", "values")


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


def attempts(
    suspect: Suspect, possible: Sequence[Mutant], inherited: Group, equal: Collection[str]
) -> Iterator[Iterable[Group]]:
    """Groups of mistakes to try, the likeliest first.

    A mistake that would have shown at a layer that is equal comes late: it can only be one if the candidate does there
    and here the same thing in two ways.
    """
    new = [mutant for mutant in possible if mutant not in inherited]
    open_, settled = ([mutant for mutant in new if (mutant.layer in equal) is known] for known in (False, True))
    of_layer = [mutant for mutant in new if mutant.layer == suspect.layer]
    yield ((*inherited, mutant) for mutant in open_)
    if inherited:
        yield ((mutant,) for mutant in open_)
    yield ((*inherited, mutant) for mutant in settled)
    yield ((*inherited, *pair) for pair in combinations(of_layer, 2))


def explain(
    suspect: Suspect, possible: Sequence[Mutant], inherited: Group, equal: Collection[str], limit: float
) -> Diagnosis:
    """Looks for the mistakes behind one layer.

    Args:
        suspect: the layer.
        possible: mistakes that can reach it.
        inherited: those of them that were diagnosed upstream.
        equal: layers that do not differ.
        limit: the processor time at which only what is likely is tried.
    """
    diagnosis = Diagnosis(suspect.layer, suspect.worst.sentence())
    if all(row.dtype == "float32" for row in suspect.different):
        return replace(diagnosis, patterns=(ROUNDS_MORE,))
    if inherited and (precision := suspect.fit(inherited)):
        return replace(diagnosis, mistakes=_names(inherited), is_inherited=True, precision=precision)
    for groups in attempts(suspect, possible, inherited, equal):
        fits = {group: fit for group in groups if (fit := suspect.fit(group))}
        if fits:
            best, *others = sorted(fits, key=lambda group: fits[group] != "within tolerance")
            also = tuple(" + ".join(_names(group, inherited)) for group in others if fits[group] == fits[best])
            diagnosis = replace(diagnosis, mistakes=_names(best, inherited), precision=fits[best], also=also)
            if fits[best] == "within tolerance":
                return diagnosis
            break  # another mistake may explain what float32 would
        if time.process_time() > limit:
            possible = [mutant for mutant in possible if suspect.has_tried((*inherited, mutant))]
            break
    return in_parts(suspect, diagnosis, possible, inherited)


def in_parts(suspect: Suspect, diagnosis: Diagnosis, possible: Sequence[Mutant], inherited: Group) -> Diagnosis:
    """Adds one mutant after another, each the one that explains most of what is left."""
    group = inherited
    best = diagnosis if diagnosis.mistakes else None
    also: tuple[str, ...] = ()
    while len(group) < len(inherited) + MOST_TOGETHER:
        parts = next_parts(suspect, possible, inherited, group)
        if not parts:
            break
        better, *others = parts
        group = (*group, better)
        also += tuple(f"{other.name} in place of {better.name}" for other in others)
        for scope in SCOPES:
            if precision := suspect.fit(group, scope):
                names = _names(group, inherited)
                best = replace(diagnosis, mistakes=names, precision=precision, scope=scope, also=also)
                if precision == "within tolerance":
                    return best
                break  # another mistake may explain what float32 would
    if best:
        return best
    texts = (*patterns(suspect.goldens, suspect.candidate, suspect.worst), suspect.equal_on())
    is_nearer = gain(suspect.distances(()) or {}, suspect.distances(group)) > 0.0
    if group == inherited and is_nearer:
        return replace(
            diagnosis, mistakes=_names(group), is_inherited=True, left=suspect.left_by(group), patterns=texts
        )
    left = suspect.left_by(group) if group != inherited else ""
    return replace(diagnosis, mistakes=_names(group, inherited), left=left, patterns=texts)


def next_parts(suspect: Suspect, possible: Sequence[Mutant], inherited: Group, group: Group) -> list[Mutant]:
    """The mutant that brings the candidate's outputs nearest, if any much nearer, and those that do as well."""
    first, before = suspect.distances(inherited) or {}, suspect.distances(group) or {}
    left = [key for key, distance in before.items() if distance > THERE / NEAR]
    gains = {}
    for mutant in possible:
        alone = suspect.distances((*inherited, mutant)) or {}
        if mutant not in group and any(alone.get(key) != first.get(key) for key in left):  # it changes what is left
            gains[mutant] = gain(before, suspect.distances((*group, mutant)))
    most = max(gains.values(), default=0.0)
    return [mutant for mutant in gains if gains[mutant] >= 0.99 * most] if most > 0.0 else []


def gain(before: Distances, after: Distances | None) -> float:
    """By how many powers of ten the outputs are nearer, summed; 0 where none is by much."""
    if not after or not any(after[key] < NEAR * min(before[key], 1.0) for key in before):
        return 0.0
    return sum(math.log10((min(before[key], 1.0) + THERE) / (min(after[key], 1.0) + THERE)) for key in before)


def _names(group: Sequence[Mutant], inherited: Sequence[Mutant] = ()) -> list[str]:
    return [mutant.name for mutant in group if mutant not in inherited]


def diagnose(
    store: Store, candidate: Implementation, layers: Iterable[str], seconds: float = SECONDS
) -> list[Diagnosis]:
    """Diagnoses for the layers that differ, in the given (data-flow) order; none if all are equal.

    Args:
        store: the goldens.
        candidate: the implementation.
        layers: to look at.
        seconds: of processor time, after which only likely mistakes are tried.
    """
    diagnoses: list[Diagnosis] = []
    known: list[Mutant] = []
    equal: set[str] = set()
    where, limit = Map(store), time.process_time() + seconds
    for layer in layers:
        if layer not in candidate.layers:
            continue
        suspect = Suspect(store, candidate, layer)
        if not suspect.different:
            equal.add(layer)
            continue
        parts = tuple(d.layer for d in diagnoses if not d.is_explained and where.is_part_of(d.layer, layer))
        possible = where.suspects_of(layer)
        inherited = tuple(mutant for mutant in known if mutant in possible)
        if parts:  # then no mistake fits the whole, and those of other layers were looked for there
            seen = {*equal, *(diagnosis.layer for diagnosis in diagnoses)}
            possible = [mutant for mutant in possible if mutant in inherited or mutant.layer not in seen]
        try:
            diagnosis = explain(suspect, possible, inherited, equal, limit)
        except Exception as error:  # the other layers are diagnosed all the same
            reason = f"It could not be diagnosed: {in_words(error)}."
            diagnosis = Diagnosis(layer, suspect.worst.sentence(), patterns=(reason,))
        feeding = tuple(other.layer for other in diagnoses if other.layer in upstream(layer))
        unseen = tuple(sorted(upstream(layer) - equal - set(feeding)))
        diagnoses.append(replace(diagnosis, feeding=feeding, unseen=unseen, unexplained_parts=parts))
        known += [catalogue()[name] for name in diagnosis.mistakes if not diagnosis.is_inherited]
    return diagnoses
