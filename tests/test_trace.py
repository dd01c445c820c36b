"""The error along the data flow of a learner step: own error, error in the chain, and the first layer that differs."""

import json
import xml.etree.ElementTree

import pytest

from parity.__main__ import main
from parity.goldens.store import Store
from parity.implementation import load
from parity.trace import report as tracing
from tests import toy


class WithOneWrong:
    """The port, with Retrace taken from the toy."""

    name, description = "one wrong", ""

    def __init__(self):
        self.port = load("port")
        self.layers = self.port.layers

    def run(self, layer, inputs, settings, dtype):
        # `values/outs` computes its own targets: a port that is wrong in one place is wrong in both.
        chosen = toy.implementation if layer == "values/retrace" else self.port
        return chosen.run(layer, inputs, settings, dtype)

    def vjp(self, *asked):
        return self.port.vjp(*asked)


class OffByAThousandth(WithOneWrong):
    """The agent network scaled by 1.001: everything after it inherits."""

    def run(self, layer, inputs, settings, dtype):
        out = self.port.run(layer, inputs, settings, dtype)
        return {k: v * 1.001 for k, v in out.items()} if layer == "nets/agent" else out


@pytest.fixture(scope="module")
def store():
    return Store()


def test_the_ports_own_chain_stays_equal(store):
    found = tracing.taps(store, load("port"))
    assert len(found) > 35 and all(tap.own.equal for tap in found)
    assert max(tap.inherited for tap in found) < 1e-10
    assert tracing.first_divergence(found) == "No layer differs by an error of its own."


def test_the_first_layer_that_differs_is_told_from_what_inherits(store):
    found = {tap.layer: tap for tap in tracing.taps(store, OffByAThousandth())}
    assert not found["nets/agent"].own.equal
    assert found["values/q_and_v"].own.equal and found["values/q_and_v"].inherited > 1e-5
    said = tracing.first_divergence(list(found.values()))
    assert said == "The first layer that differs is nets/agent; all that feeds it is equal."


def test_a_wrong_layer_that_nothing_else_calls_shows_alone(store):
    wrong = [tap.layer for tap in tracing.taps(store, WithOneWrong()) if not tap.own.equal]
    assert wrong == ["values/retrace"]


def test_the_command_leaves_table_picture_and_rows(tmp_path, capsys):
    asked = ["trace", "--impl", "tests.toy:implementation", "--out", str(tmp_path), "--json", str(tmp_path / "t.json")]
    assert main(asked) == 1
    said = capsys.readouterr().out
    assert "The first layer that differs is values/retrace; of what feeds it, all that is provided is equal" in said
    assert "not provided" in said and "DIFFERS" in said
    picture = xml.etree.ElementTree.parse(tmp_path / "trace.svg")
    assert "values/retrace" in "".join(picture.getroot().itertext())
    rows = {row["layer"]: row for row in json.loads((tmp_path / "t.json").read_text())}
    assert rows["values/retrace"]["own"]["equal"] is False and rows["nets/agent"]["own"] is None
