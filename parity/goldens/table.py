"""Summaries of comparisons: one line a layer, in data-flow order, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from parity.compare import Row
from parity.goldens.check import Outcome
from parity.goldens.expected import Divergence, problems, unexpected
from parity.goldens.store import Store
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.tolerance import C

COLUMNS = (("value", "float64"), ("vjp", "float64"), ("value", "float32"), ("vjp", "float32"))
BELOW = (("value", "tf32"), ("value", "fp16"), ("value", "bf16"))
SEEN_AS = {"": "none", "bf16": "bfloat16", "tf32": "TF32", "float32": "float32"}  # the coarsest first
WIDE = 136  # characters: room for every column of the table


@dataclass(frozen=True)
class LayerSummary:
    """One layer's comparisons; a worst row is None where nothing of that sort was compared."""

    layer: str
    cases: int
    comparisons: int
    different: int
    seen: str
    worst: dict[tuple[str, str], Row | None]

    @property
    def verdict(self) -> str:
        """`equal` or how many comparisons differ."""
        return "equal" if not self.different else f"{self.different} DIFFER"


def worst(rows: Iterable[Row]) -> Row | None:
    """The row that is furthest past (or closest to) its tolerance."""
    return max(rows, key=lambda row: row.ratio, default=None)


def seen_in(rows: Iterable[Row]) -> str:
    """The precision that a layer was seen to compute in: the finest whose tolerance holds for all its float32 values.

    It is `none` where none does, and empty where no value was judged in float32.
    """
    seen = {row.seen for row in rows if row.has_precision}
    return next((name for precision, name in SEEN_AS.items() if precision in seen), "")


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
            seen_in(mine),
            {column: worst(r for r in mine if (r.kind, r.dtype) == column) for column in columns_of(rows)},
        )
        for layer, mine in layers.items()
    ]


def relative(row: Row | None, is_wide: bool) -> str:
    """Error relative to the scale; and in sigmas, where there is room."""
    if row is None:
        return "–"
    return f"{row.max_rel:.1e} ({row.sigmas:.1f}σ)" if is_wide else f"{row.max_rel:.1e}"


def terminal_table(rows: list[Row], width: int = WIDE) -> Table:
    """The table of `python -m parity check`: the columns that were compared, and what else has room in a width."""
    is_wide, columns = width >= WIDE, columns_of(rows)
    table = Table(box=None, pad_edge=False)
    errors = [dtype if kind == "value" else f"VJP {dtype}" if is_wide else "VJP" for kind, dtype in columns]
    for title in ("layer", *(("cases", "compared") if is_wide else ()), *errors, "verdict"):
        table.add_column(title, no_wrap=True)
    if is_wide:
        table.add_column("precision seen", no_wrap=True)
    for s in summarise(rows):
        counts, seen = ([str(s.cases), str(s.comparisons)], [s.seen]) if is_wide else ([], [])
        cells = [relative(s.worst[column], is_wide) for column in columns]
        table.add_row(s.layer, *counts, *cells, s.verdict, *seen, style="red" if s.different else None)
    return table


def columns_of(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Kinds and precisions that were compared, in a fixed order."""
    compared = {(row.kind, row.dtype) for row in rows}
    return [column for column in (*COLUMNS, *BELOW) if column in compared]


def provenance(store: Store, implementation: Implementation) -> str:
    """Says what is compared with what."""
    commit = store.manifest["original"]["commit"][:7]
    return (
        f"{implementation.name} ({implementation.description}) against the recorded original: "
        f"disco_rl commit {commit}, jax {store.manifest['packages']['jax']} ({notebooks_in_words(store.layers())})"
    )


def notebooks_in_words(layers: Iterable[str]) -> str:
    """Which of some layers are none of the original's package."""
    names = [name for name in layers if REGISTRY[name].notebook]
    return f"from its notebooks, put together here from its package's functions: {', '.join(names)}"


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
    if outcome.without_gradients:
        lines.append(f"Without VJPs (only values judged): {', '.join(sorted(outcome.without_gradients))}.")
    if outcome.not_provided:
        lines.append(f"Not provided: {', '.join(outcome.not_provided)}.")
    if outcome.skipped:
        reason = next(iter(outcome.skipped.values()))
        lines.append(f"Not run: {', '.join(outcome.skipped)}. {reason}")
    bad = len(outcome.different)
    known = f" ({bad - len(new)} of them expected)" if entries else ""
    coarser = [f"{s.layer} ({s.seen})" for s in summarise(outcome.rows) if s.seen not in ("", "float32")]
    if coarser:
        lines.append(f"Precision seen, where it is not float32: {', '.join(coarser)}.")
    in_float64 = [row for row in outcome.rows if row.dtype == "float64"]
    silent, elements = sum(row.silent for row in in_float64), sum(row.elements for row in in_float64)
    if silent:
        lines.append(
            f"Of {elements:,} elements in float64, {silent:,} say nothing: rounding moves them by 1e-3 of the scale."
        )
    if outcome.median_tolerance is not None:
        lines.append(
            f"In float64 the rule allows {outcome.median_tolerance:.1e} of the scale (median of all elements)."
        )
    largest = max((row.sigmas for row in outcome.rows if row.equal), default=0.0)
    lines.append(f"Of what is equal, the largest error is {largest:.2g} sigma; the rule allows {C:g}.")
    lines.append(f"{len(outcome.rows)} comparisons: {len(outcome.rows) - bad} equal, {bad} different{known}.")
    return lines
