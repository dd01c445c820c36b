"""What a diagnosis says about a layer, in words and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parity.mutants import catalogue


@dataclass(frozen=True)
class Diagnosis:
    """Which known mistakes explain why one layer differs.

    Attributes:
        layer: its name.
        feeding: layers upstream of it that differ as well; none means that the error is its own.
        worst: the comparison furthest past its tolerance, as a sentence.
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
    precision: str = "within tolerance"
    scope: str = "everything"
    also: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The diagnosis for machines, with what the catalogue says about each mistake."""
        keys = ("name", "explanation", "formula", "origin")
        return asdict(self) | {"mistakes": [{k: getattr(catalogue()[name], k) for k in keys} for name in self.mistakes]}

    def lines(self) -> list[str]:
        """The diagnosis for people."""
        where = f"of what feeds it, {', '.join(self.feeding)}" if self.feeding else "nothing that feeds it"
        lines = [f"{self.layer} differs; {where} differs{' too' if self.feeding else ''}.", f"  {self.worst}"]
        if self.is_inherited:
            return [*lines, f"  Nothing new: it inherits {' and '.join(self.mistakes)}."]
        if self.blocked_by:
            return [*lines, f"  Not asked: {', '.join(self.blocked_by)} is part of it, and has no diagnosis."]
        for name in self.mistakes:
            mutant = catalogue()[name]
            lines += [f"  Mistake: {name} ({mutant.origin}). {mutant.explanation}", f"  Right:   {mutant.formula}"]
        if self.mistakes and self.precision != "within tolerance":
            lines.append("  It fits to float32 precision only: something is computed in float32 as well.")
        if self.mistakes and self.scope == "values":
            lines.append("  It explains the values; the gradients differ in another way.")
        if self.also:
            lines.append(f"  On this layer the same numbers come from: {', '.join(self.also)}.")
        if not self.mistakes:
            lines += ["  No catalogued mistake fits.", *(f"  {sentence}" for sentence in self.patterns)]
        return lines


def closing_line(diagnoses: Sequence[Diagnosis], compared: int) -> str:
    """The verdict in a sentence."""
    if not diagnoses:
        return f"{compared} layers compared on their stored cases: all equal, nothing to diagnose."
    named = sorted({name for diagnosis in diagnoses for name in diagnosis.mistakes})
    unknown = [diagnosis.layer for diagnosis in diagnoses if not diagnosis.mistakes]
    first = f"The first layer that differs is {diagnoses[0].layer}. "
    known = f"Mistakes recognised: {', '.join(named)}. " if named else ""
    open_ = f"Without a diagnosis: {', '.join(unknown)}." if unknown else "Every difference is explained."
    return f"{len(diagnoses)} of {compared} layers differ. {first}{known}{open_}"
