"""`python -m reference tape`: lets the original learn Catch and records its lives, action by action.

Of each life: a tape in float32 and one in float64, and tapes of the same life with every initial parameter moved by
one unit in the last place, which end soon after the first action that differs. A finished tape is written at once;
called again, the command records what is missing.

Example:
    python -m reference tape embedded actor_critic --seeds 0,1,2 --moved 3
    python -m reference tape disco103 --seeds 0 --dtypes float32
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parity.errors import FixtureError, WeightsMissing
from parity.layers.spec import Arrays
from parity.runs.side_by_side import Piece, cores, run_all
from parity.runs.spec import KINDS, Life, life
from parity.runs.trace import Recording, Tape, moved, tape_name
from parity.runs.trace_store import TAPES, TapeStore
from reference.jax_runtime import FLAGS
from reference.record.goldens import RecordError, provenance, require_original
from reference.record.worker import refuse_the_port

DTYPES = ("float32", "float64")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of lives: {', '.join(KINDS)} (default: all)")
    parser.add_argument("--seeds", type=seeds, default=(0,), metavar="LIST", help="such as 0,1,2 (default: 0)")
    parser.add_argument("--dtypes", type=_dtypes, default=DTYPES, metavar="LIST", help="(default: float32,float64)")
    parser.add_argument("--moved", type=int, default=1, metavar="N", help="moved lives beside each (default: 1)")
    parser.add_argument("--steps", type=int, metavar="N", help="of each life (default: the notebook's 1000)")
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N", help="processes (default: one per core)")
    parser.add_argument("--check", action="store_true", help="record again and say what would change")
    parser.add_argument("--out", type=Path, default=TAPES, metavar="DIR", help="(default: fixtures/tapes)")


def seeds(text: str) -> tuple[int, ...]:
    """`0,1,2` as numbers."""
    return tuple(int(part) for part in text.split(","))


def _dtypes(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if set(chosen) - set(DTYPES):
        raise argparse.ArgumentTypeError(f"{text!r} is not made of {' and '.join(DTYPES)}.")
    return chosen


def run(args: argparse.Namespace) -> int:
    """Records; 0 done or nothing would change, 1 something would change, 2 could not run."""
    started = time.perf_counter()
    try:
        require_original()
        os.environ.update(FLAGS)
        loop = {} if args.steps is None else {"num_steps": args.steps}
        lives = [life(kind, seed, **loop) for kind in args.kinds or KINDS for seed in args.seeds]
        if args.check:
            return check(TapeStore(args.out), lives, args.dtypes, args.moved, args.jobs)
        count = record(TapeStore(args.out), lives, args.dtypes, args.moved, args.jobs)
    except (RecordError, FixtureError, WeightsMissing, ValueError) as error:
        print(f"tape: {error}", file=sys.stderr)
        return 2
    print(f"Recorded {count} tapes in {args.out} ({time.perf_counter() - started:.0f} s).")
    return 0


def record(store: TapeStore, lives: list[Life], dtypes: tuple[str, ...], directions: int, jobs: int) -> int:
    """Records the tapes that are missing; returns how many. The moved lives come last: they need the others."""
    store.begin({name: value for name, value in provenance().items() if name not in ("format", "rules")})
    fresh = [one for one in lives if not store.has_life(one)]
    for one, params in run_all(first_params, [Piece(f"{one.name}: parameters", 1, (one,)) for one in fresh], 1):
        store.write_params(one, params)
    count = 0
    for stage in (range(1), range(1, directions + 1)):
        wanted = [(one, dtype, k) for k in stage for dtype in dtypes for one in lives if not store.has(one, dtype, k)]
        for tape in run_all(live, [_piece(store, *one) for one in wanted], jobs):
            store.write(tape)
            count += 1
    return count


def check(store: TapeStore, lives: list[Life], dtypes: tuple[str, ...], directions: int, jobs: int) -> int:
    """Records what is there again; 0 the same bits, 1 not. Says at which step the first difference is."""
    known = [(one, dtype, k) for one in lives for dtype in dtypes for k in range(directions + 1)]
    pieces = [_piece(store, *one) for one in known if store.has(*one)]
    changed = []
    for tape in run_all(live, pieces, jobs):
        before = store.load(tape.life.name, tape.dtype, tape.direction)
        same = [bool((a == b).all()) for a, b in zip(before.digests, tape.digests, strict=False)]
        if before.steps != tape.steps or not all(same):
            changed.append(f"{tape.name}: other parameters from step {[*same, False].index(False)} on")
    print("\n".join(changed) if changed else f"Nothing would change in {len(pieces)} tapes.")
    return 1 if changed else 0


def _piece(store: TapeStore, of: Life, dtype: str, direction: int) -> Piece:
    beside = store.load(of.name, dtype) if direction else None
    name = tape_name(of, dtype, direction)
    steps = of.loop.num_steps if beside is None else beside.steps
    return Piece(name, steps, (of, dtype, direction, store.params(of.name), beside))


def first_params(of: Life, tell: Callable[[int], None]) -> tuple[Life, Arrays]:
    """The initial parameters of a life."""
    from reference.original.eval_loop import initial_params

    return of, initial_params(of)


def live(of: Life, dtype: str, direction: int, params: Arrays, beside: Tape | None, tell: Callable[[int], Any]) -> Tape:
    """Lives one life of the original and gives its tape."""
    import warnings

    from reference.original.eval_loop import OriginalLoop, perturbed

    warnings.simplefilter("ignore")
    recording = Recording(of, dtype, direction, beside)
    for step in OriginalLoop(of, dtype, moved(params, dtype, direction)).steps():
        actions, scores = step.rollout["actions"], perturbed(step.rollout["logits"], step.noise)
        recording.add(actions, scores, step.noise, step.logs, step.params)
        tell(len(recording))
        if recording.is_over:
            break
    refuse_the_port()
    return recording.tape()
