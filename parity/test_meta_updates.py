"""Meta-updates in a row: reference and candidate each go their own way, and stay as close as rounding lets them."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare import compare
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.layers.spec import Arrays
from parity.plugin import NOT_PROVIDED
from parity.sigma import measure, measured_at
from parity.tolerance import PRECISIONS, SAMPLES

OUTER, UPDATE = "meta_train/outer_loss", "meta_train/update"
META_UPDATES, AGENTS = 5, 2
ROLLOUTS = ("train/", "valid/")


class Population:
    """Agents that learn by a rule, and the rule that learns from them, all by one implementation."""

    def __init__(self, implementation: Implementation) -> None:
        """Fresh agents, and a meta-optimiser that has not moved yet."""
        self.implementation = implementation
        layer = REGISTRY[OUTER]
        self.case, self.settings = layer.cases[0], dict(layer.settings)
        starts = [case_inputs(layer, self.case, f"agent {i}") for i in range(AGENTS)]
        self.meta_params = {name: x for name, x in starts[0].items() if name.startswith("meta_params/")}
        self.states = [{name: x for name, x in start.items() if not name.startswith(ROLLOUTS)} for start in starts]
        zeros = {name.removeprefix("meta_params/"): np.zeros_like(x) for name, x in self.meta_params.items()}
        self.opt: Arrays = {"opt/count": np.zeros((), np.int32)}
        self.opt |= {f"opt/{moment}/{name}": x for moment in ("mu", "nu") for name, x in zeros.items()}

    def advance(self, step: int) -> None:
        """One meta-update, on rollouts that depend on nothing but its number."""
        given: Arrays = {**self.meta_params, **self.opt}
        for i, state in enumerate(self.states):
            drawn = case_inputs(REGISTRY[OUTER], self.case, f"agent {i}, meta-update {step}")
            rollouts = {name: x for name, x in drawn.items() if name.startswith(ROLLOUTS)}
            out = self.implementation.run(OUTER, {**state, **rollouts, **self.meta_params}, self.settings, "float64")
            self.states[i] = {name: out.get(name, x) for name, x in state.items()}
            given |= {
                name.replace("meta_grads", f"grads/{i}", 1): x for name, x in out.items() if "meta_grads/" in name
            }
        settings = {"N": AGENTS, "meta_learning_rate": 1e-3}
        out = self.implementation.run(UPDATE, given, settings, "float64")
        self.meta_params = {name: out[name] for name in self.meta_params}
        self.opt = {name: out[name] for name in self.opt}


def test_five_meta_updates_stay_together(
    request: pytest.FixtureRequest, reference: Implementation, implementation: Implementation
) -> None:
    for layer in (OUTER, UPDATE):
        if layer not in implementation.layers:
            end = pytest.fail if request.config.getoption("--strict") else pytest.skip
            end(f"{implementation.name} {NOT_PROVIDED} {layer}")
    ref, got = Population(reference), Population(implementation)
    perturb = reference.perturbed  # type: ignore[attr-defined]
    start, bits = ref.meta_params, PRECISIONS["float64"]
    noisy = [(p, Population(perturb(sample, p))) for p in measured_at([bits]) for sample in range(SAMPLES)]
    for step in range(META_UPDATES):
        for population in (ref, got, *(one for _, one in noisy)):
            population.advance(step)
        perturbed: list[tuple[int, Arrays, Arrays]] = [(p, one.meta_params, {}) for p, one in noisy]
        sigmas = measure([(0, ref.meta_params, {}), *perturbed]).sigmas["value"]
        for name, truth in ref.meta_params.items():
            where = (OUTER, f"after meta-update {step + 1}", name)
            row = compare(where, "value", "float64", truth, got.meta_params[name], sigmas[name][bits])
            assert row.equal, row.sentence()
    moved = max(float(np.abs(x - start[name]).max()) for name, x in ref.meta_params.items())
    assert moved > 1e-3, "nothing was learned, so nothing was compared"
