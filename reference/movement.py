"""`python -m reference movement`: measures at many more inputs how far the original moves, where that is the budget.

Recording measures it at a few inputs first. Where a case was recorded with those alone, or on one processor only, this
adds what many inputs, and this machine's processor, show. Goldens stay as they are; only a budget that was measured too
small grows. Each case is measured twice, in two processes, which must agree to the bit.

Example:
    python -m reference movement agent/learner_step
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from parity.check import WeightsMissing, load
from parity.layers import REGISTRY
from parity.layers.spec import Case
from parity.side_by_side import Piece, cores, run_all
from parity.store import FIXTURES, FixtureError, Store, manifest_bytes, write_atomically
from reference.execution import FLAGS
from reference.mapped import flags_of
from reference.measure import NEAR, Measurement
from reference.record import RecordError, provenance, require_original
from reference.record_worker import refuse_the_port

Moved = dict[str, dict[str, float]]  # "value" or "vjp" -> output -> how far it moves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="(default: all)")
    parser.add_argument("--jobs", type=int, default=cores(), metavar="N", help="processes (default: one per core)")
    parser.add_argument("--out", type=Path, default=FIXTURES, metavar="DIR", help="fixtures (default: fixtures/)")


def run(args: argparse.Namespace) -> int:
    """0 done, 2 could not run."""
    try:
        require_original()
        os.environ.update(FLAGS)
        store = Store(args.out)
        stale = [key for key in ("original", "packages", "flags") if store.manifest[key] != provenance()[key]]
        if stale:
            raise RecordError(f"the goldens were recorded with other {', '.join(stale)}.")
        unknown = [name for name in args.layers if name not in REGISTRY]
        if unknown:
            raise RecordError(f"no layer is called {unknown[0]!r}; `python -m parity list` shows them all.")
        moved = measured_twice(args.out, list(moving(store, args.layers or list(REGISTRY))), args.jobs)
        grown = write(store, args.out, moved)
    except (RecordError, FixtureError, WeightsMissing) as error:
        print(f"movement: {error}", file=sys.stderr)
        return 2
    print("\n".join(grown))
    print(f"{len(moved)} cases were measured; {len(grown)} budgets have grown.")
    return 0


def moving(store: Store, layers: list[str]) -> Iterator[tuple[str, str]]:
    """Layers and cases in which the original moves by so much that it is, or comes near to being, the budget.

    Cases at a branch are left out, where a movement says on which side an answer is; and layers on several devices.
    """
    for name in layers:
        if flags_of(name) != FLAGS:
            continue
        for case, entry in store.manifest["layers"][name]["cases"].items():
            least = NEAR * REGISTRY[name].tolerance_of(case)
            every = [one for of_kind in entry["accuracy"].values() for one in of_kind.values()]
            if not any(entry["near_branch"].values()) and any(a["sensitivity64"] > least * a["scale"] for a in every):
                yield name, case


def measured_twice(root: Path, cases: list[tuple[str, str]], jobs: int) -> dict[tuple[str, str], Moved]:
    """How far each case moves; RecordError where two processes do not find the same."""
    pieces = [Piece(f"{name}[{case}], {part}", 1, (root, name, case, part)) for name, case in cases for part in "ab"]
    found: dict[tuple[str, str], dict[str, Moved]] = {}
    for key, part, moved in run_all(measure, pieces, jobs):
        found.setdefault(key, {})[part] = moved
    differing = [f"{name}[{case}]" for (name, case), both in found.items() if both["a"] != both["b"]]
    if differing:
        raise RecordError(f"two measurements differ in {', '.join(differing)}; nothing was written.")
    return {key: found[key]["a"] for key in cases}


def measure(
    root: Path, name: str, case: str, part: str, tell: Callable[[int], Any]
) -> tuple[tuple[str, str], str, Moved]:
    """The largest movement of each output of a case, from the golden."""
    import warnings

    from reference.original import implementation

    warnings.simplefilter("ignore")
    golden, layer = load(Store(root), name, case), REGISTRY[name]
    spec = next((one for one in layer.cases if one.name == case), Case(case))
    asked = Measurement(implementation, layer, spec, golden.inputs, golden.settings, eager=False)
    here = [asked.at(golden.inputs, "float64", quick=quick) for quick in (False, True)]
    others = [*here, *asked.at_many()]
    truth = {"value": golden.outputs["float64"], "vjp": golden.vjps}
    moved = {
        kind: {output: asked.sensitivity(kind, output, ref, others) for output, ref in arrays.items()}
        for kind, arrays in truth.items()
    }
    refuse_the_port()
    tell(1)
    return (name, case), part, moved


def write(store: Store, root: Path, moved: dict[tuple[str, str], Moved]) -> list[str]:
    """Puts larger movements into the manifest; tells of those that are larger than what is allowed everywhere."""
    manifest, grown = {**store.manifest}, []
    layers = {**manifest["layers"]}
    for (name, case), by_kind in moved.items():
        entry = layers[name]["cases"][case]
        accuracy = {kind: dict(of_kind) for kind, of_kind in entry["accuracy"].items()}
        for kind, outputs in by_kind.items():
            for output, distance in outputs.items():
                before = accuracy[kind][output]["sensitivity64"]
                if distance > before:
                    accuracy[kind][output] = {**accuracy[kind][output], "sensitivity64": distance}
                    if distance > REGISTRY[name].tolerance_of(case) * accuracy[kind][output]["scale"]:
                        grown.append(f"{name}[{case}] {kind} of {output}: {before:.3g} to {distance:.3g}")
        cases = {**layers[name]["cases"], case: {**entry, "accuracy": accuracy}}
        layers[name] = {**layers[name], "cases": cases}
    write_atomically(root / "manifest.json", manifest_bytes({**manifest, "layers": layers}))
    return grown
