"""`python -m reports.meta_gradients`: a wrong meta-gradient is different, and one within its tolerance is equal."""

import dataclasses
import importlib.util
import json

import numpy as np
import pandas as pd
import pytest

from parity.implementation import load
from parity.sigma import Rounding
from reports import meta_gradients

HAS_ORIGINAL = importlib.util.find_spec("disco_rl") is not None
ASKED = ("small", "later", 1, 0)


class Altered:
    """The port, with one meta-gradient changed: by a factor, or in one number; sigma relative to each number."""

    name, description, layers = "altered", "", load("port").layers

    def __init__(self, factor=1.0, element=None, sigma=0.0):
        self.factor, self.element, self.sigma = factor, element, sigma

    def run(self, *asked):
        outputs = load("port").run(*asked)
        name = next(name for name in outputs if name.startswith("meta_grads/") and outputs[name].any())
        outputs[name] = outputs[name] * self.factor
        if self.element is not None:
            outputs[name].flat[-1] = self.element
        return outputs

    def rounding(self, layer, inputs, settings, cotangents, wrt, bits):
        outputs = self.run(layer, inputs, settings, "float64")
        sigmas = {name: {53: self.sigma * np.abs(x)} for name, x in outputs.items() if x.dtype.kind == "f"}
        return Rounding({"value": sigmas, "vjp": {}})


@pytest.mark.parametrize("agent", meta_gradients.AGENTS)
def test_equal_is_equal_and_different_is_different(agent):
    asked = ("small", agent, 2, 3)
    same = meta_gradients.compared(Altered(), load("port"), *asked)
    assert (same.equal, same.error, same.share) == (True, 0.0, 0.0)
    other = meta_gradients.compared(Altered(), Altered(1.0 + 1e-4), *asked)
    assert not other.equal and other.error == pytest.approx(1e-4, rel=1e-3) and other.share > 1e3


@pytest.mark.parametrize(("error", "equal"), [(7e-6, True), (9e-6, False)])
def test_an_error_is_equal_up_to_its_tolerance_and_no_further(error, equal):
    line = meta_gradients.compared(Altered(sigma=1e-6), Altered(1.0 + error), *ASKED)
    assert line.equal == equal
    assert line.sigmas == pytest.approx(error / 1e-6, rel=1e-3)
    assert line.share == pytest.approx(error / 8e-6, rel=1e-3)


@pytest.mark.parametrize("is_in_original", [False, True])
def test_a_gradient_where_there_is_none_is_different_and_so_is_none_where_there_is_one(is_in_original):
    sides = [Altered(0.0), load("port")] if is_in_original else [Altered(), Altered(0.0)]
    assert not meta_gradients.compared(*sides, *ASKED).equal


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_different(bad):
    line = meta_gradients.compared(Altered(), Altered(element=bad), *ASKED)
    assert (line.equal, line.error, line.share) == (False, np.inf, np.inf)
    frame = pd.DataFrame([dataclasses.asdict(line)])
    assert json.loads(meta_gradients.as_json(frame))[0]["error"] is None


def test_what_was_compared_is_written_for_machines(tmp_path, monkeypatch, capsys):
    right = meta_gradients.compared(Altered(), load("port"), *ASKED)
    wrong = dataclasses.replace(right, share=3.0, equal=False)
    for found, code in (([right], 0), ([right, wrong], 1)):
        monkeypatch.setattr(meta_gradients, "lines", lambda sizes, seed, found=found: iter(found))
        assert meta_gradients.main(["--json", str(tmp_path / "found.json"), "--out", str(tmp_path)]) == code
        rows = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
        assert [row["equal"] for row in rows] == [line.equal for line in found]
        assert len((tmp_path / "meta_gradients.csv").read_text(encoding="utf-8").splitlines()) == 1 + len(found)
    assert "DIFFERENT" in capsys.readouterr().out


@pytest.mark.skipif(HAS_ORIGINAL, reason="tests the message without the original")
def test_without_the_original_it_says_what_to_do(tmp_path, capsys):
    assert meta_gradients.main(["--sizes", "small", "--out", str(tmp_path)]) == 2
    assert "make original" in capsys.readouterr().err
