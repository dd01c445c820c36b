"""`python -m parity list | check`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from parity.check import Outcome, check_layer
from parity.implementation import CannotRun, load
from parity.layers import REGISTRY
from parity.store import FixtureError, Store, write_atomically
from parity.table import closing_lines, provenance, terminal_table


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(prog="python -m parity", description="Is an implementation of Disco Disco?")
    commands = root.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="the layers", epilog="example: python -m parity list values/retrace")
    checking = commands.add_parser(
        "check",
        help="compare an implementation with the recorded original",
        epilog="example: python -m parity check values/retrace meta/whole --impl port --json rows.json",
    )
    for command in (listing, checking):
        command.add_argument("layers", nargs="*", metavar="LAYER", help="default: all of them")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the result for machines")
    checking.add_argument("--impl", default="port", metavar="NAME", help="port, original, or package.module:attribute")
    return root


def chosen(layers: Sequence[str], known: Sequence[str]) -> list[str]:
    """The named layers in data-flow order; all of them if none is named."""
    unknown = [name for name in layers if name not in known]
    if unknown:
        raise CannotRun(f"No layer is called {unknown[0]!r}; `python -m parity list` shows them all.")
    return [name for name in known if not layers or name in layers]


def list_layers(args: argparse.Namespace) -> int:
    """Prints each layer with its inputs and outputs."""
    entries = []
    for name in chosen(args.layers, list(REGISTRY)):
        layer = REGISTRY[name]
        inputs = {k: v.describe() for k, v in layer.inputs(layer.settings).items()}
        outputs = {k: v.describe() for k, v in layer.outputs(layer.settings).items()}
        wrt = layer.differentiable(layer.settings)
        entry = {"layer": name, "summary": layer.summary, "inputs": inputs, "outputs": outputs, "vjp": wrt}
        entries.append({**entry, "settings": layer.settings, "cases": [case.name for case in layer.cases]})
        print(f"{name:28} {layer.summary}")
        if args.layers:
            print("\n".join(f"  in  {k}: {v}{' (VJP)' if k in wrt else ''}" for k, v in inputs.items()))
            print("\n".join(f"  out {k}: {v}" for k, v in outputs.items()))
            print(f"  settings: {layer.settings}\n  cases: {', '.join(case.name for case in layer.cases)}")
    _write_json(args.json, entries)
    return 0


def check(args: argparse.Namespace) -> int:
    """Compares, prints the table, and says what differs."""
    store, implementation = Store(), load(args.impl)
    console = Console()
    console.print(provenance(store, implementation.name, implementation.description), highlight=False)
    outcome = Outcome()
    for layer in track(chosen(args.layers, store.layers()), "comparing", console=Console(stderr=True), transient=True):
        check_layer(store, implementation, layer, outcome)
    console.print(terminal_table(outcome.rows))
    for line in closing_lines(outcome):
        console.print(line, highlight=False, markup=False)
    _write_json(args.json, [row.as_json() for row in outcome.rows])
    return 1 if outcome.different else 0


def _write_json(path: Path | None, content: object) -> None:
    if path is not None:
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run."""
    args = parser().parse_args(arguments)
    try:
        return list_layers(args) if args.command == "list" else check(args)
    except (CannotRun, FixtureError) as error:
        print(f"parity: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
