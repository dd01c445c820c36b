"""`python -m reports.speed`: times the port, and the original and disco-torch where they are installed.

Learner step, actor and a whole Catch run use the setting of the original's `eval` notebook (B = 64, T = 28,
2 environments) and the size of Disco103. The meta-update has the size of the `meta_train` notebook; the port uses a
process for each thread. Each implementation runs in its own process, with the same number of threads, batch and
weights. They alternate, round by round. Times are wall-clock times; processor time is listed as well.

Catch batches contain many duplicate observations, which the port evaluates once. The learner step is therefore also
timed on a batch without duplicates.

Example:
    python -m reports.speed --json speed.json
    python -m reports.speed --only learner_step --repeats 21 --json -
    python -m reports.speed --only meta_update --impl original
    python -m reports.speed --quick
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from parity.command_line import exit_code, write_json
from parity.errors import CannotRun
from parity.runs.runner import cores
from reports import page
from reports.speed import port as speed_port
from reports.speed import workload
from reports.speed.section import TITLE as TITLE
from reports.speed.section import section_of, terminal_table
from reports.speed.summary import ORIGINAL, PORT, RUN_STEPS, TITLES, Found, Growth, Timing, in_words
from reports.speed.worker import Bench, Worker
from reports.speed.workload import Sample, Work

K = TypeVar("K")
TASKS = ("learner_step", "actor_unroll", "meta_update", "catch_run")
MANY_ENVS = 4096
ENDLESS = 10**9
GROWTH = {"T": (7, 14, 28, 56), "B": (16, 32, 64, 128), "A": (3, 6, 12, 24), "board": (8, 16, 32, 64)}
QUICK_GROWTH = {axis: values[1:3] if axis in "TB" else values[:2] for axis, values in GROWTH.items()}


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    tasks: Sequence[str] = TASKS
    names: Sequence[str] = (PORT,)  # implementations, the port first
    repeats: int = 11
    threads: int = 1  # of each implementation
    growth: Mapping[str, Sequence[int]] | None = None  # sizes by axis at which the port's learner step is timed
    is_quick: bool = False  # leaves out what compiles for minutes

    def names_for(self, task: str) -> list[str]:
        """Implementations of a task; the original's meta-update compiles for minutes, its others for seconds."""
        alone = self.is_quick and task in ("meta_update", "catch_run", "actor_unroll_4096")
        return [name for name in self.names if name != ORIGINAL or not alone]


def installed() -> tuple[list[str], dict[str, str]]:
    """Implementations that can be timed here, the port first; and why others cannot."""
    names, absent = [PORT], {}
    identity = importlib.import_module("reference.identity").identify()
    if identity.is_runnable and importlib.util.find_spec("jax"):
        names.append(ORIGINAL)
    else:
        absent[ORIGINAL] = identity.message if not identity.is_runnable else "JAX is not installed; `make original`."
    if importlib.util.find_spec("disco_torch"):
        names.append("disco_torch")
    else:
        absent["disco_torch"] = "It is not installed; `pip install --no-deps disco-torch==0.4.0` installs it."
    return names, absent


def weights_for(folder: Path) -> tuple[Path, str]:
    """Disco103 where it is at hand; else random weights of its size, which cost the same."""
    reference = importlib.import_module("parity.weights")
    try:
        return reference.find_weights(download=False).path, "Disco103 (sha256 verified)"
    except reference.WeightsError:
        from port import MetaNetConfig, weights
        from port.meta_train.population import DTYPE, generator
        from port.networks import init

        path = folder / "weights.npz"
        weights.save_npz(path, init.init_meta_params(MetaNetConfig(), generator(0, "meta_params"), DTYPE))
        return path, "random weights of Disco103's size, at the same cost (Disco103 is not on this machine)"


def make_work(file: Path, num_actions: int = workload.CATCH_ACTIONS, **loop: int) -> Work:
    """The evaluation's work, with these changes."""
    setting = workload.evaluation(file, None, **loop)
    work = Work(setting, num_actions)
    rollout = workload.batch(setting, num_actions, work.seed)
    return replace(work, params=speed_port.initial_params(work), rollout=rollout)


def grown(file: Path, axis: str, value: int) -> Work:
    """The evaluation's work with one size changed."""
    if axis == "A":
        return make_work(file, value)
    changes = {"T": {"rollout_length": value + 1}, "B": {"batch_size": value}, "board": {"rows": value}}[axis]
    return make_work(file, **changes, **({"columns": value} if axis == "board" else {}))


def prepared(workers: Mapping[str, Worker | Bench], task: str, work: Work, not_run: dict[str, str]) -> dict[str, float]:
    """Seconds of each implementation's first call; those without this task are left out.

    `not_run` gets the reason where an implementation cannot run; without the port the command fails.
    """
    first = {}
    for name, worker in workers.items():
        try:
            first[name] = worker.ask("prepare", "task", task, work)
        except CannotRun as error:
            if name == PORT:
                raise
            not_run[name] = str(error)
    return {name: seconds for name, seconds in first.items() if seconds is not None}


def jobs_of(workers: Mapping[str, Worker | Bench], names: Iterable[str]) -> dict[str, Callable[[], Sample]]:
    """For each implementation, a function that runs its task once."""
    return {name: partial(workers[name].ask, "measure", "task") for name in names}


def in_turns(jobs: Mapping[K, Callable[[], Sample]], rounds: int) -> dict[K, list[Sample]]:
    """Samples of each job: each once a round, and each round begins with another."""
    samples: dict[K, list[Sample]] = {key: [] for key in jobs}
    order = deque(jobs)
    for _ in range(rounds):
        for key in order:
            samples[key].append(jobs[key]())
        order.rotate(-1)
    return samples


@contextmanager
def ready(plan: Plan, task: str, label: str, work: Work) -> Iterator[tuple[dict[str, Worker], Timing]]:
    """Workers that have run the task once, and the timing so far: first calls, and reasons why others did not run."""
    not_run: dict[str, str] = {}
    with ExitStack() as stack:
        names = plan.names_for(label)
        workers = {name: stack.enter_context(closing(Worker(name, plan.threads))) for name in names}
        first = prepared(workers, task, work, not_run)
        yield workers, Timing(label, {}, first, not_run)


def time_task(plan: Plan, task: str, label: str, work: Work) -> Timing:
    """A task, in alternating rounds."""
    with ready(plan, task, label, work) as (workers, timing):
        jobs = jobs_of(workers, timing.first_seconds)
        in_turns(jobs, 1)  # a first round that does not count
        timing = replace(timing, samples=in_turns(jobs, plan.repeats))
        if task == "meta_update":
            return replace(timing, megabytes=memory(workers, timing))
        frames = work.setting.loop.rollout_length * work.num_envs if task == "actor_unroll" else 0
        return replace(timing, frames=frames, flops=workers[PORT].ask("side_function", "flops", task, work))


def time_learner(plan: Plan, work: Work) -> tuple[Timing, list[Sample], list[dict[str, float]]]:
    """The learner step, in alternation with a large matrix product; and the port's by stage."""
    with ready(plan, "learner_step", "learner_step", work) as (workers, timing):
        port = workers[PORT]
        port.ask("prepare", "matmul", "matmul", work)
        jobs = jobs_of(workers, timing.first_seconds) | {"matmul": partial(port.ask, "measure", "matmul")}
        in_turns(jobs, 1)
        samples = in_turns(jobs, plan.repeats)
        flops = port.ask("side_function", "flops", "learner_step", work)
        stages = port.ask("side_function", "stages", work, plan.repeats)
    matmul = samples.pop("matmul")
    return replace(timing, samples=samples, flops=flops), matmul, stages


def time_run(plan: Plan, work: Work) -> Timing:
    """Steps of a whole run in turns: while the buffer fills, the first that learns, and `repeats` more."""
    fills = work.setting.loop.batch_size // work.num_envs - 1
    loop = replace(work.setting.loop, num_steps=ENDLESS)
    endless = replace(work, setting=replace(work.setting, loop=loop), rollout={})
    with ready(plan, "catch_run", "catch_run", endless) as (workers, timing):
        jobs = jobs_of(workers, timing.first_seconds)
        filling = in_turns(jobs, fills - 1)  # making ready took the first of them
        compiling = in_turns(jobs, 1)
        first = {name: seconds + compiling[name][0].wall for name, seconds in timing.first_seconds.items()}
        timing = replace(timing, samples=in_turns(jobs, plan.repeats), first_seconds=first)
        timing = replace(timing, megabytes=memory(workers, timing))
    return replace(timing, filling=filling, steps_filling=fills, steps=RUN_STEPS)


def memory(workers: Mapping[str, Worker], timing: Timing) -> dict[str, float]:
    """The peak memory of each implementation's process so far, in megabytes."""
    return {name: workers[name].ask("memory") for name in timing.names}


def time_growth(plan: Plan, file: Path) -> list[Growth]:
    """The port's learner step with one size changed at a time, all sizes in turns."""
    places = [(axis, value) for axis, values in (plan.growth or {}).items() for value in values]
    if not places:
        return []
    flops = {}
    with closing(Worker(PORT, plan.threads)) as port:
        for axis, value in places:
            work = grown(file, axis, value)
            port.ask("prepare", f"{axis} {value}", "learner_step", work)
            flops[axis, value] = port.ask("side_function", "flops", "learner_step", work)
        jobs = {(axis, value): partial(port.ask, "measure", f"{axis} {value}") for axis, value in places}
        samples = in_turns(jobs, max(2, plan.repeats // 2))
    return [Growth(*place, samples[place], flops[place]) for place in places]


def load_average() -> str:
    """The machine's load over the last minute."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def run(plan: Plan, absent: Mapping[str, str]) -> Found:
    """Measures all of a plan."""
    before, timings, matmul, stages = load_average(), dict[str, Timing](), list[Sample](), list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        file, words = weights_for(Path(folder))
        work = make_work(file)
        for task in plan.tasks:
            names = ", ".join(plan.names_for(task))
            print(f"{TITLES[task]}: {names}; the first calls compile", file=sys.stderr, flush=True)
            if task == "learner_step":
                timings[task], matmul, stages = time_learner(plan, work)
                other = f"{task}_different"
                timings[other] = time_task(plan, task, other, workload.all_different(work))
            elif task == "catch_run":
                timings[task] = time_run(plan, work)
            else:
                timings[task] = time_task(plan, task, task, work)
            if task == "actor_unroll":
                many = f"{task}_{MANY_ENVS}"
                timings[many] = time_task(plan, task, many, workload.acting(work, MANY_ENVS))
        growth = time_growth(plan, file)
    loop = work.setting.loop
    machine = {
        "threads": plan.threads,
        "processors": os.cpu_count(),
        "load_before": before,
        "load_after": load_average(),
        "rounds": plan.repeats,
        "size": f"T = {loop.rollout_length - 1}, B = {loop.batch_size}, {work.num_envs} environments, 8x8 Catch",
    }
    return Found(timings, matmul, 2 * speed_port.MATMUL_SIZE**3, stages, growth, machine, words, absent)


def section(implementation_name: str, out: Path) -> page.Section:
    """The section of the page, quick; the port is timed whatever is reported on."""
    names, absent = installed()
    return section_of(run(quick(Plan(names=names, threads=cores())), absent), "python -m reports.speed --quick", out)


def quick(plan: Plan) -> Plan:
    """The same in about a minute: fewer rounds and sizes, no meta-update, and long compilations for the port alone."""
    tasks = [task for task in plan.tasks if task != "meta_update"] or plan.tasks
    return replace(plan, tasks=tasks, repeats=min(plan.repeats, 5), growth=QUICK_GROWTH, is_quick=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(prog="python -m reports.speed", description=__doc__, formatter_class=form)
    add, number = options.add_argument, dict[str, Any](type=int, metavar="N")
    add("--only", action="append", choices=TASKS, metavar="TASK", help=f"one of: {', '.join(TASKS)}")
    add("--impl", action="append", metavar="NAME", help="compare the port with this one (default: all installed)")
    add("--compile", action="store_true", help="also time the port with torch.compile")
    add("--repeats", **number, default=11, help="number of rounds (default: 11)")
    add("--threads", **number, default=cores(), help="threads per implementation (default: all processors)")
    add("--quick", action="store_true", help="fewer rounds and sizes: about a minute")
    add("--no-growth", action="store_true", help="skip the learner step at other sizes")
    add("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    add("--json", type=Path, metavar="FILE", help="write the figures for machines")
    return options


def chosen_plan(args: argparse.Namespace) -> tuple[Plan, dict[str, str]]:
    """The plan that the options ask for, and what is not installed."""
    if args.repeats < 1 or args.threads < 1:
        raise CannotRun("--repeats and --threads must be at least 1.")
    names, absent = installed()
    if args.impl:
        missing = [name for name in args.impl if name in absent]
        if missing:
            raise CannotRun(f"{missing[0]} cannot be timed here. {absent[missing[0]]}")
        names, absent = list(dict.fromkeys([PORT, *args.impl])), {}
    names += ["port_compiled"] if args.compile else []
    has_growth = not args.no_growth and (not args.only or "learner_step" in args.only)
    plan = Plan(args.only or TASKS, names, args.repeats, args.threads, GROWTH if has_growth else None)
    return replace(quick(plan), growth=QUICK_GROWTH if has_growth else None) if args.quick else plan, absent


def main(arguments: Sequence[str] | None = None) -> int:
    """0 every measured goal is reached, 1 one is missed, 2 could not run."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def report(args: argparse.Namespace) -> int:
        figures = run(*chosen_plan(args))
        path = page.write([section_of(figures, " ".join(["python -m reports.speed", *words]), args.out)], args.out)
        Console(width=120 if not sys.stdout.isatty() else None).print(terminal_table(figures))
        print(f"{in_words(figures)}\nThe page is {path}")
        write_json(args.json, figures.as_json())
        return 0 if all(goal.is_reached for goal in figures.goals()) else 1

    return exit_code(parser(), words, report)
