"""The catalogue of mutants: porting mistakes, each a named, documented change to the port, applied from outside.

A mutant is data, a table in one of the files of `port/adapter/mutants/`:

    [[mutant]]
    name = "polyak_reversed"
    layer = "optim/target_average"      # where it should be killed first, in data-flow order
    module = "port.optimizers"
    old = "old * coeff + (1.0 - coeff) * online[name]"      # stands exactly once in the module's source
    new = "old * (1.0 - coeff) + coeff * online[name]"
    explanation = "What people get wrong, and why."
    formula = "target <- c target + (1 - c) online"
    origin = "disco-torch history"

A change in several places lists them instead: `edits = [{module = ..., old = ..., new = ...}, ...]`. A mutant that
raises an error before numbers differ is broken, not killed, unless raising is the mistake: `raises = "ValueError"`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from parity.compare import ProblemKind, Row
from parity.errors import CannotRun
from parity.files import check_keys, read_tables
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.mutants.mutate import Edit, load_edited

__all__ = ["Edit", "Mutant", "catalogue", "chosen", "edits_of", "implementation_with"]

FOLDER = Path(__file__).resolve().parents[2] / "port" / "adapter" / "mutants"
TEXTS = ("name", "layer", "explanation", "formula", "origin")
PLACE = ("module", "old", "new")
PORT = "port.adapter:implementation"
SLOWER = "slower"  # changes no layer: an edit of the training loop, in a file beside the catalogue


@dataclass(frozen=True)
class Mutant:
    """A porting mistake, and the edits that make the port commit it.

    Attributes:
        name: in snake_case.
        subject: the file it stands in, e.g. `values`.
        layer: the layer at which it should be killed first.
        edits: what to change in the port's source.
        explanation: what people get wrong, and why.
        formula: the right formula.
        origin: where it was seen.
        raises: name of the error that it raises; empty for a mutant that answers.
    """

    name: str
    subject: str
    layer: str
    edits: tuple[Edit, ...]
    explanation: str
    formula: str
    origin: str
    raises: str = ""

    def is_broken(self, row: Row | None) -> bool:
        """Whether a comparison says that it raised an error which is not its mistake."""
        problem = row.problem if row else None
        return bool(problem and problem.kind is ProblemKind.RAISED and problem.detail != self.raises)


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Mutant]:
    """All mutants by name, ordered by the data flow of their layers."""
    by_name: dict[str, Mutant] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for mutant in read(path):
            name = mutant.name
            if name in by_name:
                raise CannotRun(f"{path.name}: a mutant called {name} is in {by_name[name].subject}.toml too.")
            by_name[name] = mutant
    order = list(REGISTRY)
    return {mutant.name: mutant for mutant in sorted(by_name.values(), key=lambda mutant: order.index(mutant.layer))}


def read(path: Path) -> list[Mutant]:
    """The mutants of one file; CannotRun says what is wrong with it."""
    entries = read_tables(path, "mutant")
    return [_checked(entry, path.stem, f"{path.name}, entry {i + 1}") for i, entry in enumerate(entries)]


def _checked(entry: Mapping[str, Any], subject: str, where: str) -> Mutant:
    where = f"{where} ({entry.get('name', 'without a name')})"
    allowed = {*TEXTS, "edits"} if "edits" in entry else {*TEXTS, *PLACE}
    check_keys(entry, sorted(allowed), {*allowed, "raises"}, where)
    for key in (*TEXTS, *({"raises"} & set(entry))):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise CannotRun(f"{where}: {key} must be a text, and not empty.")
    name, layer = entry["name"], entry["layer"]
    if not name.isidentifier() or name != name.lower():
        raise CannotRun(f"{where}: names are in snake_case.")
    if layer not in REGISTRY:
        raise CannotRun(f"{where}: no layer is called {layer!r}.")
    edits = tuple(_edit(place, where) for place in entry.get("edits", [{key: entry.get(key) for key in PLACE}]))
    if not edits:
        raise CannotRun(f"{where}: edits is empty, so nothing would change.")
    texts = (entry.get(key, "").strip() for key in ("explanation", "formula", "origin", "raises"))
    return Mutant(name, subject, layer, edits, *texts)


def _edit(place: Mapping[str, Any], where: str) -> Edit:
    if set(place) != set(PLACE) or not all(isinstance(place[key], str) for key in PLACE):
        raise CannotRun(f"{where}: an edit is module, old and new, three texts.")
    if not place["old"] or place["old"] == place["new"]:
        raise CannotRun(f"{where}: old must not be empty, nor the same as new.")
    return Edit(place["module"], place["old"], place["new"])


def chosen(names: Iterable[str]) -> list[Mutant]:
    """The mutants of these names; all of them if none is named."""
    known, names = catalogue(), list(names)
    for name in names:
        if name not in known:
            raise CannotRun(f"No mutant is called {name!r}; {FOLDER} holds them all.")
    return [mutant for mutant in known.values() if not names or mutant.name in names]


def edits_of(names: Iterable[str]) -> tuple[Edit, ...]:
    """The edits of mutants of the catalogue, or of `slower`; none if none is named."""
    edits: list[Edit] = []
    for name in names:
        edits += (_slower(),) if name == SLOWER else chosen([name])[0].edits
    return tuple(edits)


def _slower() -> Edit:
    path = FOLDER.with_name(f"{SLOWER}.toml")
    return _edit(tomllib.loads(path.read_text(encoding="utf-8")), path.name)


@lru_cache(maxsize=512)
def implementation_with(*mutants: Mutant) -> Implementation:
    """A copy of the port with the edits of all these mutants; the port itself stays as it is."""
    return load_edited(PORT, tuple(edit for mutant in mutants for edit in mutant.edits))
