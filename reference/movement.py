"""`python -m reference movement`: measures at many more inputs how far the original moves, where that is the budget.

A recording does so itself; this is for cases that were recorded with a few inputs alone. Goldens stay as they are; only
a budget that was measured too small grows, and the manifest says at how many inputs. Each case is measured twice, in
two processes, which must agree to the bit.

Example:
    python -m reference movement agent/learner_step
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.check import DISCO103, WeightsMissing, disco103, load
from parity.compare import budget
from parity.layers import REGISTRY
from parity.layers.spec import Case
from parity.side_by_side import Piece, cores, run_all
from parity.store import FIXTURES, Accuracy, FixtureError, Store, manifest_bytes, write_atomically
from reference.execution import FLAGS
from reference.mapped import flags_of
from reference.measure import JITTERS_WHERE_IT_MOVES, NEAR, Measurement
from reference.record import RULES, RecordError, provenance, require_original
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
        cases = list(moving(store, args.layers or list(REGISTRY)))
        if any(store.entry(*case)["meta_params"] == DISCO103 for case in cases):
            disco103()
        moved = measured_twice(args.out, cases, args.jobs)
        grown = write(Store(args.out), args.out, moved)
    except (RecordError, FixtureError, WeightsMissing) as error:
        print(f"movement: {error}", file=sys.stderr)
        return 2
    for sentence in grown:
        print(sentence)
    print(f"{len(moved)} cases were measured; {len(grown)} budgets have grown.")
    return 0


def moving(store: Store, layers: list[str]) -> Iterator[tuple[str, str]]:
    """Layers and cases in which the original moves by so much that it is, or comes near to being, the budget.

    Cases at a branch are left out, where a movement says on which side an answer is; and layers on several devices.
    """
    for name in layers:
        if flags_of(name) != FLAGS or name not in store.manifest["layers"]:
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
    """The largest movement of each output of a case, from what the original says here at the golden's own inputs."""
    import warnings

    from reference.original import implementation

    warnings.simplefilter("ignore")
    golden, layer = load(Store(root), name, case), REGISTRY[name]
    spec = next((one for one in layer.cases if one.name == case), Case(case))
    asked = Measurement(implementation, layer, spec, golden.inputs, golden.settings, eager=False)
    truth, others = asked.at(golden.inputs, "float64"), asked.at_many()
    moved = {
        kind: {output: asked.sensitivity(kind, output, ref, others) for output, ref in arrays.items()}
        for kind, arrays in truth.items()
    }
    refuse_the_port()
    tell(1)
    return (name, case), part, moved


def write(store: Store, root: Path, moved: dict[tuple[str, str], Moved]) -> list[str]:
    """Puts larger movements into the manifest; tells of the budgets that grow by them."""
    layers, grown = {**store.manifest["layers"]}, []
    for (name, case), by_kind in moved.items():
        entry, tolerance = layers[name]["cases"][case], REGISTRY[name].tolerance_of(case)
        accuracy = copy.deepcopy(entry["accuracy"])
        for kind, outputs in by_kind.items():
            for output, distance in outputs.items():
                known = Accuracy(**accuracy[kind][output])
                wider = replace(known, sensitivity64=max(known.sensitivity64, distance))
                accuracy[kind][output]["sensitivity64"] = wider.sensitivity64
                before, after = (budget(one, "float64", tolerance64=tolerance) for one in (known, wider))
                if after > before:
                    grown.append(f"{name}[{case}] {kind} of {output}: {before:.4g} to {after:.4g}")
        changed = {**entry, "accuracy": accuracy, "movements": JITTERS_WHERE_IT_MOVES}
        layers[name] = {**layers[name], "cases": {**layers[name]["cases"], case: changed}}
    write_atomically(root / "manifest.json", manifest_bytes({**store.manifest, "rules": RULES, "layers": layers}))
    return grown
