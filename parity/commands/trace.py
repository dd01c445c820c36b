"""`python -m parity trace`: the error of each layer along one learner step."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from parity.command_line import add_options, finite, write_json
from parity.errors import NothingCompared
from parity.files import write_atomically
from parity.goldens.check import verdict
from parity.goldens.store import Store
from parity.goldens.table import provenance
from parity.implementation import load, on_device
from parity.trace import report as tracing

HELP = "show the error of each layer along one learner step"
EXAMPLE = "python -m parity trace --impl port --out reports/out"
OUT = Path("reports/out")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    add_options(parser, "--impl", "--device", "--json")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"where trace.svg goes (default: {OUT})")


def run(args: argparse.Namespace) -> int:
    """Shows each layer's own error, and the error that it inherits."""
    store, implementation = Store(), on_device(load(args.impl), args.device)
    console = Console()
    print(provenance(store, implementation))
    taps = tracing.taps(store, implementation)
    console.print(tracing.terminal_table(taps))
    print(tracing.first_divergence(taps))
    write_atomically(args.out / "trace.svg", tracing.picture(taps).encode())
    print(f"The picture is {args.out / 'trace.svg'}")
    rows = [{"layer": t.layer, "own": t.own and t.own.as_json(), "in_the_chain": finite(t.inherited)} for t in taps]
    write_json(args.json, rows)
    if not any(tap.own for tap in taps):
        raise NothingCompared(f"{implementation.name} provides none of the layers along a learner step.")
    return verdict(tap.own for tap in taps if tap.own and tap.differs)
