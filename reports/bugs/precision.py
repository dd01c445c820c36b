"""How many mutants are killed if only values are compared, in one precision.

`python -m reports.bugs --precision float32 bf16` counts them and stores the counts for the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from parity.files import canonical, write_atomically
from parity.goldens.check import Judge
from parity.goldens.check import load as load_case
from parity.mutants import PORT, catalogue
from parity.mutants.coverage import Entered, is_reached, stored_cases
from parity.mutants.mutate import load_edited
from parity.mutants.tiers import PreparedLayer, first_difference, opened_store, reached_by, unchanged
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


def prepare_values(layer: str, precision: str) -> PreparedLayer:
    """Compares the values of a layer of the unchanged port in a precision."""
    store, judge = opened_store(), Judge(unchanged(), (precision,))
    goldens = (load_case(store, layer, case) for case in stored_cases(store, layer))
    rows = (row for golden in goldens for row in judge.rows(golden))
    wrong = [row.sentence() for row in rows if row.kind == "value" and not row.equal]
    return PreparedLayer(layer, reached_by(layer), wrong)


def is_killed(name: str, precision: str, reached: Mapping[str, Entered]) -> bool:
    """Whether values in a precision kill a mutant. The layer that the catalogue names is tried first."""
    mutant = catalogue()[name]
    layers = [layer for layer, functions in reached.items() if is_reached(mutant.edits, functions)]
    layers.sort(key=lambda layer: layer != mutant.layer)
    row = first_difference(load_edited(PORT, mutant.edits), layers, "values", (precision,))
    return row is not None and not mutant.is_broken(row)


def store(counts: Mapping[str, Killed], path: Path = EVIDENCE) -> None:
    """Stores the counts for the page."""
    records = {precision: asdict(killed) for precision, killed in {**stored(path), **counts}.items()}
    write_atomically(path, canonical(records).encode())


def stored(path: Path = EVIDENCE) -> dict[str, Killed]:
    """The numbers of earlier runs, by precision."""
    if not path.is_file():
        return {}
    return {precision: Killed(**numbers) for precision, numbers in json.loads(path.read_bytes()).items()}
