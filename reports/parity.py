"""`python -m reports.parity`: the parity table and its picture, with all rows as CSV and JSON.

Example:
    python -m reports.parity --impl port --out reports/out
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from parity.check import Outcome, WeightsMissing, check_layer, disco103
from parity.compare import Row
from parity.implementation import CannotRun, load
from parity.store import FixtureError, Store, write_atomically
from parity.table import COLUMNS, LayerSummary, notebooks_in_words, summarise
from reports import page

TITLE = "Layer by layer"
COLOURS = {("value", "float64"): "#2a78d6", ("vjp", "float64"): "#7a4fc4", ("value", "float32"): "#d97a1f"}
RECORDED_WITH = ("jax", "dm-haiku", "rlax", "distrax", "optax")
LABELS = {
    ("value", "float64"): "values, float64",
    ("vjp", "float64"): "VJPs, float64",
    ("value", "float32"): "values, float32",
}


def run(implementation_name: str) -> tuple[Store, Any, Outcome]:
    """Compares every layer."""
    store, implementation, outcome = Store(), load(implementation_name), Outcome()
    for layer in track(store.layers(), "comparing", console=Console(stderr=True), transient=True):
        check_layer(store, implementation, layer, outcome)
    return store, implementation, outcome


def figure(summaries: list[LayerSummary]) -> Figure:
    """Each layer's worst error as a share of its budget, in data-flow order; 1 is the limit."""
    drawing = Figure(figsize=(8.5, 0.17 * len(summaries) + 1.1), layout="constrained")
    axes = drawing.subplots()
    for column in COLUMNS:
        points = [(i, s.worst[column]) for i, s in enumerate(summaries)]
        shown = [(i, max(row.ratio, 1e-6)) for i, row in points if row is not None]
        axes.plot([r for _, r in shown], [i for i, _ in shown], "o", ms=4, color=COLOURS[column], label=LABELS[column])
    axes.axvline(1.0, color="#c0392b", lw=1)
    axes.set(xscale="log", ylim=(len(summaries), -1))
    axes.set_xlabel("worst error as a share of its budget (1e-6 stands for exact)")
    axes.set_yticks(range(len(summaries)), [s.layer for s in summaries], fontsize=7)
    axes.grid(axis="x", color="#999999", alpha=0.3, lw=0.6)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.035), ncols=3, frameon=False, fontsize=8)
    return drawing


def layer_rows(summaries: list[LayerSummary]) -> list[dict[str, Any]]:
    """The numbers in the picture: for each layer its worst errors, of the output's scale and of the budget."""
    found = []
    for s in summaries:
        numbers: dict[str, Any] = {"layer": s.layer, "cases": s.cases, "comparisons": s.comparisons}
        for (kind, dtype), row in s.worst.items():
            numbers[f"{kind}_{dtype}_of_scale"] = None if row is None else row.max_rel
            numbers[f"{kind}_{dtype}_of_budget"] = None if row is None else row.ratio
        found.append({**numbers, "at_branch": s.at_branch, "different": s.different})
    return found


def write_data(rows: list[Row], summaries: list[LayerSummary], out: Path) -> tuple[str, list[str]]:
    """Writes the rows and the picture; returns the picture for the page, and the names of the files."""
    records = [row.as_json() for row in rows]
    write_atomically(out / "parity.json", (json.dumps(records, indent=1) + "\n").encode())
    write_atomically(out / "parity.csv", pd.DataFrame(records).to_csv(index=False).encode())
    write_atomically(out / "parity_layers.csv", pd.DataFrame(layer_rows(summaries)).to_csv(index=False).encode())
    drawing = figure(summaries)
    image = page.picture(drawing)
    drawing.savefig(out / "parity.png", dpi=130)
    return image, ["parity_layers.csv", "parity.csv", "parity.json", "parity.png"]


def weights_in_words(outcome: Outcome) -> str:
    """Which meta-parameters the cases used."""
    if outcome.skipped:
        return f"made from seeds; {len(outcome.skipped)} cases that need Disco103 were not run: no file was found"
    try:
        disco103()
        return "made from seeds, and Disco103 (sha256 verified)"
    except WeightsMissing:
        return "made from seeds"


def loose_rows(rows: list[Row]) -> list[Row]:
    """Comparisons judged by the original's own sensitivity instead of 1e-12."""
    return sorted((r for r in rows if r.ill_conditioned), key=lambda r: -r.budget / (r.scale or 1.0))


def section(implementation_name: str, out: Path) -> page.Section:
    """The section of the page."""
    store, implementation, outcome = run(implementation_name)
    summaries, bad = summarise(outcome.rows), len(outcome.different)
    image, files = write_data(outcome.rows, summaries, out)
    original = store.manifest["original"]
    provided = f"{len(summaries)} layers, {len(outcome.rows):,} comparisons"
    verdict = f"{provided}: all equal" if not bad else f"{provided}: {bad:,} different"
    if outcome.not_provided:
        verdict += f"; {len(outcome.not_provided)} layers not provided"
    packages = store.manifest["packages"]
    body = page.render(
        "parity.html.j2",
        summaries=summaries,
        columns=COLUMNS,
        labels=LABELS,
        image=image,
        different=outcome.different[:40],
        loose=loose_rows(outcome.rows),
        skipped=outcome.skipped,
        not_provided=outcome.not_provided,
    )
    return page.Section(
        name="parity",
        title=TITLE,
        verdict=f"{implementation.name}: {verdict}.",
        is_equal=not bad,
        command=f"python -m reports.parity --impl {implementation_name}",
        body=body,
        provenance=[
            ("candidate", f"{implementation.name} ({implementation.description})"),
            ("reference", f"the original, recorded: {original['repository']} at {original['commit']}"),
            ("of which", notebooks_in_words(store.layers())),
            ("recorded with", ", ".join(f"{name} {packages[name]}" for name in RECORDED_WITH)),
            ("weights", weights_in_words(outcome)),
        ],
        files=files,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--impl", default="port", metavar="NAME", help="implementation to compare (default: port)")
    parser.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdict for machines")
    args = parser.parse_args(arguments)
    try:
        made = section(args.impl, args.out)
    except (CannotRun, FixtureError) as error:
        print(f"reports.parity: {error}", file=sys.stderr)
        return 2
    path = page.write([made], args.out)
    if args.json:
        write_atomically(args.json, page.as_json([made]))
    print(f"{made.verdict}\nThe page is {path}")
    return 0 if made.is_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
