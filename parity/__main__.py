"""`python -m parity list | check | trace | diagnose | new`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from parity import diagram
from parity.errors import CannotRun, FixtureError
from parity.files import write_atomically
from parity.goldens import expected
from parity.goldens.check import Outcome, asked_precisions, check_layer
from parity.goldens.expected import problems, unexpected
from parity.goldens.store import Store
from parity.goldens.table import closing_lines, coverage, provenance, terminal_table
from parity.implementation import Implementation, did_you_mean, load
from parity.layers import REGISTRY
from parity.mutants import diagnose as diagnosing
from parity.new import template
from parity.tolerance import PRECISIONS
from parity.trace import report as tracing

OUT = Path("reports/out")
BELOW = "below float32 the implementation answers in float32 (default: both float64 and float32)"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(
        prog="python -m parity",
        description="Checks whether an implementation of Disco computes what DeepMind's code computes.",
    )
    commands = root.add_subparsers(dest="command", required=True)
    listing = commands.add_parser(
        "list",
        help="list the layers, or inputs and outputs of one",
        epilog="example: python -m parity list values/retrace",
    )
    checking = commands.add_parser(
        "check",
        help="compare an implementation with the recorded original",
        epilog="example: python -m parity check values/retrace meta/whole --impl port --json rows.json",
    )
    listing.add_argument("--diagram", type=Path, metavar="FILE", help="draw the layers and all that feeds them, as SVG")
    asking = commands.add_parser(
        "diagnose",
        help="name the known porting mistake that explains a difference",
        epilog="example: python -m parity diagnose values/retrace --impl my_adapter:implementation",
    )
    asking.add_argument("--impl", default="port", metavar="NAME", help="implementation to diagnose")
    for command in (listing, checking, asking):
        command.add_argument("layers", nargs="*", metavar="LAYER", help="default: all of them")
        command.add_argument("--json", type=Path, metavar="FILE", help="write the result for machines")
    checking.add_argument("--impl", default="port", metavar="NAME", help="port, original, or package.module:attribute")
    checking.add_argument("--expected", type=Path, metavar="FILE", help="TOML file of known divergences")
    checking.add_argument("--precision", choices=list(PRECISIONS), help=f"use the tolerance of this precision; {BELOW}")
    checking.add_argument("--strict", action="store_true", help="layers that are not provided are failures")
    along = commands.add_parser(
        "trace",
        help="show the error of each layer along one learner step",
        epilog="example: python -m parity trace --impl port --out reports/out",
    )
    along.add_argument("--impl", default="port", metavar="NAME", help="implementation to trace")
    along.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"where trace.svg goes (default: {OUT})")
    along.add_argument("--json", type=Path, metavar="FILE", help="write the result for machines")
    starting = commands.add_parser(
        "new", help="write a template of an adapter", epilog="example: python -m parity new my_adapter.py"
    )
    starting.add_argument("file", type=Path, help="file to write; it must not exist yet")
    return root


def chosen(layers: Sequence[str], known: Sequence[str]) -> list[str]:
    """The named layers in data-flow order; all of them if none is named."""
    unknown = [name for name in layers if name not in known]
    if unknown:
        raise CannotRun(f"No layer is called {unknown[0]!r}. {did_you_mean(unknown[0])}")
    return [name for name in known if not layers or name in layers]


def list_layers(args: argparse.Namespace) -> int:
    """Prints each layer with its inputs and outputs; or draws the layers."""
    entries, names = [], chosen(args.layers, list(REGISTRY))
    for name in names:
        layer = REGISTRY[name]
        inputs = {k: v.describe() for k, v in layer.inputs(layer.settings).items()}
        outputs = {k: v.describe() for k, v in layer.outputs(layer.settings).items()}
        wrt = layer.differentiable(layer.settings)
        entry = {"layer": name, "summary": layer.summary, "inputs": inputs, "outputs": outputs, "vjp": wrt}
        entries.append({**entry, "settings": layer.settings, "cases": [case.name for case in layer.cases]})
        if args.diagram is not None:
            continue
        print(f"{name:28} {layer.summary}")
        if args.layers:
            print("\n".join(f"  in  {k}: {v}{' (VJP)' if k in wrt else ''}" for k, v in inputs.items()))
            print("\n".join(f"  out {k}: {v}" for k, v in outputs.items()))
            print(f"  settings: {layer.settings}\n  cases: {', '.join(case.name for case in layer.cases)}")
    _write_json(args.json, entries)
    if args.diagram is not None:
        write_atomically(args.diagram, diagram.svg(names).encode())
        print(f"The picture is {args.diagram}")
    return 0


def check(args: argparse.Namespace) -> int:
    """Compares, and prints the table and the differences."""
    store, implementation, entries = Store(), load(args.impl), expected.load(args.expected)
    _require_some(implementation)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    print(provenance(store, implementation.name, implementation.description))
    outcome = Outcome()
    for layer in track(chosen(args.layers, store.layers()), "comparing", console=Console(stderr=True), transient=True):
        check_layer(store, implementation, layer, outcome, asked_precisions(args.precision))
    console.print(terminal_table(outcome.rows))
    for line in [*closing_lines(outcome, entries), coverage(implementation)]:
        print(line)
    _write_json(args.json, [row.as_json() for row in outcome.rows])
    bad = unexpected(outcome.rows, entries) or problems(outcome.rows, entries)
    lacking = [*outcome.not_provided, *(f"the VJP of {layer}" for layer in sorted(outcome.without_gradients))]
    if args.strict and lacking:
        print(f"--strict: {lacking[0]}{f' and {len(lacking) - 1} more are' if lacking[1:] else ' is'} not provided.")
    return 1 if bad or (args.strict and lacking) else 0


def _require_some(implementation: Implementation) -> None:
    if not implementation.layers:
        raise CannotRun(f"{implementation.name} provides no layer; list the names of its layers in `layers`.")


def trace(args: argparse.Namespace) -> int:
    """Shows each layer's own error, and the error that it inherits."""
    store, implementation = Store(), load(args.impl)
    console = Console()
    print(provenance(store, implementation.name, implementation.description))
    taps = tracing.taps(store, implementation)
    console.print(tracing.terminal_table(taps))
    print(tracing.first_divergence(taps))
    write_atomically(args.out / "trace.svg", tracing.picture(taps).encode())
    print(f"The picture is {args.out / 'trace.svg'}")
    rows = [{"layer": t.layer, "own": t.own and t.own.as_json(), "in_the_chain": t.inherited} for t in taps]
    _write_json(args.json, rows)
    return 1 if any(tap.own is not None and not tap.own.equal for tap in taps) else 0


def diagnose(args: argparse.Namespace) -> int:
    """Names the mistake in each layer that differs, and the correct formula."""
    store, implementation = Store(), load(args.impl)
    _require_some(implementation)
    layers = [layer for layer in chosen(args.layers, store.layers()) if layer in implementation.layers]
    print(provenance(store, implementation.name, implementation.description))
    shown = track(layers, "diagnosing", console=Console(stderr=True), transient=True)
    diagnoses = diagnosing.diagnose(store, implementation, shown)
    for diagnosis in diagnoses:
        print("\n".join(diagnosis.lines()))
    print(diagnosing.closing_line(diagnoses, len(layers)))
    _write_json(args.json, [diagnosis.as_json() for diagnosis in diagnoses])
    return 1 if diagnoses else 0


def new(args: argparse.Namespace) -> int:
    """Writes the template of an adapter."""
    if args.file.exists():
        raise CannotRun(f"{args.file} exists already; name a file that does not.")
    if not args.file.stem.isidentifier() or args.file.suffix != ".py":
        raise CannotRun(f"{args.file.name} is not a valid module name; choose one like my_adapter.py.")
    write_atomically(args.file, template(args.file.stem).encode())
    print(f"Wrote {args.file}. Fill in a layer, then: python -m parity check --impl {args.file.stem}:implementation")
    return 0


def _write_json(path: Path | None, content: object) -> None:
    if path is not None:
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run."""
    args = parser().parse_args(arguments)
    try:
        commands = {"list": list_layers, "check": check, "trace": trace, "diagnose": diagnose, "new": new}
        return commands[args.command](args)
    except (CannotRun, FixtureError) as error:
        print(f"parity: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
