"""`python -m reference curves`: the original learns Catch, over seeds, and its curves are kept in fixtures/curves/.

Each seed runs in a process of its own, in float32, the rollout and the learner step compiled whole as in the original's
`eval` notebook. A seed that has ended is kept at once; a recording that was killed goes on with the others. The curves
of a setting take their place in fixtures/curves/ when all its seeds have ended.

Example:
    python -m reference curves --weights disco103 --seeds 10
    python -m reference curves --weights actor_critic --seeds 10 --jobs 2
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from parity.errors import CannotRun, FixtureError
from parity.files import canonical, write_atomically
from parity.runs import curves, life_runner
from parity.runs.curves import Recorded, Setting, file_name
from parity.runs.life_runner import Life, Work
from reference import identity

LEARNER = "original"
NUMERIC = ("jax", "jaxlib", "dm-haiku", "rlax", "distrax", "optax", "chex", "numpy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "--weights",
        action="append",
        choices=list(curves.settings()),
        metavar="SETTING",
        help=f"whose curves to record, may be given again: {', '.join(curves.settings())} (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="seeds 0 to N-1 (default: 10)")
    parser.add_argument("--steps", type=int, metavar="N", help="cut the lives short, to try the command")
    parser.add_argument(
        "--jobs", type=int, default=_cores(), metavar="N", help="processes (default: one for each core)"
    )
    parser.add_argument("--out", type=Path, default=curves.FOLDER, metavar="DIR", help="(default: fixtures/curves)")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(args: argparse.Namespace) -> int:
    """Records; 0 done, 2 could not run."""
    try:
        if args.seeds < 1 or args.jobs < 1:
            raise CannotRun("--seeds and --jobs take at least 1.")
        _require_original()
        every = curves.settings()
        chosen = [every[name].shortened(args.steps) for name in args.weights or every]
        work = Work(args.out / ".recording")
        wanted = [Life(LEARNER, setting, seed) for setting in chosen for seed in range(args.seeds)]
        life_runner.run(wanted, work, args.jobs)
        for setting in chosen:
            keep(setting, [life for life in wanted if life.setting is setting], work, args.out)
    except (CannotRun, FixtureError) as error:
        print(f"curves: {error}", file=sys.stderr)
        return 2
    _tidy(work, wanted)
    print(f"Recorded {len(wanted)} curves of {', '.join(setting.name for setting in chosen)} in {args.out}.")
    return 0


def _require_original() -> None:
    found = identity.identify()
    if found.state != "genuine":
        raise CannotRun(f"curves are recorded from the genuine original only. {found.message}")


def _tidy(work: Work, ended: list[Life]) -> None:
    """Removes what has been kept; lives of a recording that goes on some other time stay."""
    for life in ended:
        work.path(life).unlink(missing_ok=True)
    if not any(work.folder.iterdir()):
        work.folder.rmdir()


def keep(setting: Setting, ended: list[Life], work: Work, out: Path) -> None:
    """Puts the curves of a setting in their place, and says in the manifest what they are."""
    files = {life.seed: work.path(life).read_bytes() for life in ended}
    for seed, content in files.items():
        write_atomically(out / file_name(setting.name, seed), content)
    path = out / "manifest.json"
    known = Recorded(out).manifest["curves"] if path.is_file() else {}
    digests = {str(seed): hashlib.sha256(content).hexdigest() for seed, content in files.items()}
    entry = {"setting": setting.as_json(), "seeds": digests, **provenance()}
    write_atomically(path, canonical({"columns": curves.HEADER, "curves": {**known, setting.name: entry}}).encode())
    for stale in out.glob(f"{setting.name}_seed*.csv"):
        if stale.name not in {file_name(setting.name, seed) for seed in files}:
            stale.unlink()


def provenance() -> dict[str, Any]:
    """Where curves come from."""
    table = identity.load_table()
    return {
        "original": {"repository": table.repository, "commit": table.commit},
        "packages": {name: importlib.metadata.version(name) for name in NUMERIC},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "environment": life_runner.ENVIRONMENT,
    }
