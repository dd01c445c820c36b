"""`python -m reports.meta_gradients`: it tells a wrong meta-gradient, and says so when the original is missing."""

import dataclasses
import importlib.util

import pytest

from parity.implementation import load
from reports import meta_gradients

HAS_ORIGINAL = importlib.util.find_spec("disco_rl") is not None


class Altered:
    """The port, with one number of one meta-gradient changed."""

    name, description, layers = "altered", "", load("port").layers

    def __init__(self, factor):
        self.factor = factor

    def run(self, *asked):
        outputs = load("port").run(*asked)
        name = next(name for name in outputs if name.startswith("meta_grads/") and outputs[name].any())
        outputs[name] = outputs[name] * self.factor
        return outputs


@pytest.mark.parametrize("life", meta_gradients.LIVES)
def test_equal_is_equal_and_different_is_different(life):
    port = load("port")
    asked = ("small", life, 2, 3)
    assert meta_gradients.compared(port, port, *asked).equal
    line = meta_gradients.compared(port, Altered(1.0 + 1e-4), *asked)
    assert (line.verdict, line.error) == ("DIFFERENT", pytest.approx(1e-4, rel=1e-3))


def test_what_is_equal_only_by_the_original_s_own_movement_is_told_apart():
    line = meta_gradients.compared(load("port"), load("port"), "small", "later", 1, 0)
    assert line.verdict == "within 1e-9"
    assert dataclasses.replace(line, is_exact=False).verdict == "as near as the original to itself"


def test_a_gradient_where_there_is_none_is_different():
    line = meta_gradients.compared(load("port"), Altered(0.0), "small", "later", 1, 0)
    assert not line.same_zeros and not line.equal


@pytest.mark.skipif(HAS_ORIGINAL, reason="tests what is said without the original")
def test_without_the_original_it_says_what_to_do(tmp_path, capsys):
    assert meta_gradients.main(["--sizes", "small", "--out", str(tmp_path)]) == 2
    assert "make original" in capsys.readouterr().err
