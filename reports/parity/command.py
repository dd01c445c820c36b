"""`python -m reports.parity`: the parity table and its picture, with all rows as CSV and JSON.

Example:
    python -m reports.parity --impl port --out reports/out
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from parity.command_line import exit_code
from parity.compare import Row
from parity.errors import NothingCompared, WeightsMissing
from parity.files import write_atomically
from parity.goldens.calibration import layers_done, recorded
from parity.goldens.check import Outcome, check_layer, disco103, kinds_judged
from parity.goldens.check import load as load_case
from parity.goldens.store import Golden, Store
from parity.goldens.table import COLUMNS, LayerSummary, notebooks_in_words, summarise
from parity.implementation import load
from parity.tolerance import PRECISIONS, UNINFORMATIVE, C, scale_of, tolerance
from reports import page
from reports.parity import sigmas

TITLE = "Layer by layer"
COLOURS = dict(zip(COLUMNS, ("#2a78d6", "#7a4fc4", "#d97a1f", "#2e8b57"), strict=True))
LABELS = {(kind, dtype): f"{'VJPs' if kind == 'vjp' else 'values'}, {dtype}" for kind, dtype in COLUMNS}
FURTHEST = C + 2.0  # sigmas: where the picture ends; what is off by more stands there


class Spread(NamedTuple):
    """Tolerances of many elements relative to their outputs' scales."""

    median: float
    largest: float


Allowed: TypeAlias = Mapping[str, Mapping[tuple[str, str], Spread]]  # layer -> kind and precision -> tolerances


class Informative(NamedTuple):
    """Elements of a layer's outputs and VJPs, and how many of them rounding alone changes too much to be compared."""

    elements: int
    silent: int


def run(implementation_name: str) -> tuple[Store, Any, Outcome]:
    """Compares every layer."""
    store, implementation, outcome = Store(), load(implementation_name), Outcome()
    for layer in track(store.layers(), "comparing", console=Console(stderr=True), transient=True):
        check_layer(store, implementation, layer, outcome)
    return store, implementation, outcome


def what_is_allowed(store: Store, layer: str) -> dict[tuple[str, str], Spread]:
    """Tolerances of all elements of a layer, by kind and precision."""
    relative: dict[tuple[str, str], list[np.ndarray]] = {}
    for case in store.cases(layer):
        with contextlib.suppress(WeightsMissing):
            golden = load_case(store, layer, case)
            for kind, dtype in COLUMNS:
                if kind in kinds_judged(golden, dtype):
                    relative.setdefault((kind, dtype), []).extend(_relative_tolerances(golden, kind, PRECISIONS[dtype]))
    every = {column: np.concatenate(parts) for column, parts in relative.items() if parts}
    return {column: Spread(float(np.median(x)), float(x.max())) for column, x in every.items()}


def count_informative(rows: Iterable[Row]) -> Informative:
    """Over the comparisons in float64."""
    wide = [row for row in rows if row.dtype == "float64"]
    return Informative(sum(row.elements for row in wide), sum(row.silent for row in wide))


def _relative_tolerances(golden: Golden, kind: str, bits: int) -> Iterator[np.ndarray]:
    for name, truth in golden.truth(kind).items():
        scale = scale_of(truth)
        if truth.dtype.kind == "f" and scale:
            yield (tolerance(golden.sigma(kind, name, bits), scale, bits) / scale).reshape(-1)


def figure(summaries: list[LayerSummary], allowed: Allowed) -> Figure:
    """Each layer's worst error in sigmas, and its tolerances relative to the scale, in data-flow order."""
    drawing = Figure(figsize=(8.5, 0.17 * len(summaries) + 1.1), layout="constrained")
    errors, tolerances = drawing.subplots(1, 2, sharey=True)
    for place, column in enumerate(COLUMNS):
        style: dict[str, Any] = {"ls": "", "color": COLOURS[column]}
        at = {s.layer: i + 0.2 * (place - 1.5) for i, s in enumerate(summaries)}
        worst = [(min(row.sigmas, FURTHEST), at[s.layer]) for s in summaries if (row := s.worst.get(column))]
        known = [(spread, at[layer]) for layer, spreads in allowed.items() if (spread := spreads.get(column))]
        errors.plot([x for x, _ in worst], [i for _, i in worst], marker="o", ms=3, label=LABELS[column], **style)
        tolerances.plot([x.median for x, _ in known], [i for _, i in known], marker="o", ms=3, **style)
        tolerances.plot([x.largest for x, _ in known], [i for _, i in known], marker="|", ms=5, **style)
    errors.axvline(C, color="#c0392b", lw=1)
    errors.set(xlim=(-0.2, FURTHEST + 0.2), ylim=(len(summaries), -1))
    errors.set_xlabel(f"worst error in sigmas (red: the limit; {FURTHEST:g}: this or more)", fontsize=8)
    errors.set_yticks(range(len(summaries)), [s.layer for s in summaries], fontsize=7)
    tolerances.set(xscale="log")
    tolerances.set_xlabel("tolerance / scale (dot: median; bar: largest)", fontsize=8)
    for axes in (errors, tolerances):
        axes.grid(axis="x", color="#999999", alpha=0.3, lw=0.6)
    drawing.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    return drawing


def layer_rows(
    summaries: list[LayerSummary], allowed: Allowed, counts: Mapping[str, Informative]
) -> list[dict[str, Any]]:
    """The numbers in the picture: for each layer its worst errors, and what the rule allows."""
    table = []
    for s in summaries:
        numbers: dict[str, Any] = {"layer": s.layer, "cases": s.cases, "comparisons": s.comparisons}
        for (kind, dtype), row in s.worst.items():
            numbers[f"{kind}_{dtype}_of_scale"] = None if row is None else row.max_rel
            numbers[f"{kind}_{dtype}_sigmas"] = None if row is None else row.sigmas
            numbers[f"{kind}_{dtype}_of_tolerance"] = None if row is None else row.ratio
        for (kind, dtype), spread in allowed[s.layer].items():
            numbers[f"{kind}_{dtype}_median_tolerance"] = spread.median
            numbers[f"{kind}_{dtype}_largest_tolerance"] = spread.largest
        elements, silent = counts[s.layer]
        numbers |= {"elements": elements, "uninformative": silent}
        table.append({**numbers, "precision_seen": s.seen, "different": s.different})
    return table


def write_data(rows: list[Row], tables: dict[str, pd.DataFrame], drawings: dict[str, Figure], out: Path) -> list[str]:
    """Writes the rows, the tables as CSV and the pictures; returns the names of the files."""
    records = [row.as_json() for row in rows]
    write_atomically(out / "parity.json", (json.dumps(records, indent=1) + "\n").encode())
    for name, frame in {**tables, "parity.csv": pd.DataFrame(records)}.items():
        write_atomically(out / name, frame.to_csv(index=False).encode())
    for name, drawing in drawings.items():
        drawing.savefig(out / name, dpi=130)
    return [*tables, "parity.csv", "parity.json", *drawings]


def weights_in_words(outcome: Outcome) -> str:
    """Which meta-parameters the cases used."""
    if outcome.skipped:
        return f"made from seeds; {len(outcome.skipped)} cases that need Disco103 were skipped: no file was found"
    try:
        disco103()
        return "made from seeds, and Disco103 (sha256 verified)"
    except WeightsMissing:
        return "made from seeds"


def verdict(outcome: Outcome) -> str:
    """One sentence."""
    layers, bad = len({row.layer for row in outcome.rows}), len(outcome.different)
    compared = f"{layers} layers, {len(outcome.rows):,} comparisons"
    largest = max((row.sigmas for row in outcome.rows), default=0.0)
    equal = f"all equal, the largest error {largest:.2g} of {C:g} sigmas"
    words = f"{compared}: {f'{bad:,} different' if bad else equal}"
    return f"{words}; {len(outcome.not_provided)} layers not provided" if outcome.not_provided else words


def section(implementation_name: str, out: Path) -> page.Section:
    """The section of the page."""
    store, implementation, outcome = run(implementation_name)
    if not outcome.rows:
        raise NothingCompared(f"{implementation.name} provides no layer that can run here, so nothing was compared.")
    summaries = summarise(outcome.rows)
    allowed = {s.layer: what_is_allowed(store, s.layer) for s in summaries}
    counts = {s.layer: count_informative(row for row in outcome.rows if row.layer == s.layer) for s in summaries}
    calibration = sigmas.of_held(recorded(store.root))
    series = [*sigmas.of_rows(implementation_name, outcome.rows), *calibration]
    drawings = {"parity.png": figure(summaries, allowed), "calibration.png": sigmas.figure(series)}
    layers = pd.DataFrame(layer_rows(summaries, allowed, counts))
    tables = {"parity_layers.csv": layers, "calibration.csv": sigmas.table(series)}
    body = page.render(
        "parity.html.j2",
        summaries=summaries,
        allowed=allowed,
        counts=counts,
        total=count_informative(outcome.rows),
        columns=COLUMNS,
        labels=LABELS,
        limit=C,
        uninformative=UNINFORMATIVE,
        image=page.picture(drawings["parity.png"]),
        distribution=page.picture(drawings["calibration.png"]),
        series=series,
        layers_done=len(layers_done(store.root)),
        layers=len(store.layers()),
        different=outcome.different[:40],
        skipped=outcome.skipped,
        not_provided=outcome.not_provided,
    )
    return page.Section(
        name="parity",
        title=TITLE,
        verdict=f"{implementation.name}: {verdict(outcome)}.",
        is_equal=not outcome.different,
        command=f"python -m reports.parity --impl {implementation_name}",
        body=body,
        provenance=[
            ("candidate", f"{implementation.name} ({implementation.description})"),
            *page.recorded_from("the original, recorded", store.manifest),
            ("layers", notebooks_in_words(store.layers())),
            ("weights", weights_in_words(outcome)),
        ],
        files=write_data(outcome.rows, tables, drawings, out),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run, 3 nothing was compared."""
    parser = page.parser("reports.parity", __doc__)
    parser.add_argument("--impl", default="port", metavar="NAME", help="implementation to compare (default: port)")
    return exit_code(parser, arguments, lambda args: page.publish(section(args.impl, args.out), args))
