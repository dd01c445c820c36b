"""`python -m parity check`: compares an implementation with the recorded original."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import track

from parity.command_line import ExitCode, add_options, chosen, require_some, write_json
from parity.errors import NothingCompared
from parity.goldens import expected, findings
from parity.goldens.check import Outcome, asked_precisions, check_layer, verdict
from parity.goldens.compared import check_as_json
from parity.goldens.store import Store
from parity.goldens.table import WIDE, coverage, notes, provenance, terminal_table, totals
from parity.implementation import load, on_device
from parity.timeout import limited
from parity.tolerance import PRECISIONS

HELP = "compare an implementation with the recorded original"
EXAMPLE = "python -m parity check values/retrace meta/whole --impl port --json rows.json"
BELOW = "below float32 the implementation answers in float32 (default: both float64 and float32)"
LINES = 40  # of output, without --verbose
LAYERS, NAMES = 18, 5  # in the table, where more are shown in groups; in one line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    add_options(parser, "layers", "--impl", "--device", "--json", "--timeout")
    parser.add_argument("--expected", type=Path, metavar="FILE", help="TOML file of known divergences")
    parser.add_argument("--write-expected", type=Path, metavar="FILE", help="write what differs as known divergences")
    parser.add_argument("--precision", choices=list(PRECISIONS), help=f"use the tolerance of this precision; {BELOW}")
    parser.add_argument("--strict", action="store_true", help="what is not provided or cannot run is a failure")
    shown = f"every layer and every comparison that differs (default: {LINES} lines)"
    parser.add_argument("--verbose", action="store_true", help=shown)


def run(args: argparse.Namespace) -> int:
    """Compares, and prints the table and the differences."""
    store, implementation = Store(), limited(on_device(load(args.impl), args.device), args.timeout)
    require_some(implementation)
    layers, precisions = chosen(args.layers, store.layers()), asked_precisions(args.precision)
    entries = expected.asked(expected.load(args.expected), layers, precisions)
    print(provenance(store, implementation))
    outcome = Outcome()
    for layer in track(layers, "comparing", console=Console(stderr=True), transient=True):
        check_layer(store, implementation, layer, outcome, precisions)
    show(outcome, entries, coverage(implementation), args.verbose)
    write_json(args.json, check_as_json(outcome, entries, implementation, store))
    if args.write_expected is not None:
        print(expected.write(args.write_expected, outcome.rows, entries))
    lacking = [*outcome.not_provided, *(f"the VJP of {layer}" for layer in sorted(outcome.without_gradients))]
    lacking += [f"{case} (not run)" for case in outcome.skipped]
    if args.strict and lacking:
        print(f"--strict: {lacking[0]}{f' and {len(lacking) - 1} more are' if lacking[1:] else ' is'} not provided.")
    if not outcome.rows:
        raise NothingCompared("Nothing was compared: all that was asked for is not provided, or cannot run here.")
    is_bad = expected.problems(outcome.rows, entries) or (args.strict and lacking)
    return ExitCode.DIFFERENT if is_bad else verdict(expected.unexpected(outcome.rows, entries))


def show(outcome: Outcome, entries: list[expected.Divergence], provided: str, is_verbose: bool) -> None:
    """Prints the table, what differs in groups, notes and the verdict."""
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    table = terminal_table(outcome.rows, console.width, None if is_verbose else LAYERS)
    console.print(table)
    below = [*notes(outcome, entries, None if is_verbose else NAMES), *totals(outcome, entries), provided]
    room = None if is_verbose else LINES - 4 - table.row_count - len(below)  # provenance, heading, --strict and so on
    different = expected.unexpected(outcome.rows, entries)
    print("\n".join([*findings.lines(different, outcome.rows, room), *below]))
