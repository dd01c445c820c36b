"""`python -m reports.lockstep`: the port lives the original's lives on Catch, and is compared action by action.

The port gets the original's initial parameters, its noise for every action, its ball columns and its replay indices;
actions, replay buffer and updates are its own. The original's life is a tape, or, with --live, is lived here and now.
Beside it stands how the original parts from itself, with its initial parameters moved by one unit in the last place.
No two programs, and no moved original, act alike to the end of a life; with --renew the port goes on, every so many
steps, from where the original is, and no action at all may differ; the learner's whole state is compared as well.

Example:
    python -m reports.lockstep --quick
    python -m reports.lockstep --live --kinds embedded --seeds 7 --steps 300
    python -m reports.lockstep --live --renew 100 --kinds disco103 --seeds 7    # no action may differ, to the end
    python -m reports.lockstep --plant retrace_index_too_late
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from parity.errors import CannotRun, FixtureError, WeightsMissing
from parity.files import canonical, write_atomically
from parity.layers.spec import Arrays
from parity.mutants import edits_of
from parity.mutants.coverage import source_digest
from parity.mutants.mutate import Edit
from parity.runs.lockstep import compare, drift_ratio
from parity.runs.side_by_side import Piece, cores, run_all
from parity.runs.spec import KINDS, Life, kind_of, meta_params
from parity.runs.spec import life as described
from parity.runs.trace import Tape, tape_bytes, tape_from
from parity.runs.trace_store import TapeStore
from reports import page
from reports.lockstep import port_run, resync
from reports.lockstep.section import TITLE as TITLE
from reports.lockstep.section import section_of, summary
from reports.lockstep.verdict import Lived, Verdict

QUICK = {"disco103": 60, "embedded": 300}  # steps at most, by kind; actor-critic has 120
DTYPES = ("float64", "float32")
LIVE_MOVED = 2


@dataclass(frozen=True)
class Plan:
    """What to live.

    Attributes:
        store: the original's tapes.
        kinds: of lives; none means all.
        seeds: of lives; none means all.
        dtypes: in which to live.
        steps: at most, of each life, by its kind; all that its tape has where nothing is said.
        edits: changes to the port.
        jobs: processes.
        kept: folder for lives that are finished, so that nothing is lived twice.
        is_live: whether the tapes were made for this run.
    """

    store: TapeStore
    kinds: Sequence[str] = ()
    seeds: Sequence[int] = ()
    dtypes: Sequence[str] = DTYPES
    steps: Mapping[str, int] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    jobs: int = field(default_factory=cores)
    kept: Path = page.OUT / "lockstep"
    is_live: bool = False

    def lives(self) -> dict[str, Life]:
        """The lives to live."""
        found = {
            name: life
            for name, life in self.store.lives().items()
            if (not self.kinds or kind_of(life) in self.kinds) and (not self.seeds or life.seed in self.seeds)
        }
        if not found:
            raise CannotRun(
                f"There is no tape of such a life in {self.store.root}; `python -m reference tape` makes one."
            )
        return found


def _key(tape: Tape, edits: Sequence[Edit]) -> str:
    """Changes with everything that the port's life depends on."""
    parts = [source_digest(), *(str(edit) for edit in edits), torch.__version__, tape.name, str(tape.life)]
    found = hashlib.sha256("\n".join(parts).encode())
    for array in (tape.actions, tape.digests, tape.noise):
        found.update(array.tobytes())
    return found.hexdigest()[:16]


def _kept(kept: Path, beside: Tape, edits: Sequence[Edit]) -> Path:
    """Where the port's life beside a tape is kept."""
    return kept / f"{beside.name}.{_key(beside, edits)}.safetensors"


def live_and_keep(
    life: Life, dtype: str, params: Arrays, beside: Tape, edits: Sequence[Edit], kept: Path, tell: Callable[[int], Any]
) -> Tape:
    """The port's life beside a tape, written down as soon as it is over."""
    tape = port_run.live(life, dtype, params, beside, edits, tell)
    write_atomically(_kept(kept, beside, edits), tape_bytes(tape))
    return tape


def lived_before(pieces: Sequence[Piece]) -> dict[str, Tape]:
    """The lives that the same port has lived before, by the names of their pieces."""
    found = {}
    for piece in pieces:
        life, dtype, _, beside, edits, kept = piece.arguments
        path = _kept(kept, beside, edits)
        if path.is_file():
            found[piece.name] = tape_from(path.read_bytes(), life, dtype, 0)
    return found


def _piece(plan: Plan, life: Life, dtype: str) -> Piece:
    tape = _tape(plan, life.name, dtype)
    given = (life, dtype, plan.store.params(life.name), tape, plan.edits, plan.kept)
    return Piece(f"{life.name} in {dtype}", tape.steps, given)


def _tape(plan: Plan, name: str, dtype: str, direction: int = 0) -> Tape:
    tape = plan.store.load(name, dtype, direction)
    return tape.cut(plan.steps.get(kind_of(tape.life), tape.steps))


def _lived(plan: Plan, got: Tape) -> Lived:
    """The port's life beside the tape, and the original's others beside it too."""
    name, dtype = got.life.name, got.dtype
    ref, known = _tape(plan, name, dtype), plan.store.tapes(name)
    own = {f"moved {k}": compare(ref, _tape(plan, name, dtype, k)) for of, k in known if of == dtype and k}
    wide, to_truth = None, float("nan")
    if dtype == "float32" and ("float64", 0) in known:
        truth = _tape(plan, name, "float64")
        wide, to_truth = compare(ref, truth), drift_ratio(compare(truth, got), [compare(truth, ref)])
    return Lived(kind_of(got.life), name, dtype, compare(ref, got), own, wide, to_truth)


def run(plan: Plan) -> Verdict:
    """Lives all lives of a plan and judges them."""
    started, skipped, pieces = time.perf_counter(), dict[str, str](), list[Piece]()
    for name, life in plan.lives().items():
        try:
            meta_params(life)
        except WeightsMissing as error:
            skipped[name] = str(error)
            continue
        recorded = [dtype for dtype, direction in plan.store.tapes(name) if not direction and dtype in plan.dtypes]
        pieces += [_piece(plan, life, dtype) for dtype in recorded]
    if not pieces:
        raise CannotRun("; ".join(skipped.values()) or "There is no tape in these precisions.")
    pieces.sort(key=lambda piece: -piece.steps * sum(array.size for array in piece.arguments[2].values()))
    before = lived_before(pieces)
    new = run_all(
        live_and_keep, [piece for piece in pieces if piece.name not in before], plan.jobs
    )  # the longest first
    lived = [_lived(plan, tape) for tape in (*before.values(), *new)]
    lived.sort(key=lambda one: (KINDS.index(one.kind), one.dtype, one.life))
    return Verdict(lived, skipped, time.perf_counter() - started)


def record_live(args: argparse.Namespace, folder: Path) -> TapeStore:
    """Lets the original live the lives that are asked for, in processes of its own."""
    command = [sys.executable, "-m", "reference", "tape", *(args.kinds or ("embedded",)), "--out", str(folder)]
    command += ["--seeds", ",".join(str(seed) for seed in args.seeds or (0,)), "--jobs", str(args.jobs)]
    command += ["--steps", str(args.steps)] if args.steps else []
    if subprocess.run([*command, "--moved", str(LIVE_MOVED)], check=False).returncode:
        raise CannotRun("The original could not live here; why stands above. Without --live its tapes are used.")
    return TapeStore(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reports.lockstep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", default=[], choices=KINDS, help="of lives (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="of lives (default: all)")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES, help="(default: both)")
    parser.add_argument("--steps", type=int, metavar="N", help="of each life (default: all)")
    parser.add_argument("--quick", action="store_true", help="the first steps of each life, within 3 minutes")
    parser.add_argument("--live", action="store_true", help="run the original now instead of reading its tapes")
    parser.add_argument(
        "--renew", type=int, metavar="N", help="with --live, in float64: take over the original's state every N steps"
    )
    parser.add_argument("--tapes", type=Path, metavar="DIR", help="where they are (default: fixtures/tapes)")
    parser.add_argument(
        "--plant",
        nargs="+",
        default=[],
        metavar="NAME",
        help="mistakes of the catalogue, or `slower`: every fifth update is lost",
    )
    parser.add_argument(
        *("--edit",), nargs=3, action="append", default=[], metavar=("MODULE", "OLD", "NEW"), help="change the port"
    )
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N", help="processes (default: one per core)")
    parser.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the summary for machines here too")
    return parser


def _edits(args: argparse.Namespace) -> tuple[Edit, ...]:
    return (*edits_of(args.plant), *(Edit(*edit) for edit in args.edit))


def _kinds_and_seeds(args: argparse.Namespace) -> tuple[Sequence[str], Sequence[int]]:
    """Those that are asked for; live, one life if none is."""
    return args.kinds or (("embedded",) if args.live else ()), args.seeds or ((0,) if args.live else ())


def _plan(args: argparse.Namespace) -> Plan:
    if args.live and args.quick and args.steps is None:
        args.steps = min(QUICK.values())  # so that the original lives no longer either
    steps = dict.fromkeys(KINDS, args.steps) if args.steps else QUICK if args.quick else {}
    kept = args.out / "lockstep"
    store = record_live(args, kept / "live") if args.live else TapeStore(args.tapes) if args.tapes else TapeStore()
    return Plan(store, *_kinds_and_seeds(args), args.dtypes, steps, _edits(args), args.jobs, kept, args.live)


def judged(plan: Plan) -> tuple[Verdict, dict[str, Any]]:
    """The verdict on a plan, and where its tapes come from."""
    return run(plan), plan.store.manifest


def renewed(args: argparse.Namespace) -> tuple[Verdict, dict[str, Any]]:
    """The verdict on lives in which the port takes over the original's state again and again; the original's origin."""
    if not args.live or args.quick or args.tapes or resync.DTYPE not in args.dtypes:
        raise CannotRun(f"--renew goes with --live, without --quick and --tapes, and is in {resync.DTYPE}.")
    kinds, seeds = _kinds_and_seeds(args)
    loop = {"num_steps": args.steps} if args.steps else {}
    lives = [described(kind, seed, **loop) for kind in kinds for seed in seeds]
    shortest = min(life.loop.num_steps for life in lives)
    if not 1 <= args.renew < shortest:
        raise CannotRun(f"--renew takes from 1 step to {shortest - 1}, one less than a life has; got {args.renew}.")
    origin = resync.provenance()
    return resync.run(lives, args.renew, _edits(args), args.jobs, args.out / "lockstep" / "live", origin), origin


def section(implementation_name: str, out: Path) -> page.Section:
    """The section of the page, quick; only the port can live, whatever is reported on."""
    plan = Plan(TapeStore(), steps=QUICK, kept=out / "lockstep")
    return section_of(run(plan), plan.store.manifest, "python -m reports.lockstep --quick", out)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = _parser().parse_args(given)
    try:
        if args.steps is not None and args.steps < 1:
            raise CannotRun("--steps takes at least 1.")
        verdict, origin = renewed(args) if args.renew is not None else judged(_plan(args))
        command = " ".join(["python -m reports.lockstep", *given])
        made = section_of(verdict, origin, command, args.out, args.live)
    except (CannotRun, FixtureError) as error:
        print(f"reports.lockstep: {error}", file=sys.stderr)
        return 2
    path = page.write([made], args.out)
    if args.json:
        write_atomically(args.json, canonical(summary(verdict)).encode())
    for group in verdict.groups:
        print(group.sentence())
    print(f"{made.verdict}\nThe page is {path}")
    return 0 if verdict.is_equal else 1
