"""One release of a port: judged in a process of its own, and its differences traced to lines of its source."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from parity.compare import Row
from parity.errors import CannotRun
from parity.goldens.store import Store
from parity.layers import REGISTRY
from parity.sketch import SKETCH_ABOVE
from reports.audit.bench import ORDER, Key, different_rows, is_missing, key, row_from_dict, telling
from reports.audit.causes import Cause, corrected_copy

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {"disco_torch": "disco-torch"}
LIFE = ("agent/learner_steps", "from_the_start")
INSTALL = (
    "for v in 0.1.0 0.2.0 0.4.0; do pip install --no-deps --target DIR/$v disco-torch==$v; done, "
    "then --versions 0.1.0,0.2.0,0.4.0 --from DIR"
)
T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True)
class Finding:
    """One line of a release that makes layers differ.

    Attributes:
        cause: what it is.
        place: `file:line`.
        line: that line.
        rows: layer -> its telling comparison in a copy where only this cause is left.
        life: of the same copy, the parameters furthest off after 20 learner steps with Disco103; None if they are
            equal, or were not compared.
        diagnosis: the mistake of the catalogue that explains that copy; None where none was looked for.
        repro: the file that shows it, empty if there is none.
        printed: what the file prints.
    """

    cause: Cause
    place: str
    line: str
    rows: dict[str, Row]
    life: Row | None = None
    diagnosis: dict[str, Any] | None = None
    repro: str = ""
    printed: str = ""

    @property
    def catalogue(self) -> str:
        """The catalogue's names for it, or an empty string."""
        return " and ".join(mistake["name"] for mistake in (self.diagnosis or {}).get("mistakes", []))

    def as_json(self) -> dict[str, Any]:
        """The finding for machines."""
        named = ("name", "title", "says", "right", "means", "reach", "original")
        return {
            **{name: getattr(self.cause, name) for name in named},
            "place": self.place,
            "layers": {layer: row.as_json() for layer, row in self.rows.items()},
            "after_20_learner_steps": self.life.as_json() if self.life else None,
            "diagnosis": self.diagnosis,
            "repro": self.repro,
            "printed": self.printed,
        }


@dataclass(frozen=True)
class Release:
    """What came out for one release.

    Attributes:
        version: its version.
        description: with the version of what it ran on.
        changed: files that are not as they were released.
        provided: layers of the registry that it has.
        not_provided: those that it has not.
        rows: every comparison.
        findings: causes of what differs, each confirmed by a corrected copy.
        left_over: comparisons that still differ when all known causes are corrected.
        skipped: cases that could not run, and why.
        without_gradients: layers of which only values are judged.
    """

    version: str
    description: str
    provided: list[str]
    not_provided: list[str]
    rows: list[Row]
    findings: list[Finding]
    left_over: list[Row]
    skipped: dict[str, str]
    without_gradients: list[str]
    changed: list[str] = field(default_factory=list)

    def different(self, layer: str) -> list[Row]:
        """Comparisons of a layer that differ; an output that is not given is none."""
        return [row for row in different_rows(self.rows) if row.layer == layer]

    def different_layers(self) -> list[str]:
        """Layers that differ, in data-flow order; then comparisons outside the registry."""
        names = dict.fromkeys(row.layer for row in different_rows(self.rows))
        return [n for n in REGISTRY if n in names] + [n for n in names if n not in REGISTRY]

    def beside(self) -> list[str]:
        """Comparisons outside the registry."""
        return list(dict.fromkeys(row.layer for row in self.rows if row.layer not in REGISTRY))

    def missing_outputs(self) -> dict[str, list[str]]:
        """Layer -> outputs that are not given, by layers that are."""
        found: dict[str, dict[str, None]] = {}
        for row in self.rows:
            if is_missing(row):
                found.setdefault(row.layer, {})[row.output] = None
        return {layer: list(names) for layer, names in found.items()}

    def worst(self, layer: str, kind: str, dtype: str) -> Row | None:
        """The largest error of a sort, relative to scale (where there is one); None if nothing of it was compared."""
        mine = [r for r in self.rows if (r.layer, r.kind, r.dtype) == (layer, kind, dtype) and not is_missing(r)]
        return max(mine, key=lambda r: (r.scale > 0.0, r.max_rel), default=None)

    def telling(self, layer: str) -> Row:
        """The difference of a layer to show."""
        rows = self.different(layer)
        return telling([row for row in rows if not is_folded(row)] or rows)

    def causes_of(self, layer: str) -> list[Finding]:
        """The findings that act on a layer."""
        return [finding for finding in self.findings if layer in finding.rows]

    def state(self, layer: str) -> str:
        """`equal`, `not provided`, or what differs."""
        mine = [row for row in self.rows if row.layer == layer]
        if not mine:
            return "not provided"
        sorts = {(row.kind, row.dtype) for row in self.different(layer)}
        if not sorts:
            return "equal"
        if sorts == {("value", "float32")}:
            return "float32 accuracy only"
        if all(kind == "vjp" for kind, _ in sorts):
            return "gradients only"
        if ("value", "float64") not in sorts:
            return "gradients, and float32 accuracy"
        is_single_compared = any((row.kind, row.dtype) == ("value", "float32") for row in mine)
        return "values in float64 only" if is_single_compared and ("value", "float32") not in sorts else "values"

    def left_over_in_float64(self) -> list[Row]:
        """What no known cause explains and rounding cannot be behind."""
        return [row for row in self.left_over if row.dtype == "float64"]


@lru_cache(maxsize=1)
def fixtures() -> Store:
    """The goldens, their manifest read once."""
    return Store()


def is_folded(row: Row) -> bool:
    """Whether an array was compared by sums of its elements, so that a row's index is not that of an element."""
    if row.layer not in REGISTRY:
        return False
    settings = fixtures().entry(row.layer, row.case)["settings"]
    layer = REGISTRY[row.layer]
    specs = layer.outputs(settings) if row.kind == "value" else layer.inputs(settings)
    return row.output in specs and int(np.prod(specs[row.output].shape(settings))) > SKETCH_ABOVE


def find_packages(name: str, folder: Path | None, versions: Sequence[str]) -> dict[str, Path]:
    """Version -> the folder to import it from."""
    distribution = DISTRIBUTIONS[name]
    if folder is None and versions:
        raise CannotRun(f"--versions needs --from DIR, where each release lies in a folder of its own: {INSTALL}.")
    if folder is None:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise CannotRun(
                f"{distribution} is not installed here. Install it with pip install --no-deps disco-torch==0.4.0 (the "
                f"extra `audit` of this project), or install several releases with: {INSTALL}."
            )
        package = Path(next(iter(spec.submodule_search_locations)))
        return {importlib.metadata.version(distribution): package.parent}
    wanted = versions or sorted(path.name for path in folder.glob("*") if (path / name).is_dir())
    absent = [version for version in wanted if not (folder / version / name).is_dir()]
    if absent or not wanted:
        which = f"no folder {folder / absent[0]} with {name} in it" if absent else f"no release of {name} in {folder}"
        raise CannotRun(f"There is {which}; make it with: {INSTALL}.")
    return {version: (folder / version).resolve() for version in wanted}


def changed_files(package: Path) -> list[str]:
    """Files that are not as the distribution's own record of digests has them; empty where there is no record."""
    found = []
    for record in sorted(package.parent.glob(f"{package.name}-*.dist-info/RECORD")):
        for name, digest, _ in csv.reader(record.read_text().splitlines()):
            if name.startswith(f"{package.name}/") and digest.startswith("sha256="):
                path = package.parent / name
                mine = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
                if base64.urlsafe_b64encode(mine).rstrip(b"=").decode() != digest.removeprefix("sha256="):
                    found.append(name)
    return found


def bench(name: str, folder: Path, task: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs the bench on the package in a folder, in a fresh process."""
    with tempfile.TemporaryDirectory() as scratch:
        answer, asked = Path(scratch) / "answer.json", Path(scratch) / "task.json"
        path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, "-m", "reports.audit.bench", str(answer), "--impl", name]
        if task is not None:
            asked.write_text(json.dumps(task))
            command += ["--task", str(asked)]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not answer.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise CannotRun(f"Judging {name} in {folder} ended with exit code {done.returncode}: {last}")
        found = json.loads(answer.read_text())
    if "error" in found:
        raise CannotRun(found["error"])
    return found


def rerun(
    name: str,
    package: Path,
    causes: Sequence[Cause],
    cases: Sequence[tuple[str, str]],
    ignored: Sequence[Key] | None = None,
) -> dict[str, Any]:
    """What comes out, on some cases, of a copy in which the given causes are corrected."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = corrected_copy(package, causes, Path(scratch))
        return bench(name, folder, {"cases": cases, "ignored": ignored})


def cases_of(rows: Iterable[Row], is_small: bool) -> list[tuple[str, str]]:
    """The cases of some rows; if asked, of the full-size ones only the run with Disco103."""
    cases = dict.fromkeys((row.layer, row.case) for row in rows if row.layer in REGISTRY)
    return [case for case in cases if not is_small or case == LIFE or fixtures().entry(*case)["stored"]]


def trace(
    name: str, package: Path, causes: Sequence[Cause], wrong: list[Row], jobs: int
) -> tuple[list[Finding], list[Row]]:
    """Finds the causes of differences by leaving each in place alone; and what no known cause explains."""
    here = [cause for cause in causes if cause.is_in(package)]
    if not wrong:
        return [], []
    clean = rerun(name, package, here, cases_of(wrong, is_small=False))
    left_over = different_rows(row_from_dict(row) for row in clean["rows"])
    ignored, cases = [key(row) for row in left_over], cases_of(wrong, is_small=True)

    def alone(cause: Cause) -> Finding | None:
        answer = rerun(name, package, [other for other in here if other is not cause], cases, ignored)
        rows = different_rows((row_from_dict(row) for row in answer["rows"]), set(ignored))
        if not rows:
            return None
        every = dict.fromkeys(row.layer for row in rows)
        layers = [n for n in REGISTRY if n in every] + [n for n in every if n not in REGISTRY]
        by_layer = {layer: largest([row for row in rows if row.layer == layer]) for layer in layers}
        is_life = [(row.layer, row.case) == LIFE and row.output.startswith("params/") for row in rows]
        lives = [row for row, is_of_it in zip(rows, is_life, strict=True) if is_of_it and not is_folded(row)]
        life = max(lives, key=lambda row: row.max_abs, default=None)
        return Finding(cause, *cause.citation(package), by_layer, life, answer.get("diagnosis"))

    return [finding for finding in in_parallel(alone, here, jobs) if finding is not None], left_over


def in_parallel(function: Callable[[A], T], arguments: Sequence[A], jobs: int) -> list[T]:
    """Results in the order of the arguments; each call waits for a process of its own."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        return list(pool.map(function, arguments))


def largest(rows: list[Row]) -> Row:
    """The largest error of the values in float64; of what else differs, if they do not. Whole arrays before sums."""
    first = min(ORDER[row.kind, row.dtype] for row in rows)
    same = [row for row in rows if ORDER[row.kind, row.dtype] == first]
    return max(same, key=lambda row: (not row.problem, not is_folded(row), row.scale > 0, row.max_rel))


def examine(name: str, version: str, folder: Path, causes: Sequence[Cause], jobs: int = 2) -> Release:
    """Judges a release and traces its differences."""
    found = bench(name, folder)
    package = Path(found["folder"])
    rows = [row_from_dict(row) for row in found["rows"]]
    findings, left_over = trace(name, package, causes, different_rows(rows), jobs)
    fields = ("description", "provided", "not_provided", "skipped", "without_gradients")
    return Release(
        version=version,
        rows=rows,
        findings=findings,
        left_over=left_over,
        changed=changed_files(package),
        **{name: found[name] for name in fields},
    )
