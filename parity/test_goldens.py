"""Every golden, on the implementation under test: values and VJPs, in float64 and float32 or as asked."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from parity.errors import FixtureError, WeightsMissing
from parity.goldens.check import (
    Judge,
    Outcome,
    asked_precisions,
    check_layer,
    injected_error_is_found,
    load,
    rows_expected,
)
from parity.goldens.expected import Divergence, asked, problems, unexpected
from parity.goldens.store import Store, compact, digest
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.plugin import NOT_PROVIDED, end_of, record_comparisons, require_layer

FLOOR_OF_LAYERS = 50
FLOOR_OF_COMPARISONS = 20_000


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
    stale_entries: Callable[[str], list[str]],
    layer: str,
    case: str,
) -> None:
    assert not stale_entries(layer)
    require_layer(request, implementation, layer)
    try:
        golden = load(store, layer, case)
    except WeightsMissing as reason:
        end_of(request)(str(reason))
    precisions = asked_precisions(request.config.getoption("--parity-precision"))
    assert injected_error_is_found(golden, precisions), "an injected error passes for equal: this proves nothing"
    judge = Judge(implementation, precisions)
    rows = list(judge.rows(golden))
    record_comparisons(request.node, store, f"recorded original {store.manifest['original']['commit'][:7]}", rows)
    different = [row.sentence() for row in unexpected(rows, divergences)]
    assert not different, f"{len(different)} of {len(rows)} differ:\n" + "\n".join(different[:12])
    is_strict = request.config.getoption("--parity-strict")
    if not (rows or is_strict):
        left_out = ", ".join(judge.left_out) or f"VJPs of {golden.id}"
        pytest.skip(f"{implementation.name} {NOT_PROVIDED} {left_out}")
    if (judge.without_gradients or judge.left_out) and not is_strict:
        return
    assert len(rows) == rows_expected(golden, precisions), "not everything that was recorded was compared"


@pytest.fixture(scope="session")
def stale_entries(
    request: pytest.FixtureRequest, store: Store, implementation: Implementation, divergences: list[Divergence]
) -> Callable[[str], list[str]]:
    """What is wrong with the known divergences of a layer; with `-k`, too, each is judged on all its cases."""
    precisions = asked_precisions(request.config.getoption("--parity-precision"))

    @cache
    def ask(layer: str) -> list[str]:
        entries, outcome = asked(divergences, [layer], precisions), Outcome()
        if entries:
            check_layer(store, implementation, layer, outcome, precisions)
        return problems(outcome.rows, entries)

    return ask


def test_enough_is_compared(store: Store) -> None:
    layers = store.manifest["layers"].values()
    entries = [entry for layer in layers for entry in layer["cases"].values()]
    comparisons = 2 * sum(sum(name.startswith(("out:", "vjp:")) for name in entry["tensors"]) for entry in entries)
    assert len(layers) >= FLOOR_OF_LAYERS
    assert comparisons >= FLOOR_OF_COMPARISONS


def test_rounding_leaves_something_to_compare(store: Store) -> None:
    """At most one case of a layer stands at a branch that rounding crosses."""
    for layer in REGISTRY.values():
        assert sum(case.at_branch for case in layer.cases) <= 1, layer.name


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
        made = {name: digest(compact(value)) for name, value in case_inputs(REGISTRY[layer], case).items()}
        assert made == stated, f"{layer}[{case.name}] was recorded on other inputs; record it again"


STOPPED_IN_META_NET = (
    *("adv", "normalized_adv", "q", "qv_adv", "normalized_qv_adv", "v_scalar"),
    *("agent_out/logits", "behaviour_out/logits", "target_out/logits"),
)
# Inputs through which the original lets no gradient pass, as its own VJPs show.
STOPPED = {
    "transforms/stop_grad": ("x",),
    "transforms/sign": ("x",),
    "ops/importance_weight": ("mu_logits", "pi_logits"),
    "values/retrace": ("continues", "rewards", "rho", "target_q_values", "target_values"),
    "values/estimate_q": ("continues", "rewards"),
    "values/outs": ("mu_logits", "rewards"),
    "values/outs_v": ("mu_logits", "pi_logits"),
    "values/loss_from_td": ("td",),
    "meta/inputs": STOPPED_IN_META_NET,
    "meta/rnn": STOPPED_IN_META_NET,
    "meta/whole": STOPPED_IN_META_NET,
    "disco/unroll_meta_net": ("agent_out/aux_pi", "behaviour_out/logits"),
    "disco/agent_loss_no_meta": tuple(f"meta_out/{k}" for k in ("normalized_q_td", "q_target", "q_td", "q_value")),
    "agent/loss": (
        *(f"meta_out/{name}" for name in ("normalized_q_td", "q_target", "q_td", "q_value")),
        *("rollout/logits", "rollout/rewards"),
    ),
    "agent/learner_step": ("rollout/logits",),
    "actor_critic/unroll": ("agent_out/logits", "behaviour_out/logits"),
    "actor_critic/agent_loss": tuple(
        f"meta_out/{name}" for name in ("normalized_advs", "normalized_tds", "raw_advs", "tds", "values")
    ),
    "policy_gradient/loss": ("value_out/adv", "value_out/normalized_adv"),
    "agent/actor_critic_step": ("rollout/logits",),
    "meta_train/value_fn": ("pi_logits",),
    "distributed/value_fn": ("pi_logits",),
    # The bias of the policy target moves both logits alike; with two actions it cancels to the last bit.
    "distributed/learner_step": ("rollout/logits", "meta_params/lstm/linear_4/b"),
}


@pytest.mark.parametrize("layer", list(REGISTRY))
def test_gradients_are_dead_only_where_the_original_stops_them(store: Store, layer: str) -> None:
    """An input whose VJP is zero in every case proves nothing, unless its gradient is stopped."""
    alive: dict[str, bool] = {}
    for case in store.cases(layer):
        if not store.entry(layer, case)["stored"]:
            continue
        for name, value in store.load(layer, case).vjps.items():
            alive[name] = alive.get(name, False) or bool(np.any(value))
    dead = {name for name, is_alive in alive.items() if not is_alive}
    assert dead == set(STOPPED.get(layer, ())), f"inputs without any gradient in {layer}: {sorted(dead)}"
