"""One release of a port: judged in a process of its own, and its differences traced to lines of its source."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from parity.compare import Row
from parity.errors import CannotRun
from parity.goldens.store import Store
from parity.layers import REGISTRY
from parity.mutants.diagnosis import Diagnosis
from parity.sketch import SKETCH_ABOVE
from reports.audit.bench import Judgement, different_rows, is_missing, judge_cases, judge_everything, key
from reports.audit.causes import Cause, Port, corrected_copy
from reports.processes import OwnProcess

ORDER = {("value", "float64"): 0, ("vjp", "float64"): 1, ("value", "float32"): 2, ("vjp", "float32"): 3}
LEARNER_STEPS = ("agent/learner_steps", "from_the_start")  # 20 of them, with Disco103
CURRENT = "current"  # the version of what has none
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
        rows: layer -> its largest difference in a copy where only this cause is left.
        after_steps: of the same copy, the parameters furthest off after 20 learner steps with Disco103; None if they
            are equal, or were not compared.
        diagnosis: the mutant of the catalogue that explains that copy; None where none was looked for.
        repro: the file that shows it, empty if there is none.
        printed: what the file prints.
    """

    cause: Cause
    place: str
    line: str
    rows: dict[str, Row]
    after_steps: Row | None = None
    diagnosis: Diagnosis | None = None
    repro: str = ""
    printed: str = ""

    def as_json(self) -> dict[str, Any]:
        """The finding for machines."""
        named = ("name", "title", "says", "right", "means", "reach", "original")
        return {
            **{name: getattr(self.cause, name) for name in named},
            "place": self.place,
            "layers": {layer: row.as_json() for layer, row in self.rows.items()},
            "after_20_learner_steps": self.after_steps.as_json() if self.after_steps else None,
            "diagnosis": self.diagnosis and self.diagnosis.as_json(),
            "repro": self.repro,
            "printed": self.printed,
        }


@dataclass(frozen=True)
class Release:
    """What came out for one release.

    Attributes:
        title: the port's name and the release.
        version: the release alone.
        judgement: what its process found.
        findings: causes of what differs, each confirmed by a corrected copy.
        left_over: comparisons that still differ when all known causes are corrected.
        changed: files that are not as they were released.
    """

    title: str
    version: str
    judgement: Judgement
    findings: Sequence[Finding] = ()
    left_over: Sequence[Row] = ()
    changed: Sequence[str] = ()

    @property
    def rows(self) -> list[Row]:
        """Every comparison."""
        return self.judgement.outcome.rows

    @property
    def provided(self) -> list[str]:
        """Layers of the registry that it has."""
        return self.judgement.provided

    def different(self, layer: str) -> list[Row]:
        """Comparisons of a layer that differ; an output that is not given is none."""
        return [row for row in different_rows(self.rows) if row.layer == layer]

    def different_layers(self) -> list[str]:
        """Layers that differ, in data-flow order; then comparisons outside the registry."""
        return in_order(row.layer for row in different_rows(self.rows))

    def missing_outputs(self) -> dict[str, list[str]]:
        """Layer -> outputs that are not given, by layers that are."""
        missing: dict[str, dict[str, None]] = {}
        for row in self.rows:
            if is_missing(row):
                missing.setdefault(row.layer, {})[row.output] = None
        return {layer: list(names) for layer, names in missing.items()}

    def worst(self, layer: str) -> Row | None:
        """The largest error of the values in float64, relative to scale where there is one; None if there are none."""
        plain = (layer, "value", "float64")
        mine = [row for row in self.rows if (row.layer, row.kind, row.dtype) == plain and not is_missing(row)]
        return max(mine, key=lambda r: (r.scale > 0.0, r.max_rel), default=None)

    def example(self, layer: str) -> Row:
        """The difference of a layer to show: a value in float64 if there is one, of a plain case."""
        rows = self.different(layer)
        whole = [row for row in rows if not is_folded(row)] or rows
        return min(whole, key=lambda r: (ORDER[r.kind, r.dtype], bool(r.problem), r.case != "plain", -r.max_rel))

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


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once: layers in data-flow order, then what is not in the registry."""
    once = dict.fromkeys(names)
    return [name for name in REGISTRY if name in once] + [name for name in once if name not in REGISTRY]


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


def find_packages(port: Port, folder: Path | None, versions: Sequence[str]) -> dict[str, Path]:
    """Version -> the folder to import it from."""
    if not port.distribution:
        if folder or versions:
            raise CannotRun(f"--from and --versions are for published packages; {port.name} is imported as it is.")
        return {CURRENT: Path.cwd()}
    if folder is None and versions:
        raise CannotRun(f"--versions needs --from DIR, where each release lies in a folder of its own: {INSTALL}.")
    if folder is None:
        spec = importlib.util.find_spec(port.name)
        if spec is None or not spec.submodule_search_locations:
            raise CannotRun(
                f"{port.title} is not installed here. Install it with {port.install} (the extra `audit` of this "
                f"project), or install several releases with: {INSTALL}."
            )
        package = Path(next(iter(spec.submodule_search_locations)))
        return {importlib.metadata.version(port.distribution): package.parent}
    wanted = versions or sorted(path.name for path in folder.glob("*") if (path / port.name).is_dir())
    absent = [version for version in wanted if not (folder / version / port.name).is_dir()]
    if absent or not wanted:
        name = port.name
        which = f"no folder {folder / absent[0]} with {name} in it" if absent else f"no release of {name} in {folder}"
        raise CannotRun(f"There is {which}; make it with: {INSTALL}.")
    return {version: (folder / version).resolve() for version in wanted}


def changed_files(package: Path) -> list[str]:
    """Files that are not as the distribution's own record of digests has them; empty where there is no record."""
    changed = []
    for record in sorted(package.parent.glob(f"{package.name}-*.dist-info/RECORD")):
        for name, digest, _ in csv.reader(record.read_text().splitlines()):
            if name.startswith(f"{package.name}/") and digest.startswith("sha256="):
                path = package.parent / name
                mine = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
                if base64.urlsafe_b64encode(mine).rstrip(b"=").decode() != digest.removeprefix("sha256="):
                    changed.append(name)
    return changed


def in_own_process(folder: Path, function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """Calls a function of the bench on the port that lies in a folder."""
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with closing(OwnProcess(f"{name} in {folder}", environment, [str(folder)])) as process:
        return process.call(function, name, *arguments)


def cases_of(rows: Iterable[Row], is_small: bool) -> list[tuple[str, str]]:
    """The cases of some rows; if asked, of the full-size ones only the run with Disco103."""
    cases = dict.fromkeys((row.layer, row.case) for row in rows if row.layer in REGISTRY)
    return [case for case in cases if not is_small or case == LEARNER_STEPS or fixtures().entry(*case)["stored"]]


def trace(port: Port, package: Path, wrong: list[Row], jobs: int) -> tuple[list[Finding], list[Row]]:
    """Finds the causes of differences by leaving each in place alone; and what no known cause explains."""
    here = [cause for cause in port.causes if cause.is_in(package)]
    if not wrong:
        return [], []

    def judged(corrected: Sequence[Cause], *task: Any) -> tuple[list[Row], Diagnosis | None]:
        with tempfile.TemporaryDirectory() as scratch:
            copy = corrected_copy(package, corrected, Path(scratch))
            answer: tuple[list[Row], Diagnosis | None] = in_own_process(copy, judge_cases, port.name, *task)
            return answer

    clean, _ = judged(here, cases_of(wrong, is_small=False), None)
    left_over = different_rows(clean)
    ignored, cases = {key(row) for row in left_over}, cases_of(wrong, is_small=True)

    def alone(cause: Cause) -> Finding | None:
        every, diagnosis = judged([other for other in here if other is not cause], cases, ignored)
        rows = different_rows(every, ignored)
        if not rows:
            return None
        layers = in_order(row.layer for row in rows)
        by_layer = {layer: largest([row for row in rows if row.layer == layer]) for layer in layers}
        learned = [row for row in rows if (row.layer, row.case) == LEARNER_STEPS and row.output.startswith("params/")]
        after_steps = max((r for r in learned if not is_folded(r)), key=lambda row: row.max_abs, default=None)
        return Finding(cause, *cause.citation(package), by_layer, after_steps, diagnosis)

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


def examine(port: Port, version: str, folder: Path, jobs: int = 2) -> Release:
    """Judges a release; if it is a package with known causes of differences, traces its own to them."""
    title = f"{port.title} {version}" if port.distribution else port.title
    judgement: Judgement = in_own_process(folder, judge_everything, port.name)
    wrong = different_rows(judgement.outcome.rows)
    if not port.causes:
        return Release(title, version, judgement, left_over=wrong)
    package = folder / port.name
    findings, left_over = trace(port, package, wrong, jobs)
    return Release(title, version, judgement, findings, left_over, changed_files(package))
