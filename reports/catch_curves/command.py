"""`python -m reports.catch_curves`: does it learn as the original does? Curves on Catch, over seeds, with statistics.

An implementation learns 8x8 Catch with the settings of the original's `eval` notebook, once for each seed, and its
curves are compared with the original's recorded ones (fixtures/curves/). A training run that has ended is kept at once;
a command that was killed goes on with the others and gives the same figures. Disco103 runs where its weights are found.

A learning curve proves little: it shows that something learns as fast, not that it is the same. Whether it is the same
shows layer by layer (`python -m reports.parity`).

Examples:
    python -m reports.catch_curves --quick
    python -m reports.catch_curves --impl port --impl original     # run the original too, beside its recorded curves
    python -m reports.catch_curves --impl my_adapter:implementation --presets bundled --seeds 10
    python -m reports.catch_curves --impl port+retrace_index_too_late    # the port with a mistake of the catalogue
    python -m reports.catch_curves --impl port+slower    # every fifth update lost: takes 1.25 times as long
    python -m reports.catch_curves --scheduler tcp://127.0.0.1:8786    # on the workers of a dask scheduler
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from parity.command_line import exit_code
from parity.errors import CannotRun, FixtureError, WeightsMissing
from parity.files import canonical, write_atomically
from parity.runs import curves, learners
from parity.runs.curves import Curve, Recorded
from parity.runs.learners import TrainingRun
from parity.runs.runner import Workers
from parity.runs.spec import PRESETS, RunSpec, new_name, preset
from reports import page
from reports.catch_curves import figures, metrics, statistics
from reports.catch_curves.figures import Group, Panel

TITLE = "Learning Catch"
DISCO_TORCH = "disco_torch"
BESIDE = {"original": "disco_rl", DISCO_TORCH: "disco_torch"}  # shown with the candidate where the package is there


class Share(NamedTuple):
    """Seeds of a preset; steps, if runs are cut short; seeds of those who are shown with the candidate."""

    seeds: int
    steps: int | None = None
    beside: Mapping[str, int] = {}

    def with_seeds(self, seeds: int) -> Share:
        """The same with that many seeds for everyone."""
        return self._replace(seeds=seeds, beside=dict.fromkeys(self.beside, seeds))


Plan = Mapping[str, Share]
QUICK: Plan = {"bundled": Share(4, 600), "actor_critic": Share(8)}
DEFAULT: Plan = {
    "disco103": Share(2, 750, {DISCO_TORCH: 1}),
    # By the spread of the original's own runs, six seeds find equal ones equivalent with a power of 0.98 in either
    # deciding measure; in runs of 1,000 steps the value loss varies more from seed to seed.
    "bundled": Share(6, 750),
    "actor_critic": Share(8, beside={"original": 3}),
}
FULL: Plan = {
    "disco103": Share(10, beside={"original": 1, DISCO_TORCH: 3}),
    "bundled": Share(10, beside={"original": 3}),
    "actor_critic": Share(20, beside={"original": 10}),
}


def available(plan: Plan, recorded: Recorded, names: Sequence[str] | None = None) -> list[tuple[RunSpec, Share]]:
    """The presets of a plan; if none is named, those whose weights are there and whose curves are recorded."""
    chosen = []
    for name in (name for name in plan if not names or name in names):
        spec = preset(name).with_steps(plan[name].steps)
        problem = "" if names else missing(spec, recorded)
        if problem:
            print(f"{problem} It is left out.", file=sys.stderr)
        else:
            chosen.append((spec, plan[name]))
    if not chosen:
        raise CannotRun("Nothing can be trained: for no preset there are both weights and recorded curves.")
    return chosen


def missing(spec: RunSpec, recorded: Recorded) -> str:
    """What a preset lacks here, in a sentence; nothing if it can be trained and compared."""
    if spec.preset not in recorded.presets():
        return f"The original's curves with {spec.title} are not recorded in {recorded.folder}."
    try:
        if spec.weights:
            spec.weights_path()
    except (FixtureError, WeightsMissing) as reason:
        return str(reason)
    return ""


def runs_of(
    names: Sequence[str], plan: Sequence[tuple[RunSpec, Share]], beside: Sequence[str] = ()
) -> list[TrainingRun]:
    """All runs, by preset, then by implementation."""
    runs = []
    for spec, share in plan:
        counts = [(name, share.seeds) for name in names] + [(name, share.beside.get(name, 0)) for name in beside]
        for name, count in counts:
            if count and learners.learner(name).train(spec) is not None:
                runs += [TrainingRun(name, spec.with_seed(seed)) for seed in range(count)]
    if not runs:
        raise CannotRun(f"{', '.join(names)} can train none of these presets: {', '.join(s.preset for s, _ in plan)}.")
    return runs


def compare(runs: Sequence[TrainingRun], recorded: Recorded, folder: Path, workers: Workers) -> list[Panel]:
    """Trains all runs and compares them with the recorded ones, preset by preset."""
    specs = {run.spec.preset: run.spec.with_seed(0) for run in runs}
    refs = {
        name: {seed: curve.first(spec.num_steps) for seed, curve in recorded.curves(spec).items()}
        for name, spec in specs.items()
    }
    trained, curves_by_seed = learners.train_all(runs, folder, workers), dict[tuple[str, str], dict[int, Curve]]()
    for run in runs:
        curves_by_seed.setdefault((run.spec.preset, run.learner), {})[run.spec.seed] = trained[run.key]
    panels = {name: Panel(spec, refs[name], []) for name, spec in specs.items()}
    for (name, who), mine in curves_by_seed.items():
        panels[name].groups.append(Group(who, mine, statistics.judge([*mine.values()], [*refs[name].values()])))
    return list(panels.values())


def audit_in_words(out: Path) -> list[str]:
    """On the layers of disco-torch, as `reports.audit` wrote it beside the page; where it has not run, that it can."""
    try:
        newest = json.loads((out / "audit.json").read_text(encoding="utf-8"))[-1]
        return [newest["verdict"], *(f"{cause['title']}." for cause in newest["causes"])]
    except (OSError, ValueError, LookupError):
        return [f"Not asked for this page: `python -m reports.audit {DISCO_TORCH}` tells."]


def overall(states: Sequence[str]) -> tuple[bool, str]:
    """The verdict over the states of all presets: whether it learns as the original does, and a badge.

    It does if it is different with no preset and equivalent with one at least.
    """
    alike = states.count("equivalent")
    if "different" in states or not alike:
        return False, "different" if "different" in states else "undecided"
    return True, "equivalent" if alike == len(states) else f"equivalent in {alike} of {len(states)}"


def make_section(panels: list[Panel], name: str, recorded: Recorded, command: str, out: Path) -> page.Section:
    """The section of the page, and the files beside it."""
    drawing, table = figures.figure(panels), figures.rows(panels).to_csv(index=False, float_format="%.6g")
    image = page.picture(drawing)
    write_atomically(out / "curves.csv", table.encode())
    write_atomically(out / "summary.json", canonical(figures.summary(panels)).encode())
    drawing.savefig(out / "curves.png", dpi=130)
    states = {panel.spec.title: g.verdict.state for panel in panels for g in panel.groups if g.name == name}
    is_equal, badge = overall(list(states.values()))
    is_beside = any(group.name == DISCO_TORCH for panel in panels for group in panel.groups)
    entry = recorded.manifest["curves"][panels[0].spec.preset]
    body = page.render(
        "curves.html.j2",
        panels=panels,
        image=image,
        measures=metrics.MEASURES,
        power={panel.spec.preset: figures.power_rows(list(panel.ref.values())) for panel in panels},
        audit=audit_in_words(out) if is_beside else [],
    )
    return page.Section(
        name="curves",
        title=TITLE,
        verdict=f"{name} learns Catch: {'; '.join(f'{state} with {title}' for title, state in states.items())}.",
        is_equal=is_equal,
        command=command,
        body=body,
        provenance=[
            ("candidate", f"{name} ({learners.learner(name).description})"),
            *page.recorded_from("the original's recorded curves", entry),
            ("settings", "; ".join(_in_words(panel.spec) for panel in panels)),
        ],
        files=["curves.csv", "summary.json", "curves.png"],
        badge=badge,
    )


def _in_words(spec: RunSpec) -> str:
    loop = spec.loop
    return (
        f"{spec.title}: {loop.rows}x{loop.columns} boards, {spec.num_steps} steps of {loop.rollout_length} frames on "
        f"{loop.num_envs} boards, batches of {loop.batch_size}, learning rate {spec.agent['learning_rate']:g}"
    )


def shown_beside(names: Sequence[str]) -> list[str]:
    """Who is shown beside these implementations: those whose packages can be imported."""
    return [name for name, package in BESIDE.items() if name not in names and importlib.util.find_spec(package)]


def section(implementation_name: str, out: Path) -> page.Section:
    """The section for the whole page; a sentence where the implementation does not learn."""
    command = f"python -m reports.catch_curves --impl {implementation_name}"
    try:
        learners.learner(implementation_name)
    except CannotRun as reason:
        body = Markup("<p>{}</p>").format(reason)
        verdict = f"{implementation_name} does not learn."
        return page.Section("curves", TITLE, verdict, True, command, body, kind="not run")
    recorded = Recorded()
    runs = runs_of([implementation_name], available(DEFAULT, recorded), shown_beside([implementation_name]))
    return make_section(compare(runs, recorded, out / "runs", Workers()), implementation_name, recorded, command, out)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = page.parser("reports.catch_curves", __doc__)
    options.add_argument(
        "--impl",
        action="append",
        metavar="NAME",
        help="implementation that learns; may be repeated, the first is judged (default: port)",
    )
    length = options.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="within 2 minutes on 2 cores")
    length.add_argument("--full", action="store_true", help="as many seeds as recorded; an hour with Disco103")
    chosen: dict[str, Any] = {"nargs": "+", "choices": PRESETS, "metavar": "NAME", "type": new_name}
    options.add_argument("--presets", **chosen, help=f"only these: {', '.join(PRESETS)}")
    options.add_argument("--settings", dest="presets", **chosen, help=argparse.SUPPRESS)
    options.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N-1 for everyone")
    options.add_argument("--steps", type=int, metavar="N", help="cut runs short; the original's are cut as well")
    Workers.add_arguments(options)
    options.add_argument(
        "--recorded", type=Path, default=curves.FOLDER, metavar="DIR", help="(default: fixtures/curves)"
    )
    return options


def chosen_plan(args: argparse.Namespace) -> Plan:
    """The plan that the options ask for."""
    for name in ("seeds", "steps"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise CannotRun(f"--{name} takes at least 1.")
    plan = dict(QUICK if args.quick else FULL if args.full else DEFAULT)
    for name in args.presets or ():
        plan.setdefault(name, DEFAULT[name])
    if args.seeds is not None:
        plan = {name: share.with_seeds(args.seeds) for name, share in plan.items()}
    if args.steps is not None:
        plan = {name: share._replace(steps=args.steps) for name, share in plan.items()}
    return plan


def run(args: argparse.Namespace, command: str) -> page.Section:
    """Trains, compares and makes the section."""
    plan, names, workers = chosen_plan(args), list(dict.fromkeys(args.impl or ["port"])), Workers.from_arguments(args)
    recorded = Recorded(args.recorded)
    beside = [] if args.impl else shown_beside(names)
    runs = runs_of(names, available(plan, recorded, args.presets), beside)
    panels = compare(runs, recorded, args.out / "runs", workers)
    for panel in panels:
        for group in panel.groups:
            print(f"{panel.spec.title}, {group.name}: {group.verdict.words}")
    return make_section(panels, names[0], recorded, command, args.out)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equivalent, 1 different (or undecided with every preset), 2 could not run."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = " ".join(["python -m reports.catch_curves", *words])
    return exit_code(parser(), words, lambda args: page.publish(run(args, command), args))
