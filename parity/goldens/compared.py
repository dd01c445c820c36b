"""What changed between two checks, read from the files that `check --json` writes.

An output is compared by its worst error over the cases. Its margin is the tolerance over that error; the error counts
as a hundredth of the tolerance at least, because what is smaller is rounding of one kind or another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from parity.compare import Row
from parity.errors import CannotRun
from parity.goldens.check import Outcome
from parity.goldens.expected import Divergence, unexpected
from parity.goldens.store import Store
from parity.implementation import Implementation

Output = tuple[str, str, str, str]  # layer, name, kind and dtype
Cases = dict[str, Row]
FORMAT = "disco-parity check 1"
FACTOR = 10.0  # a margin that shrinks by more fails
SHOWN = 2.0  # a margin that changes by more is shown
FLOOR = 0.01  # of the tolerance


def check_as_json(
    outcome: Outcome, entries: Sequence[Divergence], implementation: Implementation, store: Store
) -> dict[str, Any]:
    """The result of a check, for machines: what `read` reads."""
    new = {id(row) for row in unexpected(outcome.rows, entries)}
    return {
        "format": FORMAT,
        "implementation": implementation.name,
        "description": implementation.description,
        "goldens": store.manifest["digest"],
        "original": store.manifest["original"]["commit"],
        "median_tolerance_float64": outcome.median_tolerance,
        "not_provided": outcome.not_provided,
        "without_gradients": sorted(outcome.without_gradients),
        "skipped": outcome.skipped,
        "comparisons": [{**row.as_json(), "accepted": not (row.equal or id(row) in new)} for row in outcome.rows],
    }


@dataclass(frozen=True)
class Checked:
    """A check as it was written to a file.

    Attributes:
        implementation: its name.
        goldens: digest of the goldens that it was compared with.
        rows: every comparison.
    """

    implementation: str
    goldens: str
    rows: list[Row]

    @cached_property
    def outputs(self) -> set[Output]:
        """Layer, output, kind and precision of all that was compared."""
        return set(by_output(self.rows))

    def line(self) -> str:
        """What was compared, and how much differs."""
        different = sum(not row.equal for row in self.rows)
        return f"{self.implementation}, {len(self.rows):,} comparisons, {different:,} different"


def read(path: Path) -> Checked:
    """A file that `check --json` wrote; CannotRun where it is another."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        rows = [Row.from_json(values) for values in content["comparisons"]]
        return Checked(str(content["implementation"]), str(content["goldens"]), rows)
    except OSError as error:
        raise CannotRun(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CannotRun(f"{path} is no file of this version's `check --json` ({reason:.200}).") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


class What(StrEnum):
    """How an output changed, the worst first."""

    TURNED_RED = "turned red"
    SHRUNK = "margin shrinks"
    WORSE = "worse"
    GONE = "gone"
    NEW = "new"
    BETTER = "better"
    TURNED_GREEN = "turned green"


@dataclass(frozen=True)
class Change:
    """A change of one output.

    Attributes:
        what: how it changed.
        base: its worst comparison before; None if it is new.
        head: its worst comparison after; None if it is gone.
        cases: in which it changed; of a margin, the case that has the worst error now.
    """

    what: What
    base: Row | None
    head: Row | None
    cases: tuple[str, ...]

    @property
    def row(self) -> Row:
        """The comparison that names the output."""
        row = self.head or self.base
        assert row is not None
        return row

    @property
    def fails(self) -> bool:
        """Whether it makes the command fail."""
        return self.what in (What.TURNED_RED, What.SHRUNK)

    def as_json(self) -> dict[str, Any]:
        """The change for machines."""
        names = {key: getattr(self.row, key) for key in ("layer", "output", "kind", "dtype")}
        sides = {"base": self.base and self.base.as_json(), "head": self.head and self.head.as_json()}
        return {"change": self.what, **names, "cases": list(self.cases), **sides}


def by_output(rows: Iterable[Row]) -> dict[Output, Cases]:
    """Comparisons by output and case."""
    outputs: dict[Output, Cases] = {}
    for row in rows:
        outputs.setdefault((row.layer, row.output, row.kind, row.dtype), {})[row.case] = row
    return outputs


def changes(base: Sequence[Row], head: Sequence[Row], factor: float = FACTOR) -> list[Change]:
    """All changes of outputs, the worst kind first, each in data-flow order."""
    before, after = by_output(base), by_output(head)
    found = [
        change for key in {**before, **after} for change in _changes(before.get(key, {}), after.get(key, {}), factor)
    ]
    return sorted(found, key=lambda change: list(What).index(change.what))


def _worst(cases: Cases, names: Collection[str]) -> Row | None:
    return max((cases[name] for name in names), key=lambda row: row.ratio, default=None)


def _changes(before: Cases, after: Cases, factor: float) -> Iterator[Change]:
    """The changes of one output, given its comparisons by case."""
    both = [case for case in after if case in before]
    red = [case for case in after if not after[case].equal and (case not in before or before[case].equal)]
    green = [case for case in both if after[case].equal and not before[case].equal]
    gone, new = [case for case in before if case not in after], [case for case in after if case not in before]
    base, head = _worst(before, both), _worst(after, both)
    if red:
        yield Change(What.TURNED_RED, _worst(before, before), _worst(after, red), tuple(red))
    elif base and head and (growth := growth_of(base, head)) > SHOWN:
        yield Change(What.SHRUNK if growth > factor else What.WORSE, base, head, (head.case,))
    if green:
        yield Change(What.TURNED_GREEN, _worst(before, green), _worst(after, green), tuple(green))
    elif base and head and growth_of(head, base) > SHOWN:
        yield Change(What.BETTER, base, head, (head.case,))
    if gone:
        yield Change(What.GONE, _worst(before, gone), None, tuple(gone))
    if new and not red:
        yield Change(What.NEW, None, _worst(after, new), tuple(new))


def growth_of(base: Row, head: Row) -> float:
    """By which factor an output's margin shrinks."""
    small, large = max(base.ratio, FLOOR), max(head.ratio, FLOOR)
    return 1.0 if small == large else large / small if math.isfinite(small) else 0.0
