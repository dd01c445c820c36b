"""`python -m parity diagnose`: names the known porting mistake that explains a difference."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.progress import track

from parity.command_line import add_options, chosen, require_some, write_json
from parity.errors import NothingCompared
from parity.goldens.store import Store
from parity.goldens.table import provenance
from parity.implementation import load, on_device
from parity.mutants import diagnose as diagnosing
from parity.timeout import limited

HELP = "name the known porting mistake that explains a difference"
EXAMPLE = "python -m parity diagnose values/retrace --impl my_adapter:implementation"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    add_options(parser, "layers", "--impl", "--device", "--json", "--timeout")


def run(args: argparse.Namespace) -> int:
    """Names the mistake in each layer that differs, and the correct formula."""
    store, implementation = Store(), limited(on_device(load(args.impl), args.device), args.timeout)
    require_some(implementation)
    layers = [layer for layer in chosen(args.layers, store.layers()) if layer in implementation.layers]
    if not layers:
        raise NothingCompared(f"{implementation.name} provides none of the layers that were asked for.")
    print(provenance(store, implementation))
    shown = track(layers, "diagnosing", console=Console(stderr=True), transient=True)
    diagnoses = diagnosing.diagnose(store, implementation, shown)
    for diagnosis in diagnoses:
        print("\n".join(diagnosis.lines()))
    print(diagnosing.closing_line(diagnoses, len(layers)))
    write_json(args.json, [diagnosis.as_json() for diagnosis in diagnoses])
    return 1 if diagnoses else 0
