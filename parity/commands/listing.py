"""`python -m parity list`: the layers, or inputs and outputs of one."""

from __future__ import annotations

import argparse
from pathlib import Path

from parity import diagram
from parity.command_line import add_options, chosen, write_json
from parity.files import write_atomically
from parity.goldens.store import Store
from parity.layers import REGISTRY

HELP = "list the layers, or inputs and outputs of one"
EXAMPLE = "python -m parity list values/retrace"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    add_options(parser, "layers", "--json")
    parser.add_argument("--diagram", type=Path, metavar="FILE", help="draw the layers and all that feeds them, as SVG")


def run(args: argparse.Namespace) -> int:
    """Prints each layer with its inputs and outputs; or draws the layers."""
    store, entries, names = Store(), [], chosen(args.layers, list(REGISTRY))
    for name in names:
        layer = REGISTRY[name]
        inputs = {k: v.describe() for k, v in layer.inputs(layer.settings).items()}
        outputs = {k: v.describe() for k, v in layer.outputs(layer.settings).items()}
        wrt = layer.differentiable(layer.settings)
        entry = {"layer": name, "summary": layer.summary, "inputs": inputs, "outputs": outputs, "vjp": wrt}
        recorded = store.cases(name) if name in store.layers() else [case.name for case in layer.cases]
        entries.append({**entry, "settings": layer.settings, "cases": recorded})
        if args.diagram is not None:
            continue
        print(f"{name:28} {layer.summary}")
        if args.layers:
            print("\n".join(f"  in  {k}: {v}{' (VJP)' if k in wrt else ''}" for k, v in inputs.items()))
            print("\n".join(f"  out {k}: {v}" for k, v in outputs.items()))
            print(f"  settings: {layer.settings}\n  cases: {', '.join(recorded)}")
    write_json(args.json, entries)
    if args.diagram is not None:
        write_atomically(args.diagram, diagram.svg(names).encode())
        print(f"The picture is {args.diagram}")
    return 0
