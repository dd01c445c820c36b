"""Meta-updates in a row: reference and candidate each go their own way, and stay as close as rounding lets them."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare import compare
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.layers.spec import Arrays
from parity.plugin import require_layer
from parity.sigma import NONE, measure
from parity.tolerance import PRECISIONS, SAMPLES

OUTER, UPDATE = "meta_train/outer_loss", "meta_train/update"
META_UPDATES, AGENTS = 5, 2
ROLLOUTS = ("train/", "valid/")


class Population:
    """Agents that learn by a rule, and the rule that learns from them, all by one implementation."""

    def __init__(self, implementation: Implementation, are_samples: bool = False) -> None:
        """Fresh agents, and a meta-optimiser that has not moved yet; perhaps with an axis of samples in front."""
        self.implementation, self.are_samples = implementation, are_samples
        layer = REGISTRY[OUTER]
        self.case, self.settings = layer.cases[0], dict(layer.settings)
        starts = [self._drawn(f"agent {i}") for i in range(AGENTS)]
        self.meta_params = {name: x for name, x in starts[0].items() if name.startswith("meta_params/")}
        self.states = [{name: x for name, x in start.items() if not name.startswith(ROLLOUTS)} for start in starts]
        zeros = {name.removeprefix("meta_params/"): np.zeros_like(x) for name, x in self.meta_params.items()}
        self.opt: Arrays = {"opt/count": np.zeros((1,) if are_samples else (), np.int32)}
        self.opt |= {f"opt/{moment}/{name}": x for moment in ("mu", "nu") for name, x in zeros.items()}

    def _drawn(self, name: str) -> Arrays:
        drawn = case_inputs(REGISTRY[OUTER], self.case, name)
        return {name: x[None] if self.are_samples else x for name, x in drawn.items()}

    def advance(self, step: int) -> None:
        """One meta-update, on rollouts that depend on nothing but its number."""
        given: Arrays = {**self.meta_params, **self.opt}
        for i, state in enumerate(self.states):
            drawn = self._drawn(f"agent {i}, meta-update {step}")
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
        require_layer(request, implementation, layer)
    ref, got = Population(reference), Population(implementation)
    start, bits = ref.meta_params, [NONE, *[PRECISIONS["float64"]] * SAMPLES]
    noisy = Population(reference.perturbed(bits), are_samples=True)  # type: ignore[attr-defined]
    for step in range(META_UPDATES):
        for population in (ref, got, noisy):
            population.advance(step)
        sigmas = measure(bits, noisy.meta_params, {}).sigmas["value"]
        for name, truth in ref.meta_params.items():
            where = (OUTER, f"after meta-update {step + 1}", name)
            without_noise = noisy.meta_params[name][0]
            for answer in (got.meta_params[name], without_noise):
                row = compare(where, "value", "float64", truth, answer, sigmas[name][bits[1]])
                assert row.equal, row.sentence()
    moved = max(float(np.abs(x - start[name]).max()) for name, x in ref.meta_params.items())
    assert moved > 1e-3, "nothing was learned, so nothing was compared"
