"""`python -m reports.lockstep`: the port repeats the original's runs on Catch, and is compared action by action.

The port gets the original's initial parameters, its noise for every action, its ball columns and its replay indices;
actions, replay buffer and updates are its own. The original's run is a recorded trace; with --live the original runs
now. The measure is how the original diverges from itself, with initial parameters perturbed by one unit in the last
place. No two programs act alike to the end of a run, nor does a perturbed original. With --resync-every the port takes
over the original's state every N steps, and no action at all may differ; the learner's whole state is compared as
well.

Example:
    python -m reports.lockstep --quick
    python -m reports.lockstep --live --presets bundled --seeds 7 --steps 300
    python -m reports.lockstep --live --resync-every 100 --presets disco103 --seeds 7    # no action may differ
    python -m reports.lockstep --mutants retrace_index_too_late
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from parity.command_line import exit_code
from parity.errors import CannotRun, WeightsMissing
from parity.files import canonical
from parity.layers.spec import Arrays
from parity.mutants import edits_of
from parity.mutants.coverage import source_digest
from parity.mutants.mutate import Edit
from parity.runs import runner
from parity.runs.lockstep import compare, drift_ratio
from parity.runs.runner import Job, Workers
from parity.runs.spec import PRESETS, RunSpec, lockstep_preset, new_name
from parity.runs.trace import Trace, trace_bytes, trace_from
from parity.runs.trace_store import TRACES, TraceStore
from reports import page
from reports.lockstep import port_run, resync
from reports.lockstep.resync import ResyncPlan
from reports.lockstep.section import TITLE as TITLE
from reports.lockstep.section import section_of
from reports.lockstep.verdict import ComparedRun, Verdict

QUICK = {"disco103": 60, "bundled": 300}  # steps at most, by preset; actor-critic has 120
DTYPES = ("float64", "float32")
LIVE_PERTURBED = 2


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        store: the original's traces.
        presets: of the runs; none means all.
        seeds: of the runs; none means all.
        dtypes: to compute in.
        steps: at most, of each run, by its preset; as many as its trace has by default.
        edits: changes to the port.
        workers: where jobs run.
        folder: for runs that have ended, so that none is repeated.
    """

    store: TraceStore
    presets: Sequence[str] = ()
    seeds: Sequence[int] = ()
    dtypes: Sequence[str] = DTYPES
    steps: Mapping[str, int] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    workers: Workers = field(default_factory=Workers)
    folder: Path = page.OUT / "lockstep"

    @property
    def specs(self) -> list[RunSpec]:
        """Of the runs."""
        specs = [
            spec
            for spec in self.store.specs().values()
            if (not self.presets or spec.preset in self.presets) and (not self.seeds or spec.seed in self.seeds)
        ]
        if not specs:
            raise CannotRun(
                f"There is no trace of such a run in {self.store.root}; `python -m reference trace` records one."
            )
        return specs

    @property
    def origin(self) -> dict[str, Any]:
        """Provenance of the original's traces."""
        return self.store.manifest

    def trace(self, name: str, dtype: str, direction: int = 0) -> Trace:
        """A trace of the original's, as long as the plan wants it."""
        trace = self.store.load(name, dtype, direction)
        return trace.cut(self.steps.get(trace.spec.preset, trace.steps))

    def jobs(self, spec: RunSpec) -> list[Job]:
        """The port's runs, one for each precision that was recorded and is wanted."""
        recorded = [dtype for dtype, direction in self.store.traces(spec.name) if not direction]
        return [self._job(spec, dtype) for dtype in recorded if dtype in self.dtypes]

    def _job(self, spec: RunSpec, dtype: str) -> Job:
        trace, params = self.trace(spec.name, dtype), self.store.params(spec.name)
        settings = canonical([spec.as_json(), dtype, torch.__version__, [str(edit) for edit in self.edits]])
        key = runner.key(source_digest(), settings, trace.actions, trace.digests, trace.noise)
        cost = float(trace.steps * sum(array.size for array in params.values()))
        arguments, path = (spec, dtype, params, trace, self.edits), self.folder / f"{trace.name}.{key}.safetensors"
        return Job(f"{spec.name} in {dtype}", run_port, arguments, trace.steps, path, cost)

    def compared(self, job: Job, content: bytes) -> ComparedRun:
        """The port's run against the trace, and the original's other runs against it too."""
        spec, dtype, *_ = job.arguments
        recorded = self.store.traces(spec.name)
        got, ref = trace_from(content, spec, dtype), self.trace(spec.name, dtype)
        directions = [direction for recorded_dtype, direction in recorded if recorded_dtype == dtype and direction]
        own = {f"perturbed {k}": compare(ref, self.trace(spec.name, dtype, k)) for k in directions}
        wide, to_truth = None, float("nan")
        if dtype == "float32" and ("float64", 0) in recorded:
            truth = self.trace(spec.name, "float64")
            wide, to_truth = compare(ref, truth), drift_ratio(compare(truth, got), [compare(truth, ref)])
        return ComparedRun(spec.preset, spec.name, dtype, compare(ref, got), own, wide, to_truth)


def run_port(spec: RunSpec, dtype: str, params: Arrays, reference: Trace, edits: Sequence[Edit]) -> bytes:
    """The port's trace, as the content of a file."""
    return trace_bytes(port_run.run(spec, dtype, params, reference, edits))


def run(plan: Plan | ResyncPlan) -> Verdict:
    """Runs the port as planned, and judges it; what is kept from before is read again."""
    started, skipped, jobs = time.perf_counter(), dict[str, str](), list[Job]()
    for spec in plan.specs:
        try:
            spec.meta_params()
            jobs += plan.jobs(spec)
        except WeightsMissing as error:
            skipped[spec.name] = str(error)
    if not jobs:
        raise CannotRun("; ".join(skipped.values()) or "There is no trace in these precisions.")
    runs = [plan.compared(job, content) for job, content in runner.run_all(jobs, plan.workers, "runs of the port")]
    runs.sort(key=lambda run: (PRESETS.index(run.preset), run.dtype, run.name))
    return Verdict(runs, skipped, time.perf_counter() - started)


def record_live(args: argparse.Namespace, folder: Path) -> TraceStore:
    """Runs the original as asked for, in processes of its own."""
    command = [sys.executable, "-m", "reference", "trace", *args.presets, "--out", str(folder)]
    command += ["--seeds", ",".join(str(seed) for seed in args.seeds)]
    command += ["--steps", str(args.steps)] if args.steps else []
    command += [] if args.jobs is None else ["--jobs", str(args.jobs)]
    command += ["--scheduler", args.scheduler] if args.scheduler else []
    if subprocess.run([*command, "--perturbed", str(LIVE_PERTURBED)], check=False).returncode:
        raise CannotRun("The original could not run here; why stands above. Without --live its traces are used.")
    return TraceStore(folder)


def _parser() -> argparse.ArgumentParser:
    parser = page.parser("reports.lockstep", __doc__)
    presets: dict[str, Any] = {"nargs": "+", "choices": PRESETS, "type": new_name, "default": []}
    parser.add_argument("--presets", **presets, help="of the runs (default: all)")
    parser.add_argument("--kinds", dest="presets", **presets, help=argparse.SUPPRESS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="of the runs (default: all)")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES, help="(default: both)")
    parser.add_argument("--steps", type=int, metavar="N", help="of each run (default: all)")
    parser.add_argument("--quick", action="store_true", help="the first steps of each run, within 3 minutes")
    parser.add_argument("--live", action="store_true", help="run the original now instead of reading its traces")
    every: dict[str, Any] = {"type": int, "metavar": "N", "dest": "resync_every"}
    text = "with --live, in float64: take over the original's state every N steps"
    parser.add_argument("--resync-every", **every, help=text)
    parser.add_argument("--renew", **every, help=argparse.SUPPRESS)
    parser.add_argument("--traces", type=Path, default=TRACES, metavar="DIR", help="(default: fixtures/traces)")
    parser.add_argument("--tapes", dest="traces", type=Path, default=TRACES, help=argparse.SUPPRESS)
    mutants: dict[str, Any] = {"nargs": "+", "default": [], "metavar": "NAME"}
    parser.add_argument("--mutants", **mutants, help="of the catalogue, or `slower`: every fifth update is lost")
    parser.add_argument("--plant", dest="mutants", **mutants, help=argparse.SUPPRESS)
    edit: dict[str, Any] = {"nargs": 3, "action": "append", "default": [], "metavar": ("MODULE", "OLD", "NEW")}
    parser.add_argument("--edit", **edit, help="change the port")
    Workers.add_arguments(parser)
    return parser


def planned(args: argparse.Namespace) -> Plan | ResyncPlan:
    """What the options ask for; a live original runs as a part of this, unless the port is resynchronised with it."""
    if args.steps is not None and args.steps < 1:
        raise CannotRun("--steps takes at least 1.")
    folder, workers = args.out / "lockstep", Workers.from_arguments(args)
    edits = (*edits_of(args.mutants), *(Edit(*edit) for edit in args.edit))
    if args.live:
        args.presets, args.seeds = args.presets or ["bundled"], args.seeds or [0]
    if args.resync_every is not None:
        specs, origin = specs_to_resync(args), resync.provenance()
        workers = replace(workers, environment=origin["flags"])
        return ResyncPlan(specs, args.resync_every, origin, edits, workers, folder / "live")
    if args.live and args.quick and args.steps is None:
        args.steps = min(QUICK.values())  # so that the original runs no longer either
    steps = dict.fromkeys(PRESETS, args.steps) if args.steps else QUICK if args.quick else {}
    store = record_live(args, folder / "live") if args.live else TraceStore(args.traces)
    return Plan(store, args.presets, args.seeds, args.dtypes, steps, edits, workers, folder)


def specs_to_resync(args: argparse.Namespace) -> list[RunSpec]:
    """The runs in which the port is resynchronised; CannotRun where options do not go together."""
    if not args.live or args.quick or args.traces != TRACES or resync.DTYPE not in args.dtypes:
        raise CannotRun(f"--resync-every goes with --live, without --quick and --traces, and is in {resync.DTYPE}.")
    specs = [lockstep_preset(name, seed, args.steps) for name in args.presets for seed in args.seeds]
    shortest, every = min(spec.num_steps for spec in specs), args.resync_every
    if not 1 <= every < shortest:
        raise CannotRun(f"--resync-every takes from 1 step to {shortest - 1}, one less than a run has; got {every}.")
    return specs


def section(implementation_name: str, out: Path) -> page.Section:
    """The section of the page, quick; only the port can be run so, whatever is reported on."""
    plan = Plan(TraceStore(), steps=QUICK, folder=out / "lockstep")
    return section_of(run(plan), plan.origin, "python -m reports.lockstep --quick", out)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def make(args: argparse.Namespace) -> int:
        plan = planned(args)
        verdict = run(plan)
        for group in verdict.groups:
            print(group.sentence())
        command = " ".join(["python -m reports.lockstep", *words])
        return page.publish(section_of(verdict, plan.origin, command, args.out, args.live), args)

    return exit_code(_parser(), words, make)
