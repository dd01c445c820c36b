"""Judges the port that can be imported here; `release` calls this in a process of its own, once for each release of a
package and each corrected copy of it.
"""  # noqa: D205

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from parity.compare import ProblemKind, Row
from parity.goldens.check import Judge, Outcome, check_layer
from parity.goldens.check import load as load_case
from parity.goldens.store import Store
from parity.implementation import Implementation, load
from parity.layers import REGISTRY
from parity.mutants.coverage import stored_cases
from parity.mutants.diagnose import diagnose
from parity.mutants.diagnosis import Diagnosis
from reports.audit.causes import load_port

Key = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Judgement:
    """What came out for every layer that a port provides.

    Attributes:
        description: of the port, with the version of what it ran on.
        provided: layers of the registry that it has.
        outcome: every comparison, those outside the registry included, and what could not be compared.
        diagnoses: of the layers that differ, if nothing is known about causes of differences.
    """

    description: str
    provided: list[str]
    outcome: Outcome
    diagnoses: list[Diagnosis]


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
    """Comparisons outside the registry, if there are any of this port."""
    module = load_port(name).probes
    return importlib.import_module(module).rows(store) if module else []


def judge_everything(name: str) -> Judgement:
    """Every layer that the port provides."""
    store, implementation, outcome = Store(), load(name), Outcome()
    for layer in store.layers():
        check_layer(store, implementation, layer, outcome)
    outcome.rows += probes(name, store)
    provided = [layer for layer in REGISTRY if layer in implementation.layers]
    diagnoses = [] if load_port(name).causes else diagnose(store, implementation, provided)
    return Judgement(implementation.description, provided, outcome, diagnoses)


def judge_cases(
    name: str, cases: Sequence[tuple[str, str]], ignored: Collection[Key] | None
) -> tuple[list[Row], Diagnosis | None]:
    """Comparisons of some cases, each a layer and a case; those outside the registry are always made.

    With `ignored`, a set of comparisons, the first layer that differs in others is diagnosed.
    """
    store, implementation = Store(), load(name)
    judge = Judge(implementation)
    provided = [(layer, case) for layer, case in cases if layer in implementation.layers]
    rows = [row for layer, case in provided for row in judge.rows(load_case(store, layer, case))]
    rows += probes(name, store)
    return rows, None if ignored is None else _diagnosis(store, implementation, rows, ignored)


def _diagnosis(
    store: Store, implementation: Implementation, rows: Sequence[Row], ignored: Collection[Key]
) -> Diagnosis | None:
    """What the catalogue of mutants says about the first layer whose values differ and that returns all outputs.

    It is not asked about gradients alone, nor about what rounding to float32 somewhere inside may leave.
    """
    partly = {row.layer for row in rows if is_missing(row)}
    wrong = {row.layer for row in different_rows(rows, ignored) if (row.kind, row.dtype) == ("value", "float64")}
    first = next((layer for layer in REGISTRY if layer in wrong - partly), None)
    if first is None or _agrees_as_float32(store, implementation, first):
        return None
    return next(iter(diagnose(store, implementation, [first])), None)


def _agrees_as_float32(store: Store, implementation: Implementation, layer: str) -> bool:
    """Whether a layer's values in float64 are equal by the tolerance of float32, on all stored cases."""
    judge = Judge(implementation, ("float32",), answers_in="float64")
    goldens = (load_case(store, layer, case) for case in stored_cases(store, layer))
    return all(row.equal for golden in goldens for row in judge.rows(replace(golden, vjps={})))
