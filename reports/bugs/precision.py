"""How many mutants are killed if only values are compared, in one precision.

`python -m reports.bugs --precision float32 bf16` counts them and stores the counts for the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from parity.errors import CannotRun
from parity.files import canonical, write_atomically
from parity.goldens.check import Judge
from parity.goldens.check import load as load_case
from parity.goldens.store import Store
from parity.mutants import PORT, Mutant, catalogue
from parity.mutants.coverage import Entered, is_reached, stored_cases
from parity.mutants.hunt import first_difference, opened_store, reached_by, unchanged
from parity.mutants.mutate import load_edited
from parity.runs.runner import Job, Runner, Workers
from reports import page

EVIDENCE = page.HERE.parent / "evidence" / "precision.json"


@dataclass(frozen=True)
class Killed:
    """Mutants killed in one precision.

    Attributes:
        killed: how many.
        of: how many there are.
        survivors: those that are not killed, by name.
        made: commit and date.
    """

    killed: int
    of: int
    survivors: list[str]
    made: str


def whole_layer(layer: str, precision: str) -> tuple[str, Entered, str]:
    """A layer of the unchanged port: functions entered, and the first value that differs in a precision, in words."""
    store, judge = opened_store(), Judge(unchanged(), (precision,))
    goldens = (load_case(store, layer, case) for case in stored_cases(store, layer))
    wrong = (row for golden in goldens for row in judge.rows(golden) if row.kind == "value" and not row.equal)
    return layer, reached_by(layer), next((row.sentence() for row in wrong), "")


def is_killed(name: str, precision: str, reached: Mapping[str, Entered]) -> bool:
    """Whether values in a precision kill a mutant. The layer that the catalogue names is tried first."""
    bug = catalogue()[name]
    layers = [layer for layer, functions in reached.items() if is_reached(bug.edits, functions)]
    layers.sort(key=lambda layer: layer != bug.layer)
    return first_difference(load_edited(PORT, bug.edits), layers, "goldens", (precision,)) is not None


def killed_in(precision: str, bugs: Sequence[Mutant], workers: Workers) -> Killed:
    """Counts the mutants that values in one precision kill."""
    with Runner(workers) as running:
        layers = [Job(name, whole_layer, (name, precision)) for name in Store().layers()]
        whole = {layer: (enters, words) for _, (layer, enters, words) in running.run(layers, "layers")}
        for difference in (words for _, words in whole.values() if words):
            raise CannotRun(f"The unchanged port differs in {precision}, so no mutant can be judged: {difference}")
        reached = {job.name: whole[job.name][0] for job in layers}
        mutants = [Job(bug.name, is_killed, (bug.name, precision, reached)) for bug in bugs]
        killed = {job.name: result for job, result in running.run(mutants, f"mutants in {precision}")}
    survivors = [bug.name for bug in bugs if not killed[bug.name]]
    made = f"{page.project_in_words()}, {datetime.now(UTC):%Y-%m-%d}"
    return Killed(sum(killed.values()), len(bugs), survivors, made)


def keep(found: Mapping[str, Killed], path: Path = EVIDENCE) -> None:
    """Stores the counts for the page."""
    known = {precision: asdict(one) for precision, one in {**kept(path), **found}.items()}
    write_atomically(path, canonical(known).encode())


def kept(path: Path = EVIDENCE) -> dict[str, Killed]:
    """The numbers of earlier runs, by precision."""
    if not path.is_file():
        return {}
    return {precision: Killed(**numbers) for precision, numbers in json.loads(path.read_bytes()).items()}
