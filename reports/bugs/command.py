"""`python -m reports.bugs`: mutation testing. Each mutant of the catalogue is the port with one porting mistake.

Four tiers of checks run on every mutant: recorded values, gradients, several learner steps, live comparison. The matrix
shows which of them kill it, and at which layer.

Example:
    python -m reports.bugs --out reports/out
    python -m reports.bugs --only retrace_index_too_late polyak_reversed
    python -m reports.bugs --precision float32 bf16    # mutants killed by values in these precisions alone
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from parity.command_line import exit_code, write_json
from parity.errors import CannotRun
from parity.files import write_atomically
from parity.goldens.store import Store
from parity.layers import REGISTRY
from parity.mutants import Mutant, catalogue, chosen
from parity.mutants.coverage import Entered, source_digest
from parity.mutants.live_tier import active_reference, kill_live
from parity.mutants.tiers import LEARNER_STEPS, NOT_RUN, TIERS, Kill, PreparedLayer, kill_by_name, prepare_layer
from parity.runs.runner import Job, Runner, Workers
from parity.tolerance import PRECISIONS
from reports import page
from reports.bugs import precision

TITLE = "Mutation testing"
NAMED_AT_LEAST = 0.9
LEFT_OUT = "not run here, because it takes minutes; `python -m reports.bugs` runs it"
LABELS = {"values": "values", "gradients": "VJPs", "learner_steps": "steps", "live": "live"}
HEADING = 4  # rows of a panel that its title takes
COLOURS = ("#e3e7ec", "#d97a1f", "#2a78d6")  # not killed; killed at another layer; killed at the layer named


@dataclass(frozen=True)
class Matrix:
    """The kills of some mutants, in the catalogue's order, the run time, and the reference of the live tier."""

    kills: list[Kill]
    seconds: float
    live: str

    @property
    def survivors(self) -> list[Kill]:
        """The mutants that no check kills."""
        return [kill for kill in self.kills if not (kill.killed_by or kill.broken)]

    @property
    def killed(self) -> int:
        """How many are killed."""
        return sum(bool(kill.killed_by) for kill in self.kills)

    @property
    def broken(self) -> list[Kill]:
        """The mutants that raise an error before numbers differ, where that is not their mistake."""
        return [kill for kill in self.kills if kill.broken]

    @property
    def elsewhere(self) -> list[Kill]:
        """The mutants that are killed, but not at the layer named."""
        return [kill for kill in self.kills if kill.killed_by and not kill.is_at_named]

    @property
    def is_good(self) -> bool:
        """Whether all are killed, and enough of them at the layer named."""
        named = self.killed - len(self.elsewhere)
        return self.killed == len(self.kills) and named >= NAMED_AT_LEAST * len(self.kills)

    @property
    def badge(self) -> str:
        """The verdict in two words."""
        worst = "broken" if self.broken else "survivors" if self.survivors else "killed elsewhere"
        return "all killed" if self.is_good else worst

    def sentence(self) -> str:
        """The verdict."""
        count, named = len(self.kills), self.killed - len(self.elsewhere)
        killed = f"{self.killed} of {count} mutants killed ({self.killed / count:.0%})"
        broken = f", {len(self.broken)} broken" if self.broken else ""
        return f"{killed}, {named} ({named / count:.0%}) at the layer named{broken}, in {self.seconds:.0f} s."


def results(
    running: Runner, title: str, function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """Results of jobs by name, run in parallel processes."""
    jobs = [Job(name, function, values) for name, values in arguments.items()]
    return {job.name: result for job, result in running.run(jobs, title)}


def prepared(
    running: Runner, layers: Sequence[str], prepare: Callable[..., PreparedLayer] = prepare_layer, *settings: str
) -> dict[str, Entered]:
    """The functions that each layer enters; CannotRun if the unchanged port differs, for then a kill proves nothing."""
    ready = results(running, "unchanged port", prepare, {layer: (layer, *settings) for layer in layers})
    for layer in layers:
        for difference in ready[layer].differences:
            raise CannotRun(f"The unchanged port differs, so a kill would prove nothing: {difference}")
    return {layer: ready[layer].enters for layer in layers}


def live(running: Runner, mutants: Sequence[Mutant], kills: Mapping[str, Kill]) -> None:
    """The live tier, at the layer where each mutant was killed; the layers that compile longest come first."""
    at: dict[str, dict[str, str]] = {}
    for mutant in mutants:
        kill = kills[mutant.name]
        case = next((kill.cases[tier] for tier in kill.killed_by if kill.layers[tier] == kill.first), "")
        at.setdefault(kill.first or mutant.layer, {})[mutant.name] = case
    heaviest = sorted(at, key=list(REGISTRY).index, reverse=True)
    for rows in results(running, "live", kill_live, {layer: (layer, at[layer]) for layer in heaviest}).values():
        for name, (row, seconds) in rows.items():
            kills[name].note("live", row, seconds)


def run(mutants: Sequence[Mutant], is_live: bool, workers: Workers | None = None) -> Matrix:
    """Checks the mutants in all tiers, or in all but the live one."""
    start, before = time.perf_counter(), source_digest()
    reference, is_there = LEFT_OUT, False
    with Runner(workers or Workers()) as running:
        reached = prepared(running, Store().layers())
        kills = results(running, "mutants", kill_by_name, {mutant.name: (mutant.name, reached) for mutant in mutants})
        if is_live:
            reference, is_there = results(running, "live reference", active_reference, {"live": ()})["live"]
        if is_there:
            live(running, mutants, kills)
    if source_digest() != before:
        raise CannotRun("The port's source changed during the run; run again.")
    return Matrix([kills[mutant.name] for mutant in mutants], time.perf_counter() - start, reference)


def _cell(kill: Kill, tier: str) -> float:
    layer = kill.layers.get(tier, "")
    if layer == NOT_RUN:
        return float("nan")
    return 0.0 if not layer else 2.0 if layer in (kill.named, LEARNER_STEPS) else 1.0


def _columns(subjects: Mapping[str, Sequence[Kill]], count: int) -> list[list[str]]:
    """Subjects shared out among columns of about the same height, the longest first."""
    columns: list[list[str]] = [[] for _ in range(min(count, len(subjects)))]
    for subject in sorted(subjects, key=lambda name: -len(subjects[name])):
        min(columns, key=lambda column: sum(HEADING + len(subjects[s]) for s in column)).append(subject)
    return columns


def figure(kills: Sequence[Kill]) -> Figure:
    """Mutants by tier, one panel per subject: blue at the layer named, orange at another one, grey not killed."""
    subjects: dict[str, list[Kill]] = {}
    for kill in kills:
        subjects.setdefault(catalogue()[kill.mutant].subject, []).append(kill)
    columns = _columns(subjects, 4)
    heights = [[len(subjects[subject]) + HEADING for subject in column] for column in columns]
    tallest = max(sum(column) for column in heights)
    drawing = Figure(figsize=(3.6 * len(columns), 0.125 * tallest + 0.3), layout="constrained")
    parts = drawing.subfigures(1, len(columns), squeeze=False)[0]
    for part, column, own in zip(parts, columns, heights, strict=True):
        grid = part.subplots(len(own) + 1, 1, squeeze=False, height_ratios=[*own, tallest - sum(own) + 0.01])[:, 0]
        grid[-1].set_axis_off()
        for axes, subject in zip(grid, column, strict=False):
            _panel(axes, subject, subjects[subject])
    return drawing


def _panel(axes: Any, subject: str, kills: Sequence[Kill]) -> None:
    cells = [[_cell(kill, tier) for tier in TIERS] for kill in kills]
    axes.pcolormesh(cells, cmap=ListedColormap(COLOURS), vmin=0, vmax=2, edgecolors="white", linewidth=0.6)
    axes.set_ylim(len(kills), 0)
    axes.set_yticks([i + 0.5 for i in range(len(kills))], [kill.mutant for kill in kills], fontsize=5)
    axes.set_xticks([i + 0.5 for i in range(len(TIERS))], [LABELS[tier] for tier in TIERS], fontsize=5)
    axes.tick_params(length=0, labeltop=True, labelbottom=False, pad=1)
    axes.set_title(f"{subject.replace('_', ' ')} ({len(kills)})", fontsize=7, loc="left")
    axes.set_frame_on(False)


def write_data(matrix: Matrix, out: Path) -> tuple[str, list[str]]:
    """Writes the matrix and its picture; returns the picture for the page, and the names of the files."""
    records = [kill.as_json() for kill in matrix.kills]
    write_atomically(out / "bugs.json", (json.dumps(records, indent=1) + "\n").encode())
    write_atomically(out / "bugs.csv", pd.DataFrame(records).to_csv(index=False).encode())
    drawing = figure(matrix.kills)
    drawing.savefig(out / "bugs.png", dpi=150)
    return page.picture(drawing), ["bugs.csv", "bugs.json", "bugs.png"]


def section_of(matrix: Matrix, out: Path) -> page.Section:
    """The section of the page for a matrix."""
    image, files = write_data(matrix, out)
    body = page.render(
        "bugs.html.j2",
        matrix=matrix,
        catalogue=catalogue(),
        tiers=TIERS,
        labels=LABELS,
        not_run=NOT_RUN,
        image=image,
        precise=precision.stored(),
    )
    return page.Section(
        name="bugs",
        title=TITLE,
        verdict=matrix.sentence(),
        is_equal=matrix.is_good,
        command="python -m reports.bugs",
        body=body,
        provenance=[
            ("mutants of", "the port, from source rewritten in memory; see port/adapter/mutants"),
            ("checked on", "the recorded cases of every layer that the change can affect, in data-flow order"),
            ("unchanged port", "equal on every recorded case of every layer; checked first"),
            ("live", matrix.live),
        ],
        files=files,
        badge=matrix.badge,
    )


def section(implementation_name: str, out: Path) -> page.Section:
    """The section of the page, without the live tier. Mutants are copies of the port, whatever is reported on."""
    return section_of(run(chosen(()), is_live=False), out)


def killed_in(name: str, mutants: Sequence[Mutant], workers: Workers) -> precision.Killed:
    """Counts the mutants that values in one precision kill."""
    with Runner(workers) as running:
        reached = prepared(running, Store().layers(), precision.prepare_values, name)
        arguments = {mutant.name: (mutant.name, name, reached) for mutant in mutants}
        killed = results(running, f"mutants in {name}", precision.is_killed, arguments)
    made = f"{page.project_in_words()}, {datetime.now(UTC):%Y-%m-%d}"
    survivors = [mutant.name for mutant in mutants if not killed[mutant.name]]
    return precision.Killed(sum(killed.values()), len(mutants), survivors, made)


def count_in(precisions: Sequence[str], only: Sequence[str], workers: Workers) -> int:
    """Prints how many mutants values in each precision kill; keeps the counts of the whole catalogue for the page."""
    counts = {name: killed_in(name, chosen(only), workers) for name in precisions}
    for name, count in counts.items():
        survivors = ", ".join(count.survivors) or "none"
        print(f"Values in {name} kill {count.killed} of {count.of} mutants. Survivors: {survivors}.")
    if not only:
        precision.store(counts)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """0 all killed, 1 a survivor or too few at the layer named, 2 could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.bugs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the matrix for machines")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these mutants")
    parser.add_argument("--without-live", action="store_true", help="skip the live tier, which compiles the reference")
    parser.add_argument(
        "--precision",
        nargs="+",
        default=[],
        choices=PRECISIONS,
        metavar="P",
        help=f"instead, count the mutants that values in these precisions kill ({', '.join(PRECISIONS)})",
    )
    Workers.add_arguments(parser)
    return exit_code(parser, arguments, report)


def report(args: argparse.Namespace) -> int:
    """Runs what the options ask for, and writes the page; 0 or 1."""
    workers = Workers.from_arguments(args)
    if args.precision:
        return count_in(args.precision, args.only, workers)
    matrix = run(chosen(args.only), not args.without_live, workers)
    made = section_of(matrix, args.out)
    path = page.write([made], args.out)
    write_json(args.json, [kill.as_json() for kill in matrix.kills])
    for kill in matrix.broken:
        print(f"BROKEN: {kill.mutant}. {kill.broken} Mend its edits, or write `raises` where the error is the mistake.")
    for kill in matrix.survivors:
        print(
            f"SURVIVOR: {kill.mutant}, which should be killed at {kill.named}: {catalogue()[kill.mutant].explanation}"
        )
    for kill in matrix.elsewhere:
        print(f"Killed at {kill.first} instead of {kill.named}: {kill.mutant}.")
    print(f"{made.verdict}\nThe page is {path}")
    return 0 if matrix.is_good else 1
