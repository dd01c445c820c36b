"""Training runs of implementations that learn, as jobs: each is kept as a curve, and none is run twice.

The name of a curve's file bears a digest of everything that the run depends on: spec, weights, the learner's code and
the versions under it. Figures are made from the files, so that they are the same to the last bit.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from parity import mutants
from parity.errors import CannotRun
from parity.files import canonical
from parity.implementation import KNOWN, load
from parity.mutants import edits_of
from parity.mutants.mutate import load_edited
from parity.runs import runner
from parity.runs.curves import Curve, Learner, from_csv, manifest_entry, to_csv
from parity.runs.runner import Job, Workers
from parity.runs.spec import RunSpec

NUMERIC = ("torch", "numpy", "jax", "jaxlib", "dm-haiku", "rlax", "distrax", "optax", "disco_rl", "disco-torch")
# Each run has one core: several run in parallel.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}
HERE = Path(__file__).resolve().parent


def learner(name: str) -> Learner:
    """An implementation that learns, by name; CannotRun where it does not.

    `port+MUTANT` is the port with a mutant of the catalogue, or `slower`.
    """
    base, _, mutant = name.partition("+")
    if mutant and base != "port":
        raise CannotRun(f"Mutants are of the port only: port+{mutant}, not {name}.")
    candidate: Any = load_edited(KNOWN["port"], edits_of([mutant])) if mutant else load(name)
    if not hasattr(candidate, "train"):
        raise CannotRun(f"{name} has layers but does not learn: it has no method `train` (see parity/runs/curves.py).")
    learning: Learner = candidate
    return learning


@dataclass(frozen=True)
class TrainingRun:
    """A run of an implementation."""

    learner: str
    spec: RunSpec

    @property
    def key(self) -> str:
        """A name for it, such as `port/bundled/seed 3`."""
        return f"{self.learner}/{self.spec.preset}/seed {self.spec.seed}"

    def digest(self) -> str:
        """Of everything that the run depends on."""
        return runner.key(canonical([manifest_entry(self.spec), self.spec.seed]), code_digest(self.learner))

    def path(self, folder: Path) -> Path:
        """Where its curve is kept."""
        name = re.sub(r"[^A-Za-z0-9_+-]", "_", self.learner)
        return folder / f"{name}_{self.spec.name}_{self.digest()}.csv"

    def job(self, folder: Path) -> Job:
        """The run as a job."""
        steps = self.spec.num_steps
        return Job(self.key, train, (self.learner, self.spec), steps, self.path(folder), self.spec.seconds)


def _sources(module: str) -> list[Path]:
    """The files of the package, or the module, that a name such as `port.adapter` belongs to."""
    top = module.partition(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise CannotRun(f"There is no module {top!r}, neither installed nor in {os.getcwd()}.")
    if spec.submodule_search_locations:
        return sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))
    return [Path(spec.origin)] if spec.origin else []


@lru_cache(maxsize=64)
def code_digest(name: str) -> str:
    """Of a learner's code, of what trains it, and of the versions under both."""
    base = name.partition("+")[0]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    total = hashlib.sha256(name.encode())
    catalogue = sorted(mutants.FOLDER.rglob("*.toml")) if "+" in name else []
    for path in [HERE / "curves.py", HERE / "spec.py", *catalogue, *_sources(KNOWN.get(base, base).partition(":")[0])]:
        total.update(path.read_bytes())
    installed = {package.name: package.version for package in importlib.metadata.distributions()}
    total.update(canonical({name: installed.get(name, "absent") for name in NUMERIC}).encode())
    return total.hexdigest()


def train(name: str, spec: RunSpec) -> bytes:
    """Trains an implementation in this process; the content of the curve's file."""
    run = learner(name).train(spec)
    if run is None:
        raise CannotRun(f"{name} cannot train {spec.preset}.")
    steps = []
    for step in run:
        steps.append(step)
        runner.report_step(len(steps))
    if len(steps) != spec.num_steps:
        raise CannotRun(f"it ended after {len(steps)} of {spec.num_steps} steps.")
    return to_csv(Curve.of(steps))


def train_all(runs: Sequence[TrainingRun], folder: Path, workers: Workers) -> Mapping[str, Curve]:
    """All runs by key; those that are not kept in the folder yet are trained first."""
    jobs = [run.job(folder) for run in runs]
    results = runner.run_all(jobs, replace(workers, environment=ENVIRONMENT), "training runs")
    return {job.name: from_csv(content, str(job.path)) for job, content in results}
