"""Summaries of comparisons: one line a layer, in data-flow order, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from parity.check import Outcome
from parity.compare import Row
from parity.expected import Divergence, problems, unexpected
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.store import Store

COLUMNS = (("value", "float64"), ("vjp", "float64"), ("value", "float32"))


@dataclass(frozen=True)
class LayerSummary:
    """One layer's comparisons; a worst row is None where nothing of that sort was compared."""

    layer: str
    cases: int
    comparisons: int
    different: int
    at_branch: int
    worst: dict[tuple[str, str], Row | None]

    @property
    def verdict(self) -> str:
        """`equal` or how many comparisons differ."""
        return "equal" if not self.different else f"{self.different} DIFFER"


def worst(rows: Iterable[Row]) -> Row | None:
    """The row that is furthest past (or closest to) its budget."""
    return max(rows, key=lambda row: row.ratio, default=None)


def summarise(rows: list[Row]) -> list[LayerSummary]:
    """Sums up rows by layer, keeping the order in which layers come."""
    layers: dict[str, list[Row]] = {}
    for row in rows:
        layers.setdefault(row.layer, []).append(row)
    return [
        LayerSummary(
            layer,
            len({row.case for row in mine}),
            len(mine),
            sum(not row.equal for row in mine),
            sum(row.at_branch for row in mine),
            {column: worst(r for r in mine if (r.kind, r.dtype) == column) for column in COLUMNS},
        )
        for layer, mine in layers.items()
    ]


def relative(row: Row | None) -> str:
    """Error against scale, with its share of the budget."""
    if row is None:
        return "–"
    return f"{row.max_rel:.1e} ({row.ratio:.2g})"


def terminal_table(rows: list[Row]) -> Table:
    """The table of `python -m parity check`."""
    titles = ("layer", "cases", "compared", "float64", "VJP float64", "float32", "verdict")
    table = Table(*titles, box=None, pad_edge=False)
    for s in summarise(rows):
        style = "red" if s.different else None
        cells = [relative(s.worst[column]) for column in COLUMNS]
        table.add_row(s.layer, str(s.cases), str(s.comparisons), *cells, s.verdict, style=style)
    return table


def provenance(store: Store, implementation: str, description: str) -> str:
    """Says what is compared with what."""
    commit = store.manifest["original"]["commit"][:7]
    return (
        f"{implementation} ({description}) against the recorded original: disco_rl commit {commit}, "
        f"jax {store.manifest['packages']['jax']} ({notebooks_in_words(store.layers())})"
    )


def notebooks_in_words(layers: Iterable[str]) -> str:
    """Which of some layers are none of the original's package."""
    found = [name for name in layers if REGISTRY[name].notebook]
    return f"from its notebooks, put together here from its package's functions: {', '.join(found)}"


def coverage(implementation: Implementation) -> str:
    """How many of the layers an implementation provides."""
    provided = sum(name in implementation.layers for name in REGISTRY)
    return f"{implementation.name} provides {provided} of {len(REGISTRY)} layers ({provided / len(REGISTRY):.0%})"


def closing_lines(outcome: Outcome, entries: list[Divergence], most: int = 20) -> list[str]:
    """What a reader has to know besides the table: the differences, and what was not compared."""
    new = unexpected(outcome.rows, entries)
    lines = [row.sentence() for row in new[:most]]
    if len(new) > most:
        lines.append(f"... and {len(new) - most} more; --json has them all.")
    lines += problems(outcome.rows, entries)
    loose = sorted({f"{r.layer}[{r.case}] {r.kind} of {r.output}" for r in outcome.rows if r.ill_conditioned})
    if loose:
        lines.append(f"{len(loose)} outputs pass by the original's own sensitivity, not by 1e-12.")
    if outcome.without_gradients:
        lines.append(f"Without VJPs (only values judged): {', '.join(sorted(outcome.without_gradients))}.")
    if outcome.not_provided:
        lines.append(f"Not provided: {', '.join(outcome.not_provided)}.")
    if outcome.skipped:
        reason = next(iter(outcome.skipped.values()))
        lines.append(f"Not run: {', '.join(outcome.skipped)}. {reason}")
    bad = len(outcome.different)
    known = f" ({bad - len(new)} of them expected)" if entries else ""
    lines.append(f"{len(outcome.rows)} comparisons: {len(outcome.rows) - bad} equal, {bad} different{known}.")
    return lines
