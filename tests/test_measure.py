"""How far the original moves is measured at a few inputs nearby, and at many where that may become the budget."""

import numpy as np
import pytest

from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from reference.measure import JITTERS, JITTERS_WHERE_IT_MOVES, TOLERANCE, Measurement

LAYER = REGISTRY["ops/signed_hyperbolic"]
WAYS = 2  # in which each is compiled


class Moving:
    """In the original's place: an answer of 1 that moves at each other input, farther and farther."""

    def __init__(self, farthest):
        self.farthest, self.asked = farthest, 0

    @property
    def as_users_compile(self):
        return self

    def evaluate(self, layer, inputs, settings, dtype, cotangents, wrt, jit=True):
        self.asked += 1
        moved = self.farthest * (self.asked - 1) / (WAYS * JITTERS)  # the first answer is the truth
        return {"out": np.array([1.0 + moved, -1.0])}, {}


def measured(farthest):
    case = LAYER.cases[0]
    made = Measurement(Moving(farthest), LAYER, case, case_inputs(LAYER, case), LAYER.case_settings(case), eager=False)
    truth = made.at(made.inputs, "float64")
    return made, truth, made._neighbours(truth)


@pytest.mark.parametrize(("farthest", "inputs"), [(0.4, JITTERS), (0.6, JITTERS_WHERE_IT_MOVES)])
def test_more_inputs_are_asked_where_movement_comes_near_to_the_tolerance(farthest, inputs):
    made, truth, neighbours = measured(farthest * TOLERANCE)
    assert len(neighbours) == WAYS * inputs
    moved = made.sensitivity("value", "out", truth["value"]["out"], neighbours)
    assert moved == pytest.approx(farthest * TOLERANCE * inputs / JITTERS, rel=1e-3)


def test_the_float32_budgets_are_drawn_from_the_same_inputs_whether_or_not_more_were_asked():
    states = [measured(farthest * TOLERANCE)[0].rng.bit_generator.state for farthest in (0.4, 0.6)]
    assert states[0] == states[1]
