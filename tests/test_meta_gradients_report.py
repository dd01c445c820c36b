"""`python -m reports.meta_gradients`: it tells a wrong meta-gradient, and says so when the original is missing."""

import dataclasses
import importlib.util
import json

import numpy as np
import pytest

from parity.implementation import CannotRun, load
from reports import meta_gradients

HAS_ORIGINAL = importlib.util.find_spec("disco_rl") is not None
ASKED = ("small", "later", 1, 0)


class Altered:
    """The port, with one meta-gradient changed: by a factor, or in one number."""

    name, description, layers = "altered", "", load("port").layers

    def __init__(self, factor, element=None):
        self.factor, self.element = factor, element

    def run(self, *asked):
        outputs = load("port").run(*asked)
        name = next(name for name in outputs if name.startswith("meta_grads/") and outputs[name].any())
        outputs[name] = outputs[name] * self.factor
        if self.element is not None:
            outputs[name].flat[-1] = self.element
        return outputs


class Moving(Altered):
    """A reference that is off by a factor wherever it is not asked at the sample's own inputs; or there alone."""

    def __init__(self, factor, is_off_here=False):
        super().__init__(factor)
        self.is_off_here, self.here = is_off_here, meta_gradients.sample(*ASKED)[0]

    def run(self, layer, inputs, *asked):
        is_here = all(np.array_equal(inputs[name], value) for name, value in self.here.items())
        is_off = is_here == self.is_off_here
        return super().run(layer, inputs, *asked) if is_off else load("port").run(layer, inputs, *asked)


class InTwoWays(Moving):
    """A reference that is off by a factor when it is compiled in another way than users do, at the sample's inputs."""

    as_users_compile = load("port")

    def __init__(self, factor):
        super().__init__(factor, is_off_here=True)


@pytest.mark.parametrize("life", meta_gradients.LIVES)
def test_equal_is_equal_and_different_is_different(life):
    port = load("port")
    asked = ("small", life, 2, 3)
    assert meta_gradients.compared(port, port, *asked, count=2).equal
    line = meta_gradients.compared(port, Altered(1.0 + 1e-4), *asked, count=2)
    assert (line.equal, line.is_exact, line.error) == (False, False, pytest.approx(1e-4, rel=1e-3))
    assert line.verdict == f"DIFFERENT: {line.share:.3g} times what is allowed" and line.share > 100.0


@pytest.mark.parametrize(("error", "equal"), [(0.9e-6, True), (1.1e-6, False)])
@pytest.mark.parametrize("by", ["inputs", "compilation"])
def test_an_error_counts_as_equal_up_to_the_original_s_own_movement_and_no_further(by, error, equal):
    original = (Moving if by == "inputs" else InTwoWays)(1.0 + 1e-6)
    line = meta_gradients.compared(original, Altered(1.0 + error), *ASKED, count=1)
    assert (line.equal, line.is_exact, line.beyond) == (equal, False, 1)
    assert (line.moved, line.share) == (pytest.approx(1e-6, rel=1e-3), pytest.approx(error / 1e-6, rel=1e-3))
    assert line.share_at == line.tensor
    assert (line.verdict == "within the original's own movement") == equal


def test_which_of_the_two_moved_the_original_is_told():
    by_inputs, by_compilation = (
        meta_gradients.compared(original(1.0 + 1e-6), Altered(1.0 + 1e-7), *ASKED, count=1)
        for original in (Moving, InTwoWays)
    )
    assert (by_inputs.moved, by_inputs.moved_by_compilation) == (by_inputs.moved_by_inputs, 0.0)
    assert by_compilation.moved == by_compilation.moved_by_compilation > 1e3 * by_compilation.moved_by_inputs


def test_both_ways_of_compiling_run_at_inputs_nearby():
    original = InTwoWays(1.0 + 1e-6)
    original.is_off_here = False
    line = meta_gradients.compared(original, Altered(1.0 + 1e-7), *ASKED, count=1)
    assert (line.moved_by_inputs, line.moved_by_compilation) == (pytest.approx(1e-6, rel=1e-3), 0.0)


@pytest.mark.parametrize(
    ("known", "calls"),
    [
        ([{"w": 3e-9, "b": 1e-9}, {"w": 2e-9, "b": 2e-9}, {"w": 1e-9, "b": 1e-9}], 2),
        ([{"w": 3e-9, "b": 3e-9}, {"w": 2e-9, "b": 2e-9}], 1),
        ([{"w": 3e-10, "b": 3e-10}, {"w": 2e-10, "b": 2e-10}], 0),  # all within 1e-9
        ([{"w": 3e-9}, {"w": 3e-9}], 0),
        ([{"w": 3e-9}], 0),  # held to nothing
    ],
)
def test_the_original_s_own_answers_are_held_to_the_same_rule(known, calls):
    assert meta_gradients.called_different(known) == calls


def test_a_verdict_says_how_many_of_the_original_s_own_answers_it_would_hit():
    port = load("port")
    line = dataclasses.replace(meta_gradients.compared(port, port, *ASKED, count=1), equal=False, share=1.22)
    assert dataclasses.replace(line, runs=65, own_calls=4).verdict == (
        "DIFFERENT: 1.22 times what is allowed; so are 4 of the original's own 65"
    )
    assert dataclasses.replace(line, runs=65, own_calls=0).verdict == "DIFFERENT: 1.22 times what is allowed"


def test_as_many_inputs_are_tried_as_asked():
    class Counted(Altered):
        runs = 0

        def run(self, *asked):
            Counted.runs += 1
            return super().run(*asked)

    line = meta_gradients.compared(Counted(1.0), load("port"), *ASKED, count=5)
    assert (Counted.runs, line.movements, line.runs) == (1 + 5, 5, 5)


@pytest.mark.parametrize("is_in_original", [False, True])
def test_a_gradient_where_there_is_none_is_different_and_so_is_none_where_there_is_one(is_in_original):
    sides = [Altered(0.0), load("port")] if is_in_original else [load("port"), Altered(0.0)]
    line = meta_gradients.compared(*sides, *ASKED, count=1)
    assert not line.same_zeros and not line.equal
    assert line.verdict == "DIFFERENT: not the same zeros"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_none_is_different_in_any_tensor(bad):
    line = meta_gradients.compared(load("port"), Altered(1.0, bad), *ASKED, count=1)
    assert (line.equal, line.error, line.share) == (False, np.inf, np.inf)
    assert json.loads(json.dumps(line.as_json(), allow_nan=False))["error"] is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_reference_that_is_not_finite_nearby_allows_nothing(bad):
    original = Moving(1.0)
    original.element = bad
    with pytest.raises(CannotRun, match="not finite"):
        meta_gradients.compared(original, load("port"), *ASKED, count=1)


def test_what_it_found_is_written_for_machines(tmp_path, monkeypatch, capsys):
    port = load("port")
    right = meta_gradients.compared(port, port, *ASKED, count=1)
    wrong = dataclasses.replace(right, share=3.0, equal=False)
    for found, code in (([right], 0), ([right, wrong], 1)):
        monkeypatch.setattr(meta_gradients, "lines", lambda sizes, seed, count, found=found: iter(found))
        asked = ["--json", str(tmp_path / "found.json"), "--out", str(tmp_path)]
        assert meta_gradients.main(asked) == code
        rows = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
        assert [row["equal"] for row in rows] == [line.equal for line in found]
        assert rows[-1]["verdict"] == found[-1].verdict
        assert len((tmp_path / "meta_gradients.csv").read_text(encoding="utf-8").splitlines()) == 1 + len(found)
        assert found[-1].verdict in capsys.readouterr().err


def test_no_movement_at_all_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(meta_gradients, "lines", lambda *asked: iter([]))
    assert meta_gradients.main(["--movements", "0", "--out", str(tmp_path)]) == 2
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.skipif(HAS_ORIGINAL, reason="tests what is said without the original")
def test_without_the_original_it_says_what_to_do(tmp_path, capsys):
    assert meta_gradients.main(["--sizes", "small", "--out", str(tmp_path)]) == 2
    assert "make original" in capsys.readouterr().err
