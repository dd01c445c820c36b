"""What a diagnosis says about a layer, in words and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from parity.goldens.table import named
from parity.mutants import catalogue

SCOPES = {
    "numbers": "It explains all numbers; what has none differs in another way.",
    "values": "It explains the values; the gradients differ in another way.",
}


@dataclass(frozen=True)
class Diagnosis:
    """Which known mistakes explain why one layer differs.

    Attributes:
        layer: its name.
        worst: the comparison furthest past its tolerance, as a sentence.
        mistakes: names of the catalogued mistakes that reproduce it, together; none if none fits.
        feeding: layers upstream of it that differ as well.
        unseen: layers upstream of it that were not compared; where there are none, and nothing that feeds it differs,
            the error is its own.
        is_inherited: whether what was found upstream explains it already.
        unexplained_parts: layers that this one consists of, of which not everything is explained.
        precision: how well the mistakes reproduce it.
        scope: `everything`; `numbers` where outputs without numbers are left out, `values` where gradients are too.
        left: what the mistakes do not explain; empty if they explain everything in the scope.
        also: other mistakes that would explain this layer just as well.
        patterns: what the error looks like, where something is not explained.
    """

    layer: str
    worst: str
    mistakes: list[str] = field(default_factory=list)
    feeding: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    is_inherited: bool = False
    unexplained_parts: tuple[str, ...] = ()
    precision: str = "within tolerance"
    scope: str = "everything"
    left: str = ""
    also: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    @property
    def is_explained(self) -> bool:
        """Whether its mistakes explain it, outputs without numbers and gradients aside."""
        return bool(self.mistakes) and not self.left

    def as_json(self) -> dict[str, Any]:
        """The diagnosis for machines, with what the catalogue says about each mistake."""
        keys = ("name", "explanation", "formula", "origin")
        return asdict(self) | {"mistakes": [{k: getattr(catalogue()[name], k) for k in keys} for name in self.mistakes]}

    def lines(self) -> list[str]:
        """The diagnosis for people."""
        lines = [f"{self.layer} differs; {self._origin()}.", f"  {self.worst}"]
        if self.is_inherited:
            rest = f", but {self.left}" if self.left else ""
            return [*lines, f"  Nothing new: it inherits {' and '.join(self.mistakes)}{rest}."]
        for name in self.mistakes:
            mutant = catalogue()[name]
            lines += [f"  Mistake: {name} ({mutant.origin}). {mutant.explanation}", f"  Right:   {mutant.formula}"]
        if self.mistakes[1:]:
            lines.append("  The first explains most of the error, and each other one most of what is left.")
        if self.mistakes and self.precision != "within tolerance":
            lines.append("  It fits to float32 precision only: something is computed in float32 as well.")
        if self.is_explained and self.scope != "everything":
            lines.append(f"  {SCOPES[self.scope]}")
        if self.also:
            lines.append(f"  On this layer the same numbers come from: {', '.join(self.also)}.")
        if self.left:
            lines.append(f"  Something is unexplained: {self.left}.")
        if not self.mistakes:
            lines += ["  No catalogued mistake fits.", *(f"  {sentence}" for sentence in self.patterns)]
        if self.unexplained_parts and not self.is_explained:
            lines.append(f"  Part of it and not explained either: {named(self.unexplained_parts)}.")
        return lines

    def _origin(self) -> str:
        """What is known of the layers that feed it."""
        if self.feeding:
            return f"of what feeds it, {named(self.feeding)} differs too"
        if self.unseen:
            return f"nothing that feeds it was seen to differ (not compared: {named(self.unseen)})"
        return "nothing that feeds it differs"


def closing_line(diagnoses: Sequence[Diagnosis], compared: int) -> str:
    """The verdict in a sentence."""
    if not diagnoses:
        return f"{compared} layers compared on their stored cases: all equal, nothing to diagnose."
    recognised = sorted({name for diagnosis in diagnoses for name in diagnosis.mistakes})
    unknown = [diagnosis.layer for diagnosis in diagnoses if not diagnosis.is_explained]
    first = f"The first layer that differs is {diagnoses[0].layer}. "
    known = f"Mistakes recognised: {', '.join(recognised)}. " if recognised else ""
    open_ = f"Without a diagnosis: {', '.join(unknown)}." if unknown else "Every difference is explained."
    return f"{len(diagnoses)} of {compared} layers differ. {first}{known}{open_}"
