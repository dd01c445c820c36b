"""Judges the package that can be imported here, and writes what came out as JSON; `reports.audit` runs it, once for
each release, in a process of its own.

    PYTHONPATH=RELEASE_FOLDER python -m reports.adapters.bench OUT.json
"""  # noqa: D205

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parity.check import Judge, Outcome, WeightsMissing, check_layer
from parity.check import load as load_case
from parity.compare import Row
from parity.implementation import CannotRun, Implementation, load
from parity.layers import REGISTRY
from parity.store import FixtureError, Store


def row_as_dict(row: Row) -> dict[str, Any]:
    """A row as JSON, infinities as they are."""
    return asdict(row) | {"index": list(row.index)}


def row_from_dict(values: dict[str, Any]) -> Row:
    """The inverse of `row_as_dict`."""
    return Row(**(values | {"index": tuple(values["index"])}))


def is_missing(row: Row) -> bool:
    """Whether an output was not given at all, which is not the same as a different one."""
    return row.problem.startswith("is missing")


def probes(implementation: Implementation, name: str) -> list[Row]:
    """Comparisons beside the registry, if the adapter has any."""
    found = importlib.util.find_spec(f"reports.adapters.{name}.probes")
    return importlib.import_module(f"reports.adapters.{name}.probes").rows(Store()) if found else []


def judge_everything(name: str) -> dict[str, Any]:
    """Every layer that the implementation provides."""
    store, implementation, outcome = Store(), load(name), Outcome()
    for layer in store.layers():
        check_layer(store, implementation, layer, outcome)
    return {
        "description": implementation.description,
        "folder": importlib.import_module(f"reports.adapters.{name}").FOLDER,
        "provided": [layer for layer in REGISTRY if layer in implementation.layers],
        "not_provided": outcome.not_provided,
        "without_gradients": sorted(outcome.without_gradients),
        "skipped": outcome.skipped,
        "rows": [row_as_dict(row) for row in [*outcome.rows, *probes(implementation, name)]],
    }


def judge_cases(name: str, cases: Sequence[str]) -> dict[str, Any]:
    """Some cases, given as `layer[case]`; the probes are always made."""
    store, implementation, rows = Store(), load(name), list[Row]()
    judge = Judge(implementation)
    for case in cases:
        layer, _, rest = case.partition("[")
        if layer in implementation.layers:
            rows += judge.rows(load_case(store, layer, rest.removesuffix("]")))
    return {"rows": [row_as_dict(row) for row in [*rows, *probes(implementation, name)]]}


def smallest(rows: Sequence[Row]) -> Row:
    """Of the rows of a layer that differ, the one to show: a value in float64 if there is one, of a plain case."""
    order = {("value", "float64"): 0, ("vjp", "float64"): 1, ("value", "float32"): 2}
    return min(rows, key=lambda r: (order[(r.kind, r.dtype)], bool(r.problem), r.case != "plain", -r.max_rel))


def write_repros(name: str, rows: Sequence[Row], folder: Path) -> dict[str, str]:
    """One file for each layer that differs; layer -> file name."""
    found = importlib.util.find_spec("parity.repro")
    if found is None:
        return {}
    repro, store, written = importlib.import_module("parity.repro"), Store(), {}
    for layer in dict.fromkeys(row.layer for row in rows):
        mine = [row for row in rows if row.layer == layer and store.entry(layer, row.case)["stored"]]
        if mine:
            row = smallest(mine)
            written[layer] = repro.write(load_case(store, layer, row.case), row, name, folder).name
    return written


def diagnoses(name: str, layers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the catalogue of porting mistakes says about layers that differ and give all of their outputs."""
    if importlib.util.find_spec("parity.diagnose") is None:
        return {}
    found = importlib.import_module("parity.diagnose").diagnose(Store(), load(name), layers)
    return {finding.layer: finding.as_json() for finding in found}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, whatever came out; 2 could not run, with a sentence in the answer."""
    parser = argparse.ArgumentParser(prog="python -m reports.adapters.bench", description=__doc__)
    parser.add_argument("answer", type=Path, metavar="OUT.json")
    parser.add_argument("--impl", default="disco_torch", metavar="NAME")
    parser.add_argument("--cases", type=Path, metavar="FILE", help="JSON list of layer[case]; otherwise everything")
    parser.add_argument("--repros", type=Path, metavar="DIR", help="write repro files there")
    args = parser.parse_args(arguments)
    try:
        if args.cases:
            answer = judge_cases(args.impl, json.loads(args.cases.read_text()))
        else:
            answer = judge_everything(args.impl)
            rows = [row_from_dict(row) for row in answer["rows"]]
            wrong = [row for row in rows if not row.equal and not is_missing(row) and row.layer in REGISTRY]
            answer["repros"] = write_repros(args.impl, wrong, args.repros) if args.repros else {}
            partly = {row.layer for row in rows if is_missing(row)}
            answer["diagnoses"] = diagnoses(
                args.impl, list(dict.fromkeys(r.layer for r in wrong if r.layer not in partly))
            )
    except (CannotRun, FixtureError, WeightsMissing) as error:
        answer = {"error": str(error)}

    args.answer.write_text(json.dumps(answer, default=lambda scalar: scalar.item()) + "\n")
    return 2 if "error" in answer else 0


if __name__ == "__main__":
    raise SystemExit(main())
