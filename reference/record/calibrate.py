"""`python -m reference calibrate`: holds the original, compiled in other ways, and the stand-in to the goldens.

Two compilations of one program differ by rounding alone. So what they need of C shows whether the rule of equality is
calibrated. The evidence is `fixtures/calibration.json`; a layer that is there is not done again, unless it is named.

Example:
    python -m reference calibrate values/retrace
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.command_line import end_with_parent
from parity.errors import WeightsMissing
from parity.files import canonical, write_atomically
from parity.goldens.calibration import FILE, Calibration
from parity.goldens.check import Judge, load
from parity.goldens.store import FIXTURES, Store
from parity.runs import runner
from parity.runs.runner import Job, Workers
from reference.devices import flags_of
from reference.record.goldens import RecordError, require_original

# Op by op these take half an hour; their parts are run eagerly, each in its own layer.
TOO_LONG_EAGERLY = (
    "meta/",
    "disco/",
    "agent/",
    "meta_train/outer_loss",
    "meta_train/second_derivative",
    "distributed/",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="(default: those that are not done yet)")
    Workers.add_arguments(parser)
    parser.add_argument("--out", type=Path, default=FIXTURES, metavar="DIR", help="fixtures (default: fixtures/)")


def run(args: argparse.Namespace) -> int:
    """Calibrates what is not done yet, or what is named."""
    require_original()
    store = Store(args.out)
    evidence = _read(store)
    waiting = args.layers or [name for name in store.layers() if name not in evidence["layers"]]
    jobs = [Job(name, _in_subprocess, (name, args.out.resolve())) for name in waiting]
    for job, held in runner.run_all(jobs, Workers.from_arguments(args), "layers"):
        evidence["layers"][job.name] = held
        write_atomically(args.out / FILE, canonical(evidence).encode())
        print(f"{job.name}  {sum(h['comparisons'] for h in held.values())} comparisons", flush=True)
    return 0


def _read(store: Store) -> dict[str, Any]:
    """The evidence that these goldens have already."""
    fresh = {"manifest": store.manifest["digest"], "layers": {}}
    path = store.root / FILE
    kept = json.loads(path.read_text()) if path.is_file() else fresh
    return kept if kept["manifest"] == fresh["manifest"] else fresh


def _in_subprocess(layer: str, root: Path) -> dict[str, Any]:
    """One layer in a process of its own, since jaxlib 0.8.1 writes past buffers: with vectors of 64 bits it does not.

    At 128 bits, what it overwrites shows as a gradient of 1e-310 where there is none, as another number in the sixth
    digit, or as a crash. At 64 bits, it cannot compile every product of matrices.
    """
    flags = flags_of(layer)
    for width, more in ((64, []), (128, []), (128, ["--values-only"])):
        xla = flags["XLA_FLAGS"].replace("vector_width=128", f"vector_width={width}")
        command = [sys.executable, "-m", "reference.record.calibrate", str(root), layer, *more]
        environment = {**os.environ, **flags, "XLA_FLAGS": xla}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
        if done.returncode == 0:
            return json.loads(done.stdout.splitlines()[-1])
    raise RecordError(f"the process that holds {layer} to its goldens failed; what it printed stands above.")


def calibrate(store: Store, layer: str, values_only: bool = False) -> Calibration:
    """All cases of a layer, in every way."""
    from reference.original import implementation as original
    from reference.standin import implementation as standin

    held, settings = Calibration(), ""
    cases = sorted(store.cases(layer), key=lambda case: canonical(store.entry(layer, case)["settings"]))
    first = store.cases(layer)[0]
    for case in cases:
        if settings != (settings := canonical(store.entry(layer, case)["settings"])):
            for implementation in (original, original.as_users_compile, original.eagerly, standin):
                implementation.forget_programs()  # a process may have only so many memory maps
        try:
            golden = load(store, layer, case)
        except WeightsMissing:
            continue
        users = replace(golden, vjps={}) if values_only else golden
        held.add("original as users compile it", Judge(original.as_users_compile, ("float32",)).rows(users))
        held.add("original at optimisation level 0", Judge(original).rows(golden))
        held.add("stand-in", Judge(standin).rows(golden))
        if (case == first or golden.origin != "generated") and not layer.startswith(TOO_LONG_EAGERLY):
            held.add("original, eagerly", Judge(original.eagerly, ("float64",)).rows(golden))
    return held


if __name__ == "__main__":
    end_with_parent()
    warnings.simplefilter("ignore")
    print(json.dumps(calibrate(Store(Path(sys.argv[1])), sys.argv[2], "--values-only" in sys.argv).as_json()))
