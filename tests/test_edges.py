"""Settings and edges that no golden holds: the value function's averages, and the derivative of a clip on its bound."""

from __future__ import annotations

import pytest
import torch

from parity.layers import REGISTRY
from parity.layers.learning import ALIVE
from parity.layers.spec import Case
from parity.live import comparison
from port import input_transforms
from port.adapter import implementation

AVERAGES = Case("other_averages", {"ema_decay": 0.9, "ema_eps": 1e-3}, (ALIVE,))


def test_the_value_functions_averages_are_the_settings():
    pytest.importorskip("jax", reason="JAX is not installed; `pip install 'disco-parity[jax]'` brings it")
    layer = REGISTRY["meta_train/value_fn"]
    rows = comparison.compare_live(
        comparison.live_reference(), implementation, layer, comparison.drawn(layer, AVERAGES, 5)
    )
    assert len(rows) > 10
    assert [row.sentence() for row in rows if not row.equal] == []


@pytest.mark.parametrize("bound", [2.0, -2.0])
def test_half_the_derivative_passes_on_the_bound_of_the_clip_transform(bound):
    """As in the original: JAX shares the derivative of a maximum evenly between equal arguments."""
    x = torch.tensor([[[bound, bound / 2, 2 * bound]]], dtype=torch.float64, requires_grad=True)
    out = input_transforms.apply("clip", x, torch.zeros(1, 1, dtype=torch.long), torch.ones(2, 1, 1))
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert slope.flatten().tolist() == [0.5, 1.0, 0.0]
