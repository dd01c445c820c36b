"""What differs, grouped by layer, output and cause, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parity.compare import ProblemKind, Row

CALLS = (ProblemKind.RAISED, ProblemKind.CALL)
LABELS = {"value": "values differ", "vjp": "gradient differs"}


@dataclass(frozen=True)
class Finding:
    """Comparisons that differ for one cause.

    Attributes:
        rows: the comparisons, the worst first.
        cases: how many cases there were to compare.
        precisions: in which they were compared.
    """

    rows: list[Row]
    cases: int
    precisions: frozenset[str]

    @property
    def worst(self) -> Row:
        """The comparison furthest past its tolerance."""
        return self.rows[0]

    @property
    def place(self) -> str:
        """File and line of the adapter where it raised; empty where it did not."""
        return self.worst.problem.place if self.worst.problem else ""

    def headline(self) -> str:
        """Layer, output, cause and number of cases, e.g. `values/retrace q_target: values differ, 9 of 9 cases`."""
        layers, outputs = (list(dict.fromkeys(getattr(row, key) for row in self.rows)) for key in ("layer", "output"))
        is_call = self.worst.problem is not None and self.worst.problem.kind in CALLS
        where = _some(layers, "layers") if is_call or layers[1:] else f"{layers[0]} {_some(outputs, 'outputs')}"
        wrong = {(row.layer, row.case) for row in self.rows}
        return f"{where}: {self._cause()}, {len(wrong)} of {self.cases} cases"

    def _cause(self) -> str:
        problem, seen = self.worst.problem, {row.dtype for row in self.rows}
        only = f" in {next(iter(seen))} only" if len(seen) == 1 and len(self.precisions) > 1 else ""
        if problem is None:
            return LABELS[self.worst.kind] + only
        return (problem.detail if problem.kind is ProblemKind.ZEROS else problem.text.rstrip(".")) + only


def _some(names: Sequence[str], what: str) -> str:
    return f"{names[0]} and {len(names) - 1} more {what}" if names[1:] else names[0]


def findings(different: Iterable[Row], rows: Iterable[Row], is_by_output: bool = True) -> list[Finding]:
    """Groups comparisons that differ; without `is_by_output`, outputs of a layer that differ alike are one group.

    Args:
        different: the comparisons to group.
        rows: all comparisons, which say how many cases there were.
        is_by_output: whether each output is a group of its own.
    """
    groups: dict[object, list[Row]] = {}
    for row in different:
        groups.setdefault(_group(row, is_by_output), []).append(row)
    cases: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        cases.setdefault((row.layer, row.kind), set()).add(row.case)
    precisions, found = frozenset(row.dtype for row in rows), []
    for group in groups.values():
        of_group = {(row.layer, case) for row in group for case in cases[row.layer, row.kind]}
        found.append(Finding(sorted(group, key=lambda row: -row.ratio), len(of_group), precisions))
    return sorted(found, key=lambda finding: -finding.worst.ratio)


def _group(row: Row, is_by_output: bool) -> object:
    """Layer, output and cause; one exception at one place of the adapter is one cause in all layers."""
    if row.problem and row.problem.kind in CALLS:
        return row.problem.detail, row.problem.place or row.layer
    cause = row.problem and (row.problem.kind, row.problem.kind is ProblemKind.ZEROS and row.problem.detail)
    return row.layer, row.output if is_by_output else "", row.kind, cause


def lines(different: Sequence[Row], rows: Sequence[Row], most: int | None) -> list[str]:
    """The groups, each with its worst comparison where there is room; all comparisons if `most` is None."""
    found = findings(different, rows)
    if most is None:
        return [text for each in found for text in (each.headline(), *(f"  {row.sentence()}" for row in each.rows))]
    if len(found) >= most:
        found = findings(different, rows, is_by_output=False)
    fits = len(found) < most
    shown, explained = (found, most - len(found)) if fits else (found[: max(1, most - 2)], 1)
    texts = []
    for index, each in enumerate(shown):
        texts += [each.headline(), *([f"  {each.worst.sentence()}"] if index < explained else [])]
    left_out = len(found) - len(shown)
    return [*texts, f"... and {left_out} more like these; --verbose shows them."] if left_out else texts
