"""The catalogue of porting mistakes: each a named, documented change to the port, applied from outside.

A mistake is data, a table in one of the files of `port/adapter/mutants/`:

    [[bug]]
    name = "polyak_reversed"
    layer = "optim/target_average"      # where it should be found first, in data-flow order
    module = "port.optimizers"
    old = "old * coeff + (1.0 - coeff) * online[name]"      # stands exactly once in the module's source
    new = "old * (1.0 - coeff) + coeff * online[name]"
    explanation = "What people get wrong, and why."
    formula = "target <- c target + (1 - c) online"
    origin = "disco-torch history"

A change in several places lists them instead: `edits = [{module = ..., old = ..., new = ...}, ...]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from parity.errors import CannotRun
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.mutants.mutate import Edit, edited, load_edited

__all__ = ["Bug", "Edit", "catalogue", "chosen", "edits_of", "implementation_with", "planted"]

FOLDER = Path(__file__).resolve().parents[2] / "port" / "adapter" / "mutants"
TEXTS = ("name", "layer", "explanation", "formula", "origin")
PLACE = ("module", "old", "new")
PORT = "port.adapter:implementation"
SLOWER = "slower"  # no mistake of a layer: an edit of the loop, in a file beside the catalogue


@dataclass(frozen=True)
class Bug:
    """One porting mistake.

    Attributes:
        name: in snake_case.
        subject: the file it stands in, e.g. `values`.
        layer: the layer at which it should be found first.
        edits: what to change in the port's source.
        explanation: what people get wrong, and why.
        formula: the right formula.
        origin: where it was seen.
    """

    name: str
    subject: str
    layer: str
    edits: tuple[Edit, ...]
    explanation: str
    formula: str
    origin: str


@lru_cache(maxsize=1)
def catalogue() -> dict[str, Bug]:
    """All mistakes by name, ordered by the data flow of their layers."""
    found: dict[str, Bug] = {}
    for path in sorted(FOLDER.glob("*.toml")):
        for bug in read(path):
            if bug.name in found:
                raise CannotRun(f"{path.name}: a mistake called {bug.name} is in {found[bug.name].subject}.toml too.")
            found[bug.name] = bug
    order = list(REGISTRY)
    return {bug.name: bug for bug in sorted(found.values(), key=lambda bug: order.index(bug.layer))}


def read(path: Path) -> list[Bug]:
    """The mistakes of one file; CannotRun says what is wrong with it."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["bug"]
    except (tomllib.TOMLDecodeError, KeyError, UnicodeDecodeError) as error:
        raise CannotRun(f"{path} is no list of [[bug]] tables ({error}).") from None
    return [_checked(entry, path.stem, f"{path.name}, entry {i + 1}") for i, entry in enumerate(entries)]


def _checked(entry: Mapping[str, Any], subject: str, where: str) -> Bug:
    where = f"{where} ({entry.get('name', 'without a name')})"
    allowed = {*TEXTS, "edits"} if "edits" in entry else {*TEXTS, *PLACE}
    lacking, unknown = sorted(allowed - set(entry)), sorted(set(entry) - allowed)
    if lacking or unknown:
        raise CannotRun(f"{where}: {f'lacks {lacking[0]}' if lacking else f'does not know {unknown[0]}'}.")
    for key in TEXTS:
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise CannotRun(f"{where}: {key} must be a text that says something.")
    name, layer = entry["name"], entry["layer"]
    if not name.isidentifier() or name != name.lower():
        raise CannotRun(f"{where}: names are in snake_case.")
    if layer not in REGISTRY:
        raise CannotRun(f"{where}: no layer is called {layer!r}.")
    edits = tuple(_edit(place, where) for place in entry.get("edits", [{key: entry.get(key) for key in PLACE}]))
    if not edits:
        raise CannotRun(f"{where}: edits is empty, so nothing would change.")
    return Bug(name, subject, layer, edits, *(entry[key].strip() for key in ("explanation", "formula", "origin")))


def _edit(place: Mapping[str, Any], where: str) -> Edit:
    if set(place) != set(PLACE) or not all(isinstance(place[key], str) for key in PLACE):
        raise CannotRun(f"{where}: an edit is module, old and new, three texts.")
    if not place["old"] or place["old"] == place["new"]:
        raise CannotRun(f"{where}: old must not be empty, nor the same as new.")
    return Edit(place["module"], place["old"], place["new"])


def chosen(names: Iterable[str]) -> list[Bug]:
    """The mistakes of these names; all of them if none is named."""
    known, names = catalogue(), list(names)
    for name in names:
        if name not in known:
            raise CannotRun(f"No mistake is called {name!r}; they stand in {FOLDER}.")
    return [bug for bug in known.values() if not names or bug.name in names]


def edits_of(names: Iterable[str]) -> tuple[Edit, ...]:
    """The changes that mistakes of the catalogue, or `slower`, make to the port; none if none is named."""
    found: list[Edit] = []
    for name in names:
        found += (_slower(),) if name == SLOWER else chosen([name])[0].edits
    return tuple(found)


def _slower() -> Edit:
    path = FOLDER.with_name(f"{SLOWER}.toml")
    return _edit(tomllib.loads(path.read_text(encoding="utf-8")), path.name)


def planted(*bugs: Bug) -> AbstractContextManager[None]:
    """A context in which importing the port gives a copy with these mistakes; see `parity.mutants.mutate.edited`."""
    return edited(*(edit for bug in bugs for edit in bug.edits))


@lru_cache(maxsize=512)
def implementation_with(*bugs: Bug) -> Implementation:
    """A copy of the port with these mistakes in it; the port itself is not touched, and works beside it."""
    edits = tuple(edit for bug in bugs for edit in bug.edits)
    return load_edited(PORT, edits)
