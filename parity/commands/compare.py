"""`python -m parity compare`: what changed between two checks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from parity.command_line import add_options, write_json
from parity.compare import Row
from parity.goldens.compared import FACTOR, Change, Checked, What, changes, read

HELP = "show what changed between two checks, from the files of `check --json`"
EXAMPLE = "python -m parity compare base.json head.json --format markdown"
NOTHING_COMPARED = 3
HEAD = ("change", "layer", "worst output", "sigmas", "of the tolerance", "cases")
MOST = 30  # lines of changes, unless --verbose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("base", type=Path, metavar="BASE.json", help="what `check --json` wrote before")
    parser.add_argument("head", type=Path, metavar="HEAD.json", help="what it wrote after")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    shrinks = "a margin that shrinks by more than this factor fails (default: %(default)g)"
    parser.add_argument("--factor", type=_factor, default=FACTOR, metavar="F", help=shrinks)
    parser.add_argument("--strict", action="store_true", help="comparisons that are gone fail too")
    parser.add_argument("--verbose", action="store_true", help=f"all changes (default: {MOST} lines)")
    add_options(parser, "--json")


def _factor(text: str) -> float:
    factor = float(text)
    if not 1.0 < factor < float("inf"):
        raise argparse.ArgumentTypeError("a factor is a number above 1")
    return factor


def run(args: argparse.Namespace) -> int:
    """1 where something turned red or a margin shrinks; 3 where the files have no comparison in common."""
    base, head = read(args.base), read(args.head)
    found = changes(base.rows, head.rows, args.factor)
    result = as_json(base, head, found)
    if args.format == "json":
        print(json.dumps(result, indent=1))
    else:
        lines = in_markdown if args.format == "markdown" else in_text
        print("\n".join(lines(base, head, found, len(found) if args.verbose else MOST)))
    write_json(args.json, result)
    if not base.outputs & head.outputs:
        return NOTHING_COMPARED
    return int(any(change.fails or (args.strict and change.what is What.GONE) for change in found))


def as_json(base: Checked, head: Checked, found: Sequence[Change]) -> dict[str, object]:
    """The changes for machines."""
    return {"base": base.line(), "head": head.line(), "verdict": verdict(base, head, found)} | {
        "fails": any(change.fails for change in found),
        "changes": [change.as_json() for change in found],
    }


def in_text(base: Checked, head: Checked, found: Sequence[Change], most: int = MOST) -> list[str]:
    """The changes for a terminal, one line for each kind and layer."""
    rows = [HEAD, *by_layer(found)] if found else []
    widths = [max(map(len, column)) for column in zip(*rows[: most + 1], strict=True)]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows[: most + 1]]
    return [*heading(base, head), *table, *_left_out(rows, most), verdict(base, head, found)]


def in_markdown(base: Checked, head: Checked, found: Sequence[Change], most: int = MOST) -> list[str]:
    """The changes as a table of Markdown."""
    rows = [HEAD, ("---",) * len(HEAD), *by_layer(found)] if found else []
    table = [f"| {' | '.join(row)} |" for row in rows[: most + 2]]
    points = [f"- {line}" for line in heading(base, head)]
    return [*points, "", *table, "", *_left_out(rows[1:], most), f"**{verdict(base, head, found)}**"]


def heading(base: Checked, head: Checked) -> list[str]:
    """What is compared with what."""
    lines = [f"base: {base.line()}", f"head: {head.line()}"]
    if base.goldens != head.goldens:
        lines.append(f"The goldens differ ({base.goldens[:7]}, {head.goldens[:7]}), so a change may come from them.")
    return lines


def _left_out(rows: Sequence[object], most: int) -> list[str]:
    return [f"... and {len(rows) - 1 - most} more lines; --verbose shows them."] if len(rows) - 1 > most else []


def by_layer(found: Sequence[Change]) -> list[tuple[str, ...]]:
    """Cells of a table: a line for each kind of change and layer, with the output that is worst."""
    groups: dict[tuple[What, str], list[Change]] = {}
    for change in found:
        groups.setdefault((change.what, change.row.layer), []).append(change)
    return [(str(what), layer, *_cells(group)) for (what, layer), group in groups.items()]


def _cells(group: Sequence[Change]) -> tuple[str, ...]:
    """Worst output, sigmas, share of the tolerance and cases."""
    change = max(group, key=lambda each: each.row.ratio)
    more = f" and {len(group) - 1} more" if group[1:] else ""
    cases = len({case for each in group for case in each.cases} - {change.row.case})
    kind = "VJP, " if change.row.kind == "vjp" else ""
    return (
        f"{change.row.output} ({kind}{change.row.dtype}){more}",
        _sides(change, "sigmas"),
        _sides(change, "ratio"),
        f"{change.row.case}{f' and {cases} more' if cases else ''}",
    )


def _sides(change: Change, name: str) -> str:
    """A number before and after, or what there is in its place."""

    def side(row: Row | None) -> str:
        if row is None:
            return "–"
        return str(row.problem.kind) if row.problem else f"{getattr(row, name):.2g}"

    return f"{side(change.base)} -> {side(change.head)}"


def verdict(base: Checked, head: Checked, found: Sequence[Change]) -> str:
    """How many outputs changed in which way."""
    common = len(base.outputs & head.outputs)
    if not common:
        return "The two files have no output in common, so nothing was compared."
    counts = {what: sum(change.what is what for change in found) for what in What}
    named = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"Of {common:,} outputs in both: {named or 'none changed'}."
