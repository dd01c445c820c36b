"""Judges the package that can be imported here, and writes what came out as JSON; `reports.audit` runs it, once for
each release and each corrected copy of it, in a process of its own.

    PYTHONPATH=RELEASE_FOLDER python -m reports.audit.bench OUT.json
"""  # noqa: D205

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from parity.compare import Problem, ProblemKind, Row
from parity.errors import CannotRun, FixtureError, WeightsMissing
from parity.goldens.check import Judge, Outcome, check_layer
from parity.goldens.check import load as load_case
from parity.goldens.store import Store
from parity.implementation import Implementation, load
from parity.layers import REGISTRY
from parity.mutants.coverage import stored_cases
from parity.mutants.diagnose import diagnose

Key = tuple[str, str, str, str, str]
ORDER = {("value", "float64"): 0, ("vjp", "float64"): 1, ("value", "float32"): 2, ("vjp", "float32"): 3}


def row_as_dict(row: Row) -> dict[str, Any]:
    """A row as JSON, infinities as they are."""
    return asdict(row) | {"index": list(row.index), "counts": list(row.counts)}


def row_from_dict(values: dict[str, Any]) -> Row:
    """The inverse of `row_as_dict`."""
    problem = values["problem"] and Problem(ProblemKind(values["problem"]["kind"]), values["problem"]["text"])
    return Row(**(values | {name: tuple(values[name]) for name in ("index", "counts")} | {"problem": problem}))


def key(row: Row) -> Key:
    """What a row compares."""
    return row.layer, row.case, row.output, row.kind, row.dtype


def is_missing(row: Row) -> bool:
    """Whether an output was not returned at all, which is not the same as a different one."""
    return row.problem is not None and row.problem.kind is ProblemKind.MISSING


def different_rows(rows: Iterable[Row], ignored: Collection[Key] = ()) -> list[Row]:
    """Comparisons that differ, without outputs that are not given."""
    return [row for row in rows if not row.equal and not is_missing(row) and key(row) not in ignored]


def probes(name: str, store: Store) -> list[Row]:
    """Comparisons outside the registry, if the adapter has any."""
    module = f"reports.audit.{name}.probes"
    return importlib.import_module(module).rows(store) if importlib.util.find_spec(module) else []


def judge_everything(name: str) -> dict[str, Any]:
    """Every layer that the implementation provides."""
    store, implementation, outcome = Store(), load(name), Outcome()
    for layer in store.layers():
        check_layer(store, implementation, layer, outcome)
    return {
        "description": implementation.description,
        "folder": importlib.import_module(f"reports.audit.{name}").FOLDER,
        "provided": [layer for layer in REGISTRY if layer in implementation.layers],
        "not_provided": outcome.not_provided,
        "without_gradients": sorted(outcome.without_gradients),
        "skipped": outcome.skipped,
        "rows": [row_as_dict(row) for row in [*outcome.rows, *probes(name, store)]],
    }


def judge_cases(name: str, cases: Sequence[Sequence[str]], ignored: Sequence[Sequence[str]] | None) -> dict[str, Any]:
    """Some cases, each a layer and a case; the probes are always made.

    With `ignored`, a list of comparisons, the first layer that differs in others is diagnosed.
    """
    store, implementation, rows = Store(), load(name), list[Row]()
    judge = Judge(implementation)
    for layer, case in cases:
        if layer in implementation.layers:
            rows += judge.rows(load_case(store, layer, case))
    rows += probes(name, store)
    answer: dict[str, Any] = {"rows": [row_as_dict(row) for row in rows]}
    if ignored is not None:
        answer["diagnosis"] = diagnosis(store, implementation, rows, {tuple(k) for k in ignored})  # type: ignore[misc]
    return answer


def diagnosis(
    store: Store, implementation: Implementation, rows: Sequence[Row], ignored: Collection[Key]
) -> dict[str, Any] | None:
    """What the catalogue of porting mistakes says about the first layer whose values differ and that gives them all.

    It is not asked about gradients alone, nor about what rounding to float32 somewhere inside may leave.
    """
    partly = {row.layer for row in rows if is_missing(row)}
    wrong = {row.layer for row in different_rows(rows, ignored) if (row.kind, row.dtype) == ("value", "float64")}
    first = next((layer for layer in REGISTRY if layer in wrong - partly), None)
    if first is None or agrees_as_float32(store, implementation, first):
        return None
    found = diagnose(store, implementation, [first])
    return found[0].as_json() if found else None


def agrees_as_float32(store: Store, implementation: Implementation, layer: str) -> bool:
    """Whether a layer's values in float64 are equal by the tolerance of float32, on all stored cases."""
    judge = Judge(implementation, ("float32",), answers_in="float64")
    goldens = (load_case(store, layer, case) for case in stored_cases(store, layer))
    return all(row.equal for golden in goldens for row in judge.rows(replace(golden, vjps={})))


def telling(rows: Sequence[Row]) -> Row:
    """Of the rows of a layer that differ, the one to show: a value in float64 if there is one, of a plain case."""
    return min(rows, key=lambda r: (ORDER[r.kind, r.dtype], bool(r.problem), r.case != "plain", -r.max_rel))


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, whatever came out; 2 could not run, with a sentence in the answer."""
    parser = argparse.ArgumentParser(prog="python -m reports.audit.bench", description=__doc__)
    parser.add_argument("answer", type=Path, metavar="OUT.json")
    parser.add_argument("--impl", default="disco_torch", metavar="NAME")
    parser.add_argument("--task", type=Path, metavar="FILE", help="JSON: cases, and what to ignore; else everything")
    args = parser.parse_args(arguments)
    try:
        answer = (
            judge_cases(args.impl, **json.loads(args.task.read_text())) if args.task else judge_everything(args.impl)
        )
    except (CannotRun, FixtureError, WeightsMissing) as error:
        answer = {"error": str(error)}
    args.answer.write_text(json.dumps(answer, default=lambda scalar: scalar.item()) + "\n")
    return 2 if "error" in answer else 0


if __name__ == "__main__":
    raise SystemExit(main())
