"""Every golden, on the implementation under test: values in float64 and float32, VJPs in float64."""

from __future__ import annotations

import numpy as np
import pytest

from parity.check import Judge, Outcome, WeightsMissing, check_layer, load, planted_error_is_found, rows_expected
from parity.expected import Divergence, problems, unexpected
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.plugin import NOT_PROVIDED
from parity.store import FixtureError, Store, digest

FLOOR_OF_LAYERS = 50
FLOOR_OF_COMPARISONS = 8_000


def _recorded() -> list[tuple[str, str]]:
    try:
        store = Store()
        return [(layer, case) for layer in store.layers() for case in store.cases(layer)]
    except FixtureError:
        return []


@pytest.mark.parametrize(("layer", "case"), [pytest.param(*c, id=f"{c[0]}[{c[1]}]") for c in _recorded()])
def test_golden(
    request: pytest.FixtureRequest,
    store: Store,
    implementation: Implementation,
    divergences: list[Divergence],
    layer: str,
    case: str,
) -> None:
    if layer not in implementation.layers:
        end = pytest.fail if request.config.getoption("--strict") else pytest.skip
        end(f"{implementation.name} {NOT_PROVIDED} {layer}")
    try:
        golden = load(store, layer, case)
    except WeightsMissing as reason:
        pytest.skip(str(reason))
    assert planted_error_is_found(golden), "a planted error passes for equal: this comparison proves nothing"
    judge = Judge(implementation)
    rows = list(judge.rows(golden))
    different = [row.sentence() for row in unexpected(rows, divergences)]
    assert not different, f"{len(different)} of {len(rows)} differ:\n" + "\n".join(different[:12])
    if judge.without_gradients and not request.config.getoption("--strict"):
        return
    assert len(rows) == rows_expected(golden), "not everything that was recorded was compared"


def test_every_expected_divergence_is_still_there(
    store: Store, implementation: Implementation, divergences: list[Divergence]
) -> None:
    outcome = Outcome()
    for layer in sorted({entry.layer for entry in divergences}):
        check_layer(store, implementation, layer, outcome)
    assert not problems(outcome.rows, divergences)


def test_enough_is_compared(store: Store) -> None:
    layers = store.manifest["layers"].values()
    entries = [entry for layer in layers for entry in layer["cases"].values()]
    comparisons = sum(
        sum(name.startswith(("out64:", "out32:", "vjp64:")) for name in entry["tensors"]) for entry in entries
    )
    assert len(layers) >= FLOOR_OF_LAYERS
    assert comparisons >= FLOOR_OF_COMPARISONS


def test_every_case_of_the_registry_is_recorded(store: Store) -> None:
    expected = {(layer.name, case.name) for layer in REGISTRY.values() for case in layer.cases}
    assert expected <= set(_recorded())


@pytest.mark.parametrize("layer", list(REGISTRY))
def test_goldens_were_recorded_on_what_the_registry_makes_now(store: Store, layer: str) -> None:
    for case in REGISTRY[layer].cases:
        entry = store.entry(layer, case.name)
        if not entry["stored"]:
            continue  # `test_golden` makes those inputs and checks their digests
        stated = {k.removeprefix("in:"): v for k, v in entry["tensors"].items() if k.startswith("in:")}
        made = {name: digest(value) for name, value in case_inputs(REGISTRY[layer], case).items()}
        assert made == stated, f"{layer}[{case.name}] was recorded on other inputs; record it again"


@pytest.mark.parametrize("layer", list(REGISTRY))
def test_no_differentiable_input_is_dead_in_every_case_by_chance(store: Store, layer: str) -> None:
    """A VJP that is zero in one case must be zero in all (a stopped gradient), or come alive in another case."""
    alive: dict[str, bool] = {}
    for case in store.cases(layer):
        if not store.entry(layer, case)["stored"]:
            continue
        for name, value in store.load(layer, case).vjps.items():
            alive[name] = alive.get(name, False) or bool(np.any(value))
    dead = {name for name, is_alive in alive.items() if not is_alive}
    assert dead == set(STOPPED.get(layer, ())), f"inputs without any gradient in {layer}: {sorted(dead)}"


STOPPED: dict[str, tuple[str, ...]] = {}
