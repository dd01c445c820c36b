"""`python -m reports.meta_speed`: a meta-update of the notebook's size, the port's against the original's jitted one.

Both are measured in turns, in one run, so that a busy machine is busy for both: the port in its worker processes, the
original as its users run it. Compilation and the start of the workers are left out and told apart. Needs the original.

Example:
    python -m reports.meta_speed --rounds 5 --json speed.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parity.files import write_atomically
from port import optimizers
from port.meta_train import MetaTrainConfig, meta_gradient
from port.meta_train.population import DTYPE, generator
from port.meta_train.workers import Workers
from port.networks import init

MEGA = 2**20


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


class Port:
    """The port's meta-update, as `port.meta_train` does it."""

    def __init__(self, config: MetaTrainConfig, workers: int) -> None:
        """Starts the workers."""
        self.config, self.workers, self.step = config, Workers(config, workers), 0
        self.meta_params = init.init_meta_params(config.agent.meta_net, generator(config.seed, "meta_params"), DTYPE)
        self.opt_state = optimizers.init_adam(self.meta_params)

    def advance(self) -> None:
        """One meta-update."""
        grads = [c.grads for c in self.workers.contribute(self.step, self.meta_params)]
        rate = self.config.meta_learning_rate
        self.meta_params, self.opt_state, _ = meta_gradient.meta_update(self.meta_params, self.opt_state, grads, rate)
        self.step += 1

    def peak_megabytes(self) -> list[float]:
        """The most memory that each worker has had so far, Python and PyTorch included; empty where Linux is not."""
        peaks = []
        for pid in self.workers.pids:
            status = Path(f"/proc/{pid}/status")
            if status.is_file():
                line = next(row for row in status.read_text().splitlines() if row.startswith("VmHWM"))
                peaks.append(int(line.split()[1]) / 1024)
        return peaks


def original() -> Any:
    """The notebook's meta-update on the original; it decides on threads and vectors as its users let it."""
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    return importlib.import_module("reference.original.meta_update").Notebook()


def measure(rounds: int, workers: int) -> dict[str, Any]:
    """Seconds of both, in turns."""
    theirs = original()
    needed = theirs.compile()
    config = MetaTrainConfig()
    ours = Port(config, workers)
    try:
        first = timed(ours.advance)
        theirs.advance()
        pairs = [(timed(theirs.advance), timed(ours.advance)) for _ in range(rounds)]
        peaks = ours.peak_megabytes()
    finally:
        ours.workers.close()
    return {
        "original_seconds": statistics.median(pair[0] for pair in pairs),
        "port_seconds": statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(pair[1] / pair[0] for pair in pairs),
        "rounds": pairs,
        "original_compile_seconds": theirs.compile_seconds,
        "port_first_seconds": first,
        "original_megabytes": needed / MEGA,
        "port_megabytes": peaks,
        "workers": workers,
        "agents": len(config.boards),
    }


def sentences(found: dict[str, Any]) -> str:
    """The figures in words."""
    peaks = " and ".join(f"{peak:.0f}" for peak in found["port_megabytes"]) or "unknown"
    return (
        f"A meta-update of the notebook's size ({found['agents']} agents) takes the port {found['port_seconds']:.2f} s "
        f"and the original {found['original_seconds']:.2f} s: a ratio of {found['ratio']:.2f}.\n"
        f"Left out: the original's compilation, {found['original_compile_seconds']:.0f} s, and the port's first "
        f"meta-update, {found['port_first_seconds']:.1f} s.\n"
        f"Memory: the original's program needs {found['original_megabytes']:.0f} MB; the port's {found['workers']} "
        f"workers had at most {peaks} MB each, Python and PyTorch included."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """0 the port is not slower, 1 it is, 2 could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.meta_speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured (5)")
    parser.add_argument("--workers", type=int, default=2, help="the port's processes (2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures for machines")
    args = parser.parse_args(arguments)
    if args.rounds < 1 or args.workers < 1:
        print("reports.meta_speed: --rounds and --workers must be at least 1.", file=sys.stderr)
        return 2
    try:
        found = measure(args.rounds, args.workers)
    except ModuleNotFoundError as missing:
        print(f"reports.meta_speed: {missing.name} is not installed; `make original` brings it.", file=sys.stderr)
        return 2
    print(sentences(found))
    if args.json:
        write_atomically(args.json, json.dumps(found, indent=1).encode())
    return 0 if found["ratio"] <= 1.0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
