"""`python -m reports.catch_curves`: does it learn as the original does? Curves on Catch, over seeds, with statistics.

An implementation learns 8x8 Catch under the settings of the original's `eval` notebook, once for each seed, and its
curves are compared with the original's recorded ones (fixtures/curves/). Every life that has ended is kept at once; a
run that was killed goes on with the others and gives the same figures. Disco103 is lived where its weights are found.

A learning curve proves little: it shows that something learns as fast, not that it is the same. What is the same is
told layer by layer (`python -m reports.parity`).

Examples:
    python -m reports.catch_curves --quick
    python -m reports.catch_curves --impl port --impl original     # the original live, beside its recorded curves
    python -m reports.catch_curves --impl my_adapter:implementation --settings embedded --seeds 10
    python -m reports.catch_curves --impl port+retrace_index_too_late    # the port with a mistake of the catalogue
    python -m reports.catch_curves --impl port+slower    # every fifth update lost: takes 1.25 times as long
    torchrun --nproc-per-node 2 -m reports.catch_curves  # the seeds spread over processes, or machines, of one --out
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from parity.errors import CannotRun, FixtureError
from parity.files import canonical, write_atomically
from parity.runs import curves, life_runner, spread
from parity.runs.curves import Recorded, Setting
from parity.runs.life_runner import Life, Work
from reports import page
from reports.catch_curves import figures, metrics, statistics
from reports.catch_curves.figures import Group, Panel

TITLE = "Learning Catch"
DISCO_TORCH = "disco_torch"
BESIDE = {"original": "disco_rl", DISCO_TORCH: "disco_torch"}  # shown beside the candidate where the package is there


class Share(NamedTuple):
    """Seeds of a setting; steps, if lives are cut short; seeds of those who are shown beside the candidate."""

    seeds: int
    steps: int | None = None
    beside: Mapping[str, int] = {}

    def with_seeds(self, seeds: int) -> Share:
        """The same with so many seeds for everyone."""
        return self._replace(seeds=seeds, beside=dict.fromkeys(self.beside, seeds))


Plan = Mapping[str, Share]
QUICK: Plan = {"embedded": Share(4, 600), "actor_critic": Share(8)}
DEFAULT: Plan = {
    "disco103": Share(2, 750, {DISCO_TORCH: 1}),
    # By the spread of the original's own lives, six seeds find equal ones equivalent with a power of 0.98 in either
    # deciding measure; in whole lives the value loss varies more from seed to seed.
    "embedded": Share(6, 750),
    "actor_critic": Share(8, beside={"original": 3}),
}
FULL: Plan = {
    "disco103": Share(10, beside={"original": 1, DISCO_TORCH: 3}),
    "embedded": Share(10, beside={"original": 3}),
    "actor_critic": Share(20, beside={"original": 10}),
}


def available(plan: Plan, recorded: Recorded, names: Sequence[str] | None = None) -> list[tuple[Setting, Share]]:
    """The settings of a plan; if none is named, those whose weights are there and whose curves are recorded."""
    every, found = curves.settings(), []
    for name, share in plan.items():
        setting = every[name].shortened(share.steps)
        problem = "" if names else missing(setting, recorded)
        if problem:
            print(f"{problem} It is left out.", file=sys.stderr)
        elif names is None or name in names:
            found.append((setting, share))
    if not found:
        raise CannotRun("Nothing can be lived: for no setting there are both weights and recorded curves.")
    return found


def missing(setting: Setting, recorded: Recorded) -> str:
    """What a setting lacks here, in a sentence; nothing if it can be lived and judged."""
    if setting.name not in recorded.settings():
        return f"The original's curves with {setting.title} are not recorded in {recorded.folder}."
    try:
        if setting.weights:
            setting.weights_path()
    except FixtureError as reason:
        return str(reason)
    return ""


def can_live(name: str, setting: Setting) -> bool:
    """Whether an implementation knows a setting; CannotRun where it does not learn at all."""
    return life_runner.learner(name).live(setting, 0) is not None


def wanted(names: Sequence[str], plan: Sequence[tuple[Setting, Share]], beside: Sequence[str] = ()) -> list[Life]:
    """All lives, by setting, then by implementation."""
    found = []
    for setting, share in plan:
        counts = [(name, share.seeds) for name in names] + [(name, share.beside.get(name, 0)) for name in beside]
        for name, count in counts:
            if count and can_live(name, setting):
                found += [Life(name, setting, seed) for seed in range(count)]
    if not found:
        raise CannotRun(f"{', '.join(names)} can live none of these settings: {', '.join(s.name for s, _ in plan)}.")
    return found


def judged(asked: Sequence[Life], recorded: Recorded, work: Work, jobs: int) -> list[Panel]:
    """Lives all lives and compares them, setting by setting."""
    settings = {life.setting.name: life.setting for life in asked}
    refs = {
        name: {seed: curve.first(setting.num_steps) for seed, curve in recorded.curves(setting).items()}
        for name, setting in settings.items()
    }
    ended = life_runner.run(asked, work, jobs)
    panels = []
    for name, setting in settings.items():
        groups = []
        for who in dict.fromkeys(life.learner for life in asked if life.setting.name == name):
            mine = {x.seed: ended[x.key] for x in asked if (x.learner, x.setting.name) == (who, name)}
            groups.append(Group(who, mine, statistics.judge(list(mine.values()), list(refs[name].values()))))
        panels.append(Panel(setting, refs[name], groups))
    return panels


def what_the_audit_found(out: Path) -> list[str]:
    """On the layers of disco-torch, as `reports.audit` wrote it beside the page; where it has not run, that it can."""
    try:
        newest = json.loads((out / "audit.json").read_text(encoding="utf-8"))[-1]
        return [newest["verdict"], *(f"{cause['title']}." for cause in newest["causes"])]
    except (OSError, ValueError, LookupError):
        return [f"Not asked for this page: `python -m reports.audit {DISCO_TORCH}` tells."]


def write_data(panels: list[Panel], out: Path) -> tuple[str, list[str]]:
    """Writes rows, summary and picture; returns the picture for the page, and the names of the files."""
    table = figures.rows(panels).to_csv(index=False, float_format="%.6g")
    write_atomically(out / "curves.csv", table.encode())
    write_atomically(out / "summary.json", canonical(figures.summary(panels)).encode())
    drawing = figures.figure(panels)
    image = page.picture(drawing)
    drawing.savefig(out / "curves.png", dpi=130)
    return image, ["curves.csv", "summary.json", "curves.png"]


def verdict_in_words(name: str, panels: Sequence[Panel]) -> tuple[bool, str]:
    """Whether an implementation learns as the original does, and a sentence.

    It does if it is different under no setting and equivalent under one at least.
    """
    states = {p.setting.title: g.verdict.state for p in panels for g in p.groups if g.name == name}
    said = "; ".join(f"{state} with {title}" for title, state in states.items())
    return "different" not in states.values() and "equivalent" in states.values(), f"{name} learns Catch: {said}."


def state_of(name: str, panels: Sequence[Panel]) -> str:
    """The verdict on an implementation over all settings, in a few words."""
    states = [g.verdict.state for p in panels for g in p.groups if g.name == name]
    alike = states.count("equivalent")
    if "different" in states or not alike:
        return "different" if "different" in states else "undecided"
    return "equivalent" if alike == len(states) else f"equivalent in {alike} of {len(states)}"


def made_section(panels: list[Panel], name: str, recorded: Recorded, command: str, out: Path) -> page.Section:
    """The section of the page, and the files beside it."""
    out.mkdir(parents=True, exist_ok=True)
    image, files = write_data(panels, out)
    is_equal, words = verdict_in_words(name, panels)
    is_beside = any(group.name == DISCO_TORCH for panel in panels for group in panel.groups)
    entry = recorded.manifest["curves"][panels[0].setting.name]
    body = page.render(
        "curves.html.j2",
        panels=panels,
        image=image,
        measures=metrics.MEASURES,
        power={panel.setting.name: figures.power_rows(list(panel.ref.values())) for panel in panels},
        audit=what_the_audit_found(out) if is_beside else [],
    )
    packages = ", ".join(f"{package} {version}" for package, version in entry["packages"].items())
    return page.Section(
        name="curves",
        title=TITLE,
        verdict=words,
        is_equal=is_equal,
        command=command,
        body=body,
        provenance=[
            ("candidate", f"{name} ({life_runner.learner(name).description})"),
            (
                "reference",
                f"the original's recorded curves: {entry['original']['repository']} at {entry['original']['commit']}",
            ),
            ("recorded with", packages),
            ("settings", "; ".join(_setting_in_words(panel.setting) for panel in panels)),
        ],
        files=files,
        badge=state_of(name, panels),
    )


def _setting_in_words(setting: Setting) -> str:
    loop = setting.loop
    return (
        f"{setting.title}: {loop['rows']}x{loop['columns']} boards, {setting.num_steps} steps of "
        f"{loop['rollout_length']} frames on {loop['batch_size'] // loop['replay_ratio']} boards, batches of "
        f"{loop['batch_size']}, learning rate {setting.agent['learning_rate']:g}"
    )


def shown_beside(names: Sequence[str]) -> list[str]:
    """Who is shown beside these implementations: those whose packages can be imported."""
    return [name for name, package in BESIDE.items() if name not in names and importlib.util.find_spec(package)]


def section(implementation_name: str, out: Path, plan: Plan = DEFAULT) -> page.Section:
    """The section for the whole page; a sentence where the implementation does not learn."""
    command = f"python -m reports.catch_curves --impl {implementation_name}"
    try:
        life_runner.learner(implementation_name)
    except CannotRun as reason:
        body = Markup("<p>{}</p>").format(reason)
        verdict = f"{implementation_name} was not let learn."
        return page.Section("curves", TITLE, verdict, True, command, body, kind="not run")
    recorded = Recorded()
    asked = wanted([implementation_name], available(plan, recorded), shown_beside([implementation_name]))
    panels = judged(asked, recorded, Work(out / "lives"), cores())
    return made_section(panels, implementation_name, recorded, command, out)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m reports.catch_curves", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--impl",
        action="append",
        metavar="NAME",
        help="who learns; may be given again, the first is judged (default: port)",
    )
    length = made.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="within 2 minutes on 2 cores")
    length.add_argument("--full", action="store_true", help="as many seeds as recorded; an hour with Disco103")
    names = list(curves.settings())
    made.add_argument("--settings", nargs="+", choices=names, metavar="NAME", help=f"only these: {', '.join(names)}")
    made.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N-1 for everyone")
    made.add_argument("--steps", type=int, metavar="N", help="cut lives short; the original's are cut as well")
    made.add_argument("--jobs", type=int, metavar="N", help="processes of each rank (default: one for each core)")
    made.add_argument("--recorded", type=Path, default=curves.FOLDER, metavar="DIR", help="(default: fixtures/curves)")
    made.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the verdict for machines")
    return made


def chosen_plan(args: argparse.Namespace) -> Plan:
    """The plan that the options ask for."""
    for name in ("seeds", "steps", "jobs"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise CannotRun(f"--{name} takes at least 1.")
    plan = dict(QUICK if args.quick else FULL if args.full else DEFAULT)
    for name in args.settings or ():
        plan.setdefault(name, DEFAULT[name])
    if args.seeds is not None:
        plan = {
            name: share._replace(seeds=args.seeds, beside=dict.fromkeys(share.beside, args.seeds))
            for name, share in plan.items()
        }
    if args.steps is not None:
        plan = {name: share._replace(steps=args.steps) for name, share in plan.items()}
    return plan


def run(args: argparse.Namespace, command: str) -> page.Section | None:
    """Lives, compares and makes the section; None on all ranks but the first, which only live their share."""
    plan, names = chosen_plan(args), list(dict.fromkeys(args.impl or ["port"]))
    recorded = Recorded(args.recorded)
    beside = [] if args.impl else shown_beside(names)
    asked = wanted(names, available(plan, recorded, args.settings), beside)
    work, here = Work(args.out / "lives"), spread.place()
    jobs = args.jobs or max(1, cores() // here.beside)
    if here.size > 1:
        with spread.heard(work, here):
            life_runner.run(spread.share(asked, here), work, jobs)
            if here.rank > 0:
                return None
            spread.wait(asked, work, here)
    panels = judged(asked, recorded, work, jobs)
    for panel in panels:
        for group in panel.groups:
            print(f"{panel.setting.title}, {group.name}: {group.verdict.words}")
    return made_section(panels, names[0], recorded, command, args.out)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equivalent, 1 different (or undecided under every setting), 2 could not run."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(given)
    try:
        made = run(args, " ".join(["python -m reports.catch_curves", *given]))
    except (CannotRun, FixtureError) as error:
        print(f"reports.catch_curves: {error}", file=sys.stderr)
        return 2
    if made is None:
        return 0
    path = page.write([made], args.out)
    if args.json:
        write_atomically(args.json, page.as_json([made]))
    print(f"{made.verdict}\nThe page is {path}")
    return 0 if made.is_equal else 1
