"""Every layer, live: reference against candidate on inputs that Hypothesis chooses, values and VJPs.

Not collected by `pytest parity/` yet: it was written but not run to the end (issue 3). To try it:
`pytest parity/live_suite.py -k retrace`.
"""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.live import Reference, Sample, compare_live, judge, worst_ratio
from parity.metamorphic import RELATIONS
from parity.plugin import NOT_PROVIDED
from parity.repro import write
from parity.shrink import shrink
from parity.strategies import HEAVY, samples

EXAMPLES, EXAMPLES_OF_HEAVY = 6, 2
REPRO_FOLDER = Path("reports/out/repro")


def _provided(request: pytest.FixtureRequest, implementation: Implementation, layer: str) -> None:
    if layer not in implementation.layers:
        end = pytest.fail if request.config.getoption("--strict") else pytest.skip
        end(f"{implementation.name} {NOT_PROVIDED} {layer}")


def _settings(request: pytest.FixtureRequest, layer: str) -> hypothesis.settings:
    asked = request.config.getoption("--examples")
    examples = asked or (EXAMPLES_OF_HEAVY if layer in HEAVY else EXAMPLES)
    is_random = request.config.getoption("--hypothesis-seed") is not None or not os.environ.get("CI")
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not is_random,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[p for p in hypothesis.Phase if p is not hypothesis.Phase.explain],
    )


@pytest.mark.parametrize("layer", list(REGISTRY))
def test_live(
    request: pytest.FixtureRequest, reference: Implementation, implementation: Implementation, layer: str
) -> None:
    """Reference and candidate agree on whatever Hypothesis finds."""
    _provided(request, implementation, layer)
    entry = REGISTRY[layer]
    failures: list[Sample] = []

    @_settings(request, layer)
    @hypothesis.given(samples(entry))
    def equivalent(sample: Sample) -> None:
        rows = compare_live(reference, implementation, entry, sample)
        hypothesis.target(worst_ratio(rows), label="error over budget")
        different = [row for row in rows if not row.equal]
        if different:
            failures.append(sample)
        assert not different, "\n".join(row.sentence() for row in different[:6])

    try:
        equivalent()
    except BaseException:
        if failures:
            _leave_a_repro(request, reference, implementation, layer, failures[-1])
        raise


def _leave_a_repro(
    request: pytest.FixtureRequest, reference: Implementation, implementation: Implementation, layer: str, found: Sample
) -> None:
    entry = REGISTRY[layer]
    first = next(row for row in compare_live(reference, implementation, entry, found) if not row.equal)

    def fails(sample: Sample) -> bool:
        rows = compare_live(reference, implementation, entry, sample)
        return any(not r.equal and (r.output, r.kind, r.dtype) == (first.output, first.kind, first.dtype) for r in rows)

    smallest = shrink(entry, found, fails)
    golden = Reference(reference, entry, smallest).golden()
    row = next(r for r in judge(implementation, golden) if not r.equal and r.output == first.output)
    path = write(golden, row, request.config.getoption("--impl"), REPRO_FOLDER)
    print(f"A file that shows it: {path}")


CHECKS = [
    pytest.param(layer.name, relation.name, id=f"{layer.name}-{relation.name}")
    for layer in REGISTRY.values()
    for relation in RELATIONS
    if relation.applies(layer, layer.settings)
]


@pytest.mark.parametrize(("layer", "relation"), CHECKS)
def test_metamorphic(request: pytest.FixtureRequest, implementation: Implementation, layer: str, relation: str) -> None:
    """A relation that holds exactly holds for the candidate."""
    _provided(request, implementation, layer)
    chosen = next(r for r in RELATIONS if r.name == relation)
    entry = REGISTRY[layer]
    problem = chosen.check(implementation, entry, dict(entry.settings))
    assert not problem, f"{layer}, {relation}: {problem}"
