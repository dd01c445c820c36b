"""`python -m reference curves`: the original learns Catch, over seeds, and its curves are kept in fixtures/curves/.

Each run has a core of its own and computes in float32, the rollout and the learner step compiled whole as in the
original's `eval` notebook. A run that has ended is kept at once; a recording that was killed goes on with the others.
The curves of a preset take their place in fixtures/curves/ when all its seeds have ended.

Example:
    python -m reference curves --presets disco103 --seeds 10
    python -m reference curves --presets actor_critic --seeds 10 --jobs 2
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parity.errors import CannotRun
from parity.files import write_atomically
from parity.goldens import manifests
from parity.runs import curves, learners
from parity.runs.curves import Curve, Recorded, file_name, manifest_entry, to_csv
from parity.runs.learners import TrainingRun
from parity.runs.runner import Workers
from parity.runs.spec import PRESETS, RunSpec, new_name, preset
from reference import identity

LEARNER = "original"
NUMERIC = ("jax", "jaxlib", "dm-haiku", "rlax", "distrax", "optax", "chex", "numpy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "--presets", nargs="+", type=new_name, choices=PRESETS, metavar="NAME", help=f"(default: {' '.join(PRESETS)})"
    )
    parser.add_argument(
        "--weights", dest="presets", action="append", type=new_name, choices=PRESETS, help=argparse.SUPPRESS
    )
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="seeds 0 to N-1 (default: 10)")
    parser.add_argument("--steps", type=int, metavar="N", help="cut the runs short, to try the command")
    Workers.add_arguments(parser)
    parser.add_argument("--out", type=Path, default=curves.FOLDER, metavar="DIR", help="(default: fixtures/curves)")


def run(args: argparse.Namespace) -> int:
    """Records the runs that are not kept yet, and puts whole presets in their place."""
    if args.seeds < 1:
        raise CannotRun("--seeds takes at least 1.")
    _require_original()
    workers = Workers.from_arguments(args)
    specs = [preset(name).with_steps(args.steps) for name in args.presets or PRESETS]
    work = args.out / ".recording"
    runs = [TrainingRun(LEARNER, spec.with_seed(seed)) for spec in specs for seed in range(args.seeds)]
    trained = learners.train_all(runs, work, workers)
    for spec in specs:
        mine = {run.spec.seed: trained[run.key] for run in runs if run.spec.preset == spec.preset}
        keep(spec, mine, args.out)
    _tidy(work, runs)
    print(f"Recorded {len(runs)} curves of {', '.join(spec.preset for spec in specs)} in {args.out}.")
    return 0


def _require_original() -> None:
    original = identity.identify()
    if original.state != "genuine":
        raise CannotRun(f"curves are recorded from the genuine original only. {original.message}")


def _tidy(work: Path, runs: Sequence[TrainingRun]) -> None:
    """Removes what has been kept; runs of a recording that goes on some other time stay."""
    for run in runs:
        run.path(work).unlink(missing_ok=True)
    if not any(work.iterdir()):
        work.rmdir()


def keep(spec: RunSpec, trained: dict[int, Curve], out: Path) -> None:
    """Puts the curves of a preset, by seed, in their place, and their provenance in the manifest."""
    files = {seed: to_csv(curve) for seed, curve in trained.items()}
    for seed, content in files.items():
        write_atomically(out / file_name(spec.preset, seed), content)
    path = out / "manifest.json"
    others = Recorded(out).manifest["curves"] if path.is_file() else {}
    digests = {str(seed): hashlib.sha256(content).hexdigest() for seed, content in files.items()}
    entry = {"spec": manifest_entry(spec), "seeds": digests, **provenance()}
    manifests.write(path, {"columns": curves.HEADER, "curves": {**others, spec.preset: entry}})
    for stale in out.glob(f"{spec.preset}_seed*.csv"):
        if stale.name not in {file_name(spec.preset, seed) for seed in files}:
            stale.unlink()


def provenance() -> dict[str, Any]:
    """Where curves come from."""
    table = identity.load_table()
    return {
        "original": {"repository": table.repository, "commit": table.commit},
        "packages": {name: importlib.metadata.version(name) for name in NUMERIC},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "environment": learners.ENVIRONMENT,
    }
