"""Known divergences: a gate that stays green on what is known, and red on what is new, worse or gone.

A file of them (`--expected FILE`) is TOML, one table for each:

    [[divergence]]
    layer = "values/retrace"
    output = "q_target"
    at_least = 0.1      # the worst error relative to the output's scale lies between these
    at_most = 5.0
    reason = "index shifted by one; issue 12"
    # optional: kind = "value" or "vjp", dtype = "float64" or "float32", case = "terminal_*"
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from parity.compare import NO_NUMBERS, Row
from parity.errors import CannotRun
from parity.files import check_keys, read_tables, write_atomically
from parity.implementation import did_you_mean
from parity.layers import REGISTRY
from parity.tolerance import PRECISIONS

LIVE_FACTOR = 10.0  # inputs that Hypothesis chose may show more of a known divergence than the recorded ones
REQUIRED = ("layer", "output", "at_least", "at_most", "reason")
KINDS = ("value", "vjp")
OPTIONAL = ("kind", "dtype", "case")


@dataclass(frozen=True)
class Divergence:
    """One known divergence."""

    layer: str
    output: str
    at_least: float
    at_most: float
    reason: str
    kind: str = "*"
    dtype: str = "*"
    case: str = "*"

    def covers(self, row: Row) -> bool:
        """Whether a live comparison is of the output that this entry names, and not far beyond its interval."""
        return self._is_of(row) and self._is_within(row, LIVE_FACTOR)

    def matches(self, row: Row) -> bool:
        """Whether a comparison is one that this entry describes."""
        return self._is_of(row) and fnmatchcase(row.case, self.case)

    def allows(self, row: Row) -> bool:
        """Whether a comparison that differs is known, and no worse than known."""
        return self.matches(row) and self._is_within(row)

    def _is_within(self, row: Row, factor: float = 1.0) -> bool:
        """Whether the error is within the upper bound; a layer that raised, or gave something else, has none."""
        has_error = row.problem is None or row.problem.kind not in NO_NUMBERS
        return has_error and row.max_rel <= factor * self.at_most

    def _is_of(self, row: Row) -> bool:
        return all(fnmatchcase(getattr(row, key), getattr(self, key)) for key in ("layer", "output", "kind", "dtype"))

    def problem(self, rows: Sequence[Row]) -> str:
        """What is wrong with the entry, given all rows of its layer; empty if it fits."""
        matching, name = [row for row in rows if self.matches(row)], f"{self.layer} {self.output}"
        differing = [row for row in matching if not row.equal]
        if not matching:
            return f"{name} was not compared, so its entry cannot be judged ({self.reason}); is it provided?"
        if not differing:
            return f"{name} no longer diverges ({self.reason}); take its entry out."
        worst = max(differing, key=lambda row: row.max_rel)
        if not self.at_least <= worst.max_rel <= self.at_most:
            between = f"between {self.at_least:g} and {self.at_most:g}"
            return f"{name} diverges by {worst.max_rel:.3g}, which is not {between} ({self.reason})."
        return ""


def load(path: Path | str | None) -> list[Divergence]:
    """Reads a file of known divergences; None gives none."""
    entries = read_tables(Path(path), "divergence") if path is not None else []
    return [_checked(entry, f"{path}, entry {i + 1}") for i, entry in enumerate(entries)]


def _checked(entry: dict[str, Any], where: str) -> Divergence:
    check_keys(entry, REQUIRED, (*REQUIRED, *OPTIONAL), where)
    for key, value in entry.items():
        is_bound = key in ("at_least", "at_most")
        if not isinstance(value, int | float if is_bound else str) or isinstance(value, bool) or value != value:
            raise CannotRun(f"{where}: {key} is {value!r}; give a {'number' if is_bound else 'text'}.")
    if not 0.0 <= entry["at_least"] <= entry["at_most"] or entry["at_most"] <= 0.0:
        raise CannotRun(f"{where}: at_least must not be below 0, nor at_most below at_least or 0.")
    if entry["layer"] not in REGISTRY:
        raise CannotRun(f"{where}: no layer is called {entry['layer']!r}. {did_you_mean(entry['layer'])}")
    entry_layer = REGISTRY[entry["layer"]]
    names = [*entry_layer.outputs(entry_layer.settings), *entry_layer.inputs(entry_layer.settings)]
    if not any(fnmatchcase(name, entry["output"]) for name in names):
        raise CannotRun(f"{where}: {entry['layer']} has no output (nor, for a VJP, input) {entry['output']!r}.")
    if not entry["reason"].strip():
        raise CannotRun(f"{where}: the reason is empty; say why this divergence is known.")
    for key, known in (("kind", KINDS), ("dtype", PRECISIONS), ("case", [case.name for case in entry_layer.cases])):
        if not any(fnmatchcase(name, entry.get(key, "*")) for name in known):
            raise CannotRun(f"{where}: no {key} is called {entry[key]!r}. {did_you_mean(entry[key], known)}")
    return Divergence(**entry)


def asked(entries: Sequence[Divergence], layers: Collection[str], precisions: Collection[str]) -> list[Divergence]:
    """The entries on what a run compares; the others cannot be judged by it."""
    return [e for e in entries if e.layer in layers and any(fnmatchcase(p, e.dtype) for p in precisions)]


def unexpected(rows: Sequence[Row], entries: Sequence[Divergence]) -> list[Row]:
    """The comparisons that differ without an entry that covers them."""
    different = [row for row in rows if not row.equal]
    return [r for r in different if not any(e.allows(r) for e in entries)]


def problems(rows: Sequence[Row], entries: Sequence[Divergence]) -> list[str]:
    """What is wrong with the entries themselves, all of which must be on layers that were to be compared."""
    texts = [entry.problem(rows) for entry in entries]
    return [text for text in texts if text]


TODO = "TODO: say why"
HEADER = "# Written by `python -m parity check --write-expected`. Say in each entry why the divergence is known.\n"


def write(path: Path, rows: Sequence[Row], entries: Sequence[Divergence]) -> str:
    """Writes what differs as a file of known divergences, with bounds of half and twice the worst error.

    Args:
        path: of the file.
        rows: every comparison.
        entries: known already, whose reasons are kept.

    Returns:
        What was written, in a sentence.
    """
    different = [row for row in rows if not row.equal]
    known = [row for row in different if not row.problem or row.problem.kind not in NO_NUMBERS]
    outputs: dict[tuple[str, str], dict[str, bool]] = {}  # layer, kind -> output -> whether it differs
    for row in rows:
        of_kind = outputs.setdefault((row.layer, row.kind), {})
        of_kind[row.output] = of_kind.get(row.output, False) or not row.equal
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in known:
        pattern = _pattern(row.output, outputs[row.layer, row.kind])
        groups.setdefault((row.layer, pattern, row.kind), []).append(row)
    precisions = {row.dtype for row in rows}
    tables = [_table(*key, group, precisions, entries) for key, group in groups.items()]
    write_atomically(path, "\n".join([HEADER, *(tables or ["divergence = []\n"])]).encode())
    left_out = len(different) - len(known)
    rest = f" It leaves out {left_out} comparisons: what has no numbers must be mended." if left_out else ""
    return f"{path} has {len(tables)} entries; fill in why each divergence is known.{rest}"


def _pattern(output: str, differs: dict[str, bool]) -> str:
    """A pattern for an output: of all outputs, or of the most that begin alike, where every one of them differs."""
    parts = output.split("/")
    for pattern in ("/".join([*parts[:length], "*"]) for length in range(len(parts))):
        matched = [is_wrong for name, is_wrong in differs.items() if fnmatchcase(name, pattern)]
        if len(matched) > 1 and all(matched):
            return pattern
    return output


def _table(
    layer: str, output: str, kind: str, group: list[Row], precisions: set[str], entries: Sequence[Divergence]
) -> str:
    """One entry of the file."""
    worst, seen = max(row.max_rel for row in group), {row.dtype for row in group}
    reason = next((entry.reason for entry in entries if entry.matches(group[0])), TODO)
    texts = {"layer": layer, "output": output, "kind": kind, "reason": reason}
    if len(seen) < len(precisions):
        texts["dtype"] = seen.pop()
    lines = [f"{key} = {json.dumps(text)}" for key, text in texts.items()]
    least = 0.5 * worst if math.isfinite(worst) else 1.0
    bounds = [f"at_least = {least:.2g}", f"at_most = {2.0 * worst:.2g}"]
    return "\n".join(["[[divergence]]", *lines, *bounds, ""])
