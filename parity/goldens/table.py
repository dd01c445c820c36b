"""Summaries of comparisons: one line a layer or a group of layers, in data-flow order, and the notes below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
LINES = 3  # of one sort of note
WIDE = 140  # characters: room for every column of the table


@dataclass(frozen=True)
class LayerSummary:
    """Comparisons of one layer, or of a group; a worst row is None where nothing of that sort was compared."""

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


def summarise(rows: list[Row], title: Callable[[str], str] = str) -> list[LayerSummary]:
    """Sums up rows by layer, or by a title that several layers share, keeping the order in which they come."""
    layers: dict[str, list[Row]] = {}
    for row in rows:
        layers.setdefault(title(row.layer), []).append(row)
    return [
        LayerSummary(
            layer,
            len({(row.layer, row.case) for row in mine}),
            len(mine),
            sum(not row.equal for row in mine),
            seen_in(mine),
            {column: worst(r for r in mine if (r.kind, r.dtype) == column) for column in columns_of(rows)},
        )
        for layer, mine in layers.items()
    ]


def group_of(layer: str) -> str:
    """The group of a layer: `values` of `values/retrace`."""
    return layer.partition("/")[0]


def relative(row: Row | None, is_wide: bool) -> str:
    """Error relative to the scale; and in sigmas, where there is room."""
    if row is None:
        return "–"
    sigmas = f"{row.sigmas:.1f}" if row.sigmas < 999 else ">999"
    return f"{row.max_rel:.1e} ({sigmas}σ)" if is_wide else f"{row.max_rel:.1e}"


def titles(layers: Iterable[str]) -> dict[str, str]:
    """Of each layer, what its group is called: `values (9)`."""
    groups = Counter(group_of(layer) for layer in layers)
    return {layer: f"{group} ({groups[group]})" if groups[group := group_of(layer)] > 1 else layer for layer in layers}


def terminal_table(rows: list[Row], width: int = WIDE, most: int | None = None) -> Table:
    """The table of `python -m parity check`: the columns that were compared, and what else has room in a width.

    More than `most` layers are shown in their groups.
    """
    layers = list(dict.fromkeys(row.layer for row in rows))
    title_of = titles(layers).__getitem__ if most is not None and len(layers) > most else str
    is_wide, columns = width >= WIDE, columns_of(rows)
    table = Table(box=None, pad_edge=False)
    errors = [dtype if kind == "value" else f"VJP {dtype}" if is_wide else "VJP" for kind, dtype in columns]
    for title in ("layer", *(("cases", "compared") if is_wide else ()), *errors, "verdict"):
        table.add_column(title, no_wrap=True)
    if is_wide:
        table.add_column("precision seen", no_wrap=True)
    for s in summarise(rows, title_of):
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


def capped(texts: Sequence[str], most: int | None, what: str) -> list[str]:
    """The first lines, and how many more there are."""
    if most is None or len(texts) <= most:
        return list(texts)
    return [*texts[: most - 1], f"... and {len(texts) - most + 1} more {what}; --verbose shows them."]


def named(names: Iterable[str], most: int | None = 3) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = len(names) - most if most is not None else 0
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def accepted(rows: Sequence[Row], entries: Sequence[Divergence]) -> list[str]:
    """What is different, and accepted by which entry."""
    texts = []
    for entry in entries:
        mine = [row for row in rows if not row.equal and entry.allows(row)]
        if mine:
            what = (
                f"{entry.layer} {entry.output}, {len(mine)} comparisons, up to {max(row.max_rel for row in mine):.3g}"
            )
            texts.append(f"Accepted by --expected: {what} of the scale ({entry.reason}).")
    return texts


def notes(outcome: Outcome, entries: list[Divergence], most: int | None = None) -> list[str]:
    """What a reader has to know besides the differences: what is accepted, and what was not compared.

    Args:
        outcome: of the check.
        entries: what may differ.
        most: names in a line; None for all of them, and all lines.
    """
    lines = capped(accepted(outcome.rows, entries), most and LINES, "entries that accept differences")
    lines += capped(problems(outcome.rows, entries), most and LINES, "entries that do not fit")
    if outcome.without_gradients:
        lines.append(f"Without VJPs (only values judged): {named(sorted(outcome.without_gradients), most)}.")
    if outcome.not_provided:
        lines.append(f"Not provided: {named(outcome.not_provided, most)}.")
    if outcome.skipped:
        reason = next(iter(outcome.skipped.values()))
        lines.append(f"Not run: {named(outcome.skipped, most)}. {reason}")
    coarser = [f"{s.layer} ({s.seen})" for s in summarise(outcome.rows) if s.seen not in ("", "float32")]
    if coarser:
        lines.append(f"Precision seen, where it is not float32: {named(coarser, most)}.")
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
    return lines


def totals(outcome: Outcome, entries: Sequence[Divergence]) -> list[str]:
    """How much is equal, and where a reader should begin."""
    new, different = unexpected(outcome.rows, entries), [row for row in outcome.rows if not row.equal]
    layers, wrong = ({row.layer: None for row in rows} for rows in (outcome.rows, new))
    known = f" ({len(different) - len(new)} of them expected)" if entries else ""
    equal = len(outcome.rows) - len(different)
    lines = [f"{len(outcome.rows)} comparisons: {equal} equal, {len(different)} different{known}."]
    if len(layers) > 1 and wrong:
        first = next(iter(wrong))
        lines.append(f"{len(wrong)} of {len(layers)} layers differ; the first in data-flow order is {first}.")
    return lines
