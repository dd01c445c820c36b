"""Every layer, live: reference against candidate on inputs that Hypothesis chooses, values and VJPs."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from parity.compare import Row
from parity.goldens.check import Judge, asked_precisions, injected_error_is_found, load, rows_expected
from parity.goldens.expected import Divergence
from parity.goldens.store import Store
from parity.goldens.table import worst
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.live.comparison import WITHOUT_GRADIENTS, Sample, compare_live, reference_golden, worst_ratio
from parity.live.metamorphic import RELATIONS
from parity.live.repro import write
from parity.live.shrink import shrink
from parity.live.strategies import HEAVY, samples
from parity.plugin import record_comparisons, require_layer

EXAMPLES, EXAMPLES_OF_HEAVY = 8, 3
DEEP, SIZES_WHEN_DEEP = 100, 12
REPRO_FOLDER = Path("reports/out/repro")


def _settings(request: pytest.FixtureRequest, layer: str) -> hypothesis.settings:
    examples = request.config.getoption("--parity-examples")
    is_random = request.config.getoption("--hypothesis-seed") is not None or not os.environ.get("CI")
    return hypothesis.settings(
        max_examples=examples or (EXAMPLES_OF_HEAVY if layer in HEAVY else EXAMPLES),
        deadline=None,
        database=None,
        derandomize=not is_random,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.target),  # `parity.live.shrink` does the shrinking
    )


@pytest.mark.parametrize("layer", [name for name, layer in REGISTRY.items() if layer.is_live])
def test_live(
    request: pytest.FixtureRequest,
    store: Store,
    reference: Implementation,
    implementation: Implementation,
    divergences: list[Divergence],
    layer: str,
) -> None:
    """Reference and candidate agree on whatever Hypothesis finds."""
    require_layer(request, implementation, layer)
    entry = REGISTRY[layer]
    known = [d for d in divergences if d.layer == layer]
    precisions = asked_precisions(request.config.getoption("--parity-precision"))
    failures: list[tuple[Sample, Row]] = []
    worst_of_samples: list[Row] = []

    @_settings(request, layer)
    @hypothesis.given(
        samples(entry, SIZES_WHEN_DEEP if request.config.getoption("--parity-examples") >= DEEP else None)
    )
    def equivalent(sample: Sample) -> None:
        rows = compare_live(reference, implementation, entry, sample, precisions)
        hypothesis.target(worst_ratio([row for row in rows if row.equal]), label="error over tolerance")
        worst_of_samples.extend(filter(None, [worst(rows)]))
        different = [row for row in rows if not row.equal and not any(d.covers(row) for d in known)]
        if different:
            failures.append((sample, different[0]))
            pytest.fail(f"{sample.how}\n" + "\n".join(row.sentence() for row in different[:6]))

    try:
        equivalent()
    except BaseException as error:
        if failures:
            name = request.config.getoption("--parity-impl")
            path = _repro(name, reference, implementation, layer, precisions, *failures[0])
            error.add_note(f"{path} shows it on the smallest input that was found.")
        raise
    finally:
        record_comparisons(request.node, store, f"{reference.name} ({reference.description})", worst_of_samples)


def _failure(row: Row) -> tuple[object, ...]:
    """What two failures of a layer must share to be the same one."""
    return row.output, row.kind, row.dtype, row.problem and row.problem.kind


def _repro(
    name: str,
    reference: Implementation,
    implementation: Implementation,
    layer: str,
    precisions: tuple[str, ...],
    sample: Sample,
    first: Row,
) -> Path:
    entry = REGISTRY[layer]

    def fails(tried: Sample) -> bool:
        rows = compare_live(reference, implementation, entry, tried, precisions)
        return any(not row.equal and _failure(row) == _failure(first) for row in rows)

    golden = reference_golden(reference, entry, shrink(entry, sample, fails), precisions)
    rows = Judge(implementation, precisions).rows(golden)
    row = next(row for row in rows if not row.equal and _failure(row) == _failure(first))
    return write(golden, row, name, REPRO_FOLDER)


@pytest.mark.parametrize("layer", sorted(WITHOUT_GRADIENTS))
def test_the_reference_equals_what_was_recorded(store: Store, reference: Implementation, layer: str) -> None:
    """Where `test_live` compiles the same program; tests/test_standin.py does it for the stand-in's other layers.

    With the original installed it is the original that is held to it; `parity check --impl standin` holds the stand-in.
    """
    golden = load(store, layer, next(case.name for case in REGISTRY[layer].cases if case.stored))
    assert injected_error_is_found(golden)
    rows = list(Judge(reference).rows(golden))
    assert [row.sentence() for row in rows if not row.equal] == []
    assert len(rows) == rows_expected(golden) > 0


CHECKS = [
    pytest.param(layer.name, relation.name, id=f"{layer.name}-{relation.name}")
    for layer in REGISTRY.values()
    for relation in RELATIONS
    if relation.template(layer)
]


@pytest.mark.parametrize(("layer", "relation"), CHECKS)
def test_metamorphic(
    request: pytest.FixtureRequest, store: Store, implementation: Implementation, layer: str, relation: str
) -> None:
    """A relation that holds but for rounding holds for the candidate."""
    require_layer(request, implementation, layer)
    chosen = next(r for r in RELATIONS if r.name == relation)
    entry = REGISTRY[layer]
    case = chosen.template(entry)
    assert case is not None
    problem = chosen.check(implementation, entry, load(store, layer, case.name))
    assert not problem, f"{layer}, {relation}: {problem}"
