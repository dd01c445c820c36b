"""One release of a port: judged in a process of its own, and its differences traced to lines of its source."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.compare import Row
from parity.implementation import CannotRun
from parity.layers import REGISTRY
from parity.store import Store
from reports.adapters.bench import is_missing, row_from_dict, smallest
from reports.adapters.causes import Cause, corrected_copy

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTIONS = {"disco_torch": "disco-torch"}
INSTALL = (
    "for v in 0.1.0 0.2.0 0.4.0; do pip install --no-deps --target DIR/$v disco-torch==$v; done, "
    "then --versions 0.1.0,0.2.0,0.4.0 --from DIR"
)


@dataclass(frozen=True)
class Finding:
    """One line of a release that makes layers differ.

    Attributes:
        cause: what it is.
        place: `file:line`.
        line: that line.
        rows: layer -> its worst comparison in a copy where only this cause is left.
    """

    cause: Cause
    place: str
    line: str
    rows: dict[str, Row]

    def as_json(self) -> dict[str, Any]:
        """The finding for machines."""
        sizes = [row.as_json() for row in self.rows.values()]
        return {"name": self.cause.name, "title": self.cause.title, "place": self.place, "layers": sizes}


@dataclass(frozen=True)
class Release:
    """What came out for one release.

    Attributes:
        version: its version.
        description: with the version of what it ran on.
        provided: layers of the registry that it has.
        not_provided: those that it has not.
        rows: every comparison.
        findings: causes of what differs, each confirmed by a corrected copy.
        left_over: comparisons that still differ when all known causes are corrected.
        repros: layer -> file that shows its difference.
        diagnoses: layer -> what the catalogue of porting mistakes says.
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
    repros: dict[str, str]
    diagnoses: dict[str, dict[str, Any]]
    skipped: dict[str, str]
    without_gradients: list[str]

    def different(self, layer: str) -> list[Row]:
        """Comparisons of a layer that differ; an output that is not given is none."""
        return [row for row in self.rows if row.layer == layer and not row.equal and not is_missing(row)]

    def different_layers(self) -> list[str]:
        """Layers that differ, in data-flow order; then what was probed beside the registry."""
        names = dict.fromkeys(row.layer for row in self.rows if not row.equal and not is_missing(row))
        return [n for n in REGISTRY if n in names] + [n for n in names if n not in REGISTRY]

    def missing_outputs(self) -> dict[str, list[str]]:
        """Layer -> outputs that are not given, by layers that are."""
        found: dict[str, dict[str, None]] = {}
        for row in self.rows:
            if is_missing(row):
                found.setdefault(row.layer, {})[row.output] = None
        return {layer: list(names) for layer, names in found.items()}

    def worst(self, layer: str, kind: str, dtype: str) -> Row | None:
        """The largest error of a sort, relative to scale; None where nothing of that sort was compared."""
        mine = [r for r in self.rows if (r.layer, r.kind, r.dtype) == (layer, kind, dtype) and not is_missing(r)]
        return max(mine, key=lambda r: r.max_rel, default=None)

    def smallest(self, layer: str) -> Row:
        """The difference of a layer to show."""
        return smallest(self.different(layer))

    def diagnosis(self, layer: str) -> str:
        """What the catalogue of porting mistakes says about a layer, in a sentence; empty if it was not asked."""
        found = self.diagnoses.get(layer)
        if found is None:
            return ""
        if not found["mistakes"]:
            return "no catalogued mistake reproduces these numbers"
        names = " and ".join(mistake["name"] for mistake in found["mistakes"])
        if found.get("is_inherited"):
            return f"inherited: {names}"
        explained = " ".join(mistake["explanation"] for mistake in found["mistakes"])
        limits = "; the gradients differ in another way" if found.get("scope") == "values" else ""
        return f"{names}{limits}. {explained}"

    def causes_of(self, layer: str) -> list[Finding]:
        """The findings that act on a layer."""
        return [finding for finding in self.findings if layer in finding.rows]

    def state(self, layer: str) -> str:
        """`equal`, `not provided`, or what differs."""
        if layer in REGISTRY and layer not in self.provided:
            return "not provided"
        sorts = {(row.kind, row.dtype) for row in self.different(layer)}
        if not sorts:
            return "equal"
        if sorts == {("value", "float32")}:
            return "float32 accuracy only"
        if ("value", "float32") in sorts or layer not in REGISTRY:
            return "values"
        return "values in float64 only" if ("value", "float64") in sorts else "gradients only"

    def left_over_in_float64(self) -> list[Row]:
        """What no known cause explains and rounding cannot be behind."""
        return [row for row in self.left_over if row.dtype == "float64"]


def find_packages(name: str, folder: Path | None, versions: Sequence[str]) -> dict[str, Path]:
    """Version -> the folder to import it from."""
    if folder is None and versions:
        raise CannotRun(f"--versions needs --from DIR, where each release lies in a folder of its own: {INSTALL}.")
    if folder is None:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise CannotRun(
                f"{DISTRIBUTIONS[name]} is not installed here; put releases beside each other with: {INSTALL}."
            )
        package = Path(next(iter(spec.submodule_search_locations)))
        return {importlib.metadata.version(DISTRIBUTIONS[name]): package.parent}
    wanted = versions or sorted(path.name for path in folder.glob("*") if (path / name).is_dir())
    absent = [version for version in wanted if not (folder / version / name).is_dir()]
    if absent or not wanted:
        which = f"no folder {folder / absent[0]} with {name} in it" if absent else f"no release of {name} in {folder}"
        raise CannotRun(f"There is {which}; make it with: {INSTALL}.")
    return {version: (folder / version).resolve() for version in wanted}


def bench(name: str, folder: Path, *options: str) -> dict[str, Any]:
    """Runs the bench on the package in a folder, in a fresh process."""
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, "-m", "reports.adapters.bench", str(answer), "--impl", name, *options]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        if not answer.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise CannotRun(f"Judging {name} in {folder} ended with exit code {done.returncode}: {last}")
        found = json.loads(answer.read_text())
    if "error" in found:
        raise CannotRun(found["error"])
    return found


def different_rows(rows: Sequence[Row]) -> list[Row]:
    """Comparisons that differ, without outputs that are not given."""
    return [row for row in rows if not row.equal and not is_missing(row)]


def rerun(name: str, package: Path, causes: Sequence[Cause], cases: Sequence[str]) -> list[Row]:
    """What still differs, on some cases, in a copy in which the given causes are corrected."""
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch) / "cases.json"
        wanted.write_text(json.dumps(list(cases)))
        folder = corrected_copy(package, causes, Path(scratch))
        return different_rows([row_from_dict(r) for r in bench(name, folder, "--cases", str(wanted))["rows"]])


def small_cases(rows: Sequence[Row]) -> list[str]:
    """The cases of some rows, without the full-size ones: they say nothing about causes that small ones do not."""
    store = Store()
    named = dict.fromkeys((row.layer, row.case) for row in rows if row.layer in REGISTRY)
    return [f"{layer}[{case}]" for layer, case in named if store.entry(layer, case)["stored"]]


def trace(name: str, package: Path, causes: Sequence[Cause], wrong: list[Row]) -> tuple[list[Finding], list[Row]]:
    """Finds the causes of differences by leaving each in place alone; and what no known cause explains."""
    here = [cause for cause in causes if cause.is_in(package)]
    every = list(dict.fromkeys(f"{row.layer}[{row.case}]" for row in wrong if row.layer in REGISTRY))
    left_over = rerun(name, package, here, every) if wrong else []
    findings = []
    for cause in here if wrong else []:
        others = [other for other in here if other is not cause]
        rows = rerun(name, package, others, small_cases(wrong))
        layers = dict.fromkeys(row.layer for row in rows)
        worst = {layer: smallest_or_worst([row for row in rows if row.layer == layer]) for layer in layers}
        if worst:
            findings.append(Finding(cause, *cause.citation(package), worst))
    return findings, left_over


def smallest_or_worst(rows: list[Row]) -> Row:
    """The largest error of the values in float64; of what else differs, if they do not."""
    values = [row for row in rows if (row.kind, row.dtype) == ("value", "float64")]
    return max(values or rows, key=lambda row: (not row.problem, row.max_rel))


def examine(name: str, version: str, folder: Path, causes: Sequence[Cause], out: Path) -> Release:
    """Judges a release and traces its differences."""
    repros = out / "repro" / version
    found = bench(name, folder, "--repros", str(repros))
    rows = [row_from_dict(row) for row in found["rows"]]
    findings, left_over = trace(name, Path(found["folder"]), causes, different_rows(rows))
    fields = ("description", "provided", "not_provided", "repros", "diagnoses", "skipped", "without_gradients")
    return Release(
        version=version, rows=rows, findings=findings, left_over=left_over, **{key: found[key] for key in fields}
    )
