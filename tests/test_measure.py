"""How far the original moves is measured at a few inputs nearby, and at many where that may become the budget."""

import hashlib

import numpy as np
import pytest

from parity.layers import REGISTRY
from parity.layers.draw import case_inputs
from parity.store import describe
from reference import measure
from reference.measure import JITTERS, JITTERS_WHERE_IT_MOVES, TOLERANCE, Measurement

LAYER = REGISTRY["ops/signed_hyperbolic"]
WAYS = 2  # in which each is compiled


class Moving:
    """In the original's place: an answer of 1 that moves at each other input, farther and farther."""

    def __init__(self, farthest):
        self.farthest, self.asked, self.seen64, self.seen32 = farthest, 0, [], []

    @property
    def as_users_compile(self):
        return self

    def evaluate(self, layer, inputs, settings, dtype, cotangents, wrt, jit=True):
        self.asked += 1
        seen = self.seen64 if dtype == "float64" else self.seen32
        seen.append(hashlib.sha256(b"".join(inputs[name].tobytes() for name in sorted(inputs))).hexdigest())
        moved = self.farthest * (self.asked - 1) / (WAYS * JITTERS)  # the first answer is the truth
        return {"out": np.array([1.0 + moved, -1.0])}, {name: np.zeros_like(inputs[name]) for name in wrt}


def golden(farthest, monkeypatch, branch=None, order=sorted):
    """The golden of an answer that moves so far at six inputs, and who was asked."""
    case, asked = LAYER.cases[0], Moving(farthest)
    inputs = case_inputs(LAYER, case)
    given = {name: inputs[name] for name in order(inputs)}
    made = Measurement(asked, LAYER, case, given, LAYER.case_settings(case), eager=False)
    monkeypatch.setattr(measure, "near_branch", lambda *given: branch or {})
    return made.golden("generated"), asked, made


@pytest.mark.parametrize(("farthest", "inputs"), [(0.4, 0), (0.6, JITTERS_WHERE_IT_MOVES)])
def test_more_inputs_are_asked_where_movement_comes_near_to_the_tolerance(farthest, inputs, monkeypatch):
    found, asked, _ = golden(farthest * TOLERANCE, monkeypatch)
    assert found.movements == inputs
    assert describe(found).get("movements", 0) == inputs
    moved = farthest * TOLERANCE * (inputs or JITTERS) / JITTERS
    assert found.accuracy["value"]["out"].sensitivity64 == pytest.approx(moved, rel=0.1)


def test_no_more_inputs_are_asked_at_a_branch(monkeypatch):
    found, _, _ = golden(0.6 * TOLERANCE, monkeypatch, {"out": 1})
    assert found.movements == 0


def test_the_float32_budgets_are_drawn_from_the_same_inputs_whether_or_not_more_were_asked(monkeypatch):
    few, many = ([*golden(x * TOLERANCE, monkeypatch)[1].seen32] for x in (0.4, 0.6))
    assert few == many
    assert len(few) > JITTERS


def test_the_inputs_do_not_depend_on_the_order_in_which_they_are_named():
    layer = REGISTRY["values/retrace"]
    inputs, settings = case_inputs(layer, layer.cases[0]), layer.case_settings(layer.cases[0])
    seen = []
    for names in (sorted(inputs), sorted(inputs, reverse=True)):
        asked = Moving(0.0)
        given = {name: inputs[name] for name in names}
        Measurement(asked, layer, layer.cases[0], given, settings, eager=False).at_many()
        seen.append(asked.seen64)
    assert seen[0] == seen[1]
