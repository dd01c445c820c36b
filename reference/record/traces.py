"""`python -m reference trace`: the original learns Catch, and its runs are recorded action by action.

Of each run: a trace in float32 and one in float64, and traces of the same run with every initial parameter perturbed by
one unit in the last place, which end soon after the first action that differs. A finished trace is written at once;
called again, the command records what is missing.

Example:
    python -m reference trace bundled actor_critic --seeds 0,1,2 --perturbed 3
    python -m reference trace disco103 --seeds 0 --dtypes float32
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from parity.layers.spec import Arrays
from parity.runs import runner
from parity.runs.runner import Job, Runner, Workers
from parity.runs.spec import PRESETS, RunSpec, lockstep_preset, new_name
from parity.runs.trace import Recording, Trace, perturbed, trace_name
from parity.runs.trace_store import TRACES, TraceStore
from reference.jax_runtime import FLAGS
from reference.record.goldens import provenance, require_original
from reference.record.worker import refuse_the_port

DTYPES = ("float32", "float64")


class Variant(NamedTuple):
    """One trace of a run: its precision, and 0 or the direction in which its initial parameters are perturbed."""

    spec: RunSpec
    dtype: str
    direction: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "presets", nargs="*", type=_preset, metavar="PRESET", help=f"of {', '.join(PRESETS)} (default: all)"
    )
    parser.add_argument("--seeds", type=seeds, default=(0,), metavar="LIST", help="such as 0,1,2 (default: 0)")
    parser.add_argument("--dtypes", type=_dtypes, default=DTYPES, metavar="LIST", help="(default: float32,float64)")
    parser.add_argument("--perturbed", type=int, default=1, metavar="N", help="perturbed runs of each (default: 1)")
    parser.add_argument("--moved", dest="perturbed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, metavar="N", help="of each run (default: the notebook's 1000)")
    Workers.add_arguments(parser)
    parser.add_argument("--check", action="store_true", help="record again and print what would change")
    parser.add_argument("--out", type=Path, default=TRACES, metavar="DIR", help="(default: fixtures/traces)")


def _preset(text: str) -> str:
    name = new_name(text)
    if name not in PRESETS:
        raise argparse.ArgumentTypeError(f"there is no preset {text!r}; there are: {', '.join(PRESETS)}.")
    return name


def seeds(text: str) -> tuple[int, ...]:
    """`0,1,2` as numbers."""
    return tuple(int(part) for part in text.split(","))


def _dtypes(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if set(chosen) - set(DTYPES):
        raise argparse.ArgumentTypeError(f"{text!r} is not made of {' and '.join(DTYPES)}.")
    return chosen


def run(args: argparse.Namespace) -> int:
    """Records; 0 done or nothing would change, 1 something would change."""
    started = time.perf_counter()
    require_original()
    specs = [lockstep_preset(name, seed, args.steps) for name in args.presets or PRESETS for seed in args.seeds]
    variants = [Variant(s, dtype, k) for k in range(args.perturbed + 1) for dtype in args.dtypes for s in specs]
    store = TraceStore(args.out)
    with Runner(Workers.from_arguments(args, FLAGS)) as running:
        if args.check:
            return check(store, variants, running)
        count = record(store, variants, running)
    print(f"Recorded {count} traces in {args.out} ({time.perf_counter() - started:.0f} s).")
    return 0


def record(store: TraceStore, variants: Sequence[Variant], running: Runner) -> int:
    """Records the traces that are missing; returns how many. The perturbed runs come last: they need the others."""
    store.begin({name: value for name, value in provenance().items() if name not in ("format", "rules")})
    fresh = {v.spec.name: v.spec for v in variants if not store.has_run(v.spec)}
    jobs = [Job(f"{name}: parameters", first_params, (spec,)) for name, spec in fresh.items()]
    for _, (spec, params) in running.run(jobs, "initial parameters"):
        store.write_params(spec, params)
    count = 0
    for is_perturbed in (False, True):
        wanted = [v for v in variants if bool(v.direction) == is_perturbed and not store.has(*v)]
        for trace in _traces(store, wanted, running):
            store.write(trace)
            count += 1
    return count


def check(store: TraceStore, variants: Sequence[Variant], running: Runner) -> int:
    """Records what is there again; 0 the same bits, 1 not. Prints at which step the first difference is."""
    recorded, changed = [variant for variant in variants if store.has(*variant)], []
    for trace in _traces(store, recorded, running):
        before = store.load(trace.spec.name, trace.dtype, trace.direction)
        same = [bool((a == b).all()) for a, b in zip(before.digests, trace.digests, strict=False)]
        if before.steps != trace.steps or not all(same):
            changed.append(f"{trace.name}: other parameters from step {[*same, False].index(False)} on")
    print("\n".join(changed) if changed else f"Nothing would change in {len(recorded)} traces.")
    return 1 if changed else 0


def _traces(store: TraceStore, variants: Sequence[Variant], running: Runner) -> Iterator[Trace]:
    jobs = []
    for variant in variants:
        spec, dtype, direction = variant
        reference = store.load(spec.name, dtype) if direction else None
        steps = reference.steps if reference else spec.num_steps
        arguments = (variant, store.params(spec.name), reference)
        jobs.append(Job(trace_name(*variant), record_trace, arguments, steps, cost=spec.seconds))
    for _, trace in running.run(jobs, "traces"):
        yield trace


def first_params(spec: RunSpec) -> tuple[RunSpec, Arrays]:
    """The initial parameters of a run."""
    from reference.original.eval_loop import initial_params

    return spec, initial_params(spec)


def record_trace(variant: Variant, params: Arrays, reference: Trace | None) -> Trace:
    """Runs the original once."""
    import warnings

    from reference.original.eval_loop import OriginalLoop, scores

    warnings.simplefilter("ignore")
    spec, dtype, direction = variant
    recording = Recording(spec, dtype, direction, reference)
    for step in OriginalLoop(spec, dtype, perturbed(params, dtype, direction)).steps():
        actions, sums = step.rollout["actions"], scores(step.rollout["logits"], step.noise)
        recording.add(actions, sums, step.noise, step.logs, step.params)
        runner.report_step(len(recording))
        if recording.is_over:
            break
    refuse_the_port()
    return recording.trace()
