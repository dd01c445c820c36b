"""The catalogue of mutants: it is sound, mutating leaves no trace, and each mutant is killed at its layer."""

import hashlib
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from parity import mutants
from parity.errors import CannotRun
from parity.layers import REGISTRY
from parity.mutants import coverage, live_tier, mutate, tiers
from parity.mutants.tiers import Kill
from parity.sigma import Rounding
from reports.bugs import command as report
from reports.bugs import precision

ROOT = Path(__file__).resolve().parents[1]
CATALOGUE = mutants.catalogue()

FROM_DISCO_TORCH = {
    "retrace_index_too_late",
    "polyak_reversed",
    "clip_before_adam",
    "loss_masked_at_the_terminal",
    "root_epsilon_left_out",
    "two_hot_epsilon_left_out",
    "head_initialisation_left_out",
}


def source(module):
    return (ROOT / f"{module.replace('.', '/')}.py").read_text()


def test_the_catalogue_is_large_and_covers_the_groups_of_layers():
    groups = {mutant.layer.split("/")[0] for mutant in CATALOGUE.values()}
    assert len(CATALOGUE) >= 60
    assert groups == {layer.split("/")[0] for layer in REGISTRY}


def test_the_mistakes_of_disco_torch_are_in_it():
    seen = {name for name, mutant in CATALOGUE.items() if mutant.origin.startswith("disco-torch")}
    assert seen >= FROM_DISCO_TORCH


@pytest.mark.parametrize("name", CATALOGUE)
def test_each_text_to_replace_stands_in_the_port_exactly_once(name):
    for edit in CATALOGUE[name].edits:
        assert edit.module.startswith("port.")
        assert source(edit.module).count(edit.old) == 1, f"{name}: {edit.old!r} in {edit.module}"


def test_no_two_entries_are_the_same_change():
    changes = [mutant.edits for mutant in CATALOGUE.values()]
    assert len(set(changes)) == len(changes)


ENTRY = """
[[mutant]]
name = "polyak_reversed"
layer = "optim/target_average"
module = "port.optimizers"
old = "a"
new = "b"
explanation = "The two coefficients change places."
formula = "t <- c t + (1 - c) o"
origin = "common"
"""


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ('layer = "optim/target_average"', 'layer = "optim/none"', "no layer is called 'optim/none'"),
        ('name = "polyak_reversed"', 'name = "Polyak"', "snake_case"),
        ('origin = "common"', "", "lacks origin"),
        ('origin = "common"', 'origin = "common"\ncolour = "red"', "does not know colour"),
        ('explanation = "The two coefficients change places."', 'explanation = " "', "explanation must be a text"),
        ('new = "b"', 'new = "a"', "nor the same as new"),
        ('origin = "common"', 'origin = "common"\nraises = 7', "raises must be a text"),
        ("[[mutant]]", "[[mutant", "no list of"),
    ],
)
def test_an_entry_that_says_too_little_is_refused_in_a_sentence(tmp_path, wrong, right, message):
    path = tmp_path / "wrong.toml"
    path.write_text(ENTRY.replace(wrong, right))
    with pytest.raises(CannotRun, match=message):
        mutants.read(path)


def test_a_sound_entry_is_read(tmp_path):
    path = tmp_path / "right.toml"
    path.write_text(ENTRY)
    assert [mutant.name for mutant in mutants.read(path)] == ["polyak_reversed"]


def test_an_unknown_name_is_refused():
    with pytest.raises(CannotRun, match="No mutant is called 'nonsense'"):
        mutants.chosen(["nonsense"])


def port_modules():
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "port"}


def snapshot():
    """Every name of every module of the port, by identity, and the files on disk."""
    importlib.import_module("port.adapter")
    names = {name: {k: id(v) for k, v in vars(module).items()} for name, module in port_modules().items()}
    files = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((ROOT / "port").rglob("*.py"))}
    return {name: id(module) for name, module in port_modules().items()}, names, files, list(sys.meta_path)


def average():
    """What the port that can be imported now makes of two parameters."""
    torch = importlib.import_module("torch")
    optim = importlib.import_module("port.optimizers")
    return float(optim.target_average({"w": torch.tensor(1.0)}, {"w": torch.tensor(0.0)}, 0.9)["w"])


def test_mutating_changes_what_is_imported_inside_and_nothing_afterwards():
    before = snapshot()
    with mutate.edited(*CATALOGUE["polyak_reversed"].edits):
        assert average() == pytest.approx(0.1)
    assert average() == pytest.approx(0.9)
    assert snapshot() == before


def test_mutating_leaves_nothing_behind_after_an_exception():
    before = snapshot()
    with pytest.raises(ZeroDivisionError), mutate.edited(*CATALOGUE["polyak_reversed"].edits):
        raise ZeroDivisionError
    assert snapshot() == before


def test_an_edit_that_does_not_fit_is_refused_and_leaves_nothing_behind():
    before = snapshot()
    with (
        pytest.raises(CannotRun, match="0 times; it must stand there once"),
        mutate.edited(mutate.Edit("port.optimizers", "no such text", "x")),
    ):
        pass
    assert snapshot() == before


def test_a_mutant_can_have_several_mistakes_at_once():
    pair = [CATALOGUE["polyak_reversed"], CATALOGUE["gate_order_of_torch"]]
    with mutate.edited(*(edit for mutant in pair for edit in mutant.edits)):
        assert average() == pytest.approx(0.1)
    mutant = mutants.implementation_with(*pair)
    clean = importlib.import_module("port.adapter").implementation
    layer = REGISTRY["nets/lstm_step"]
    inputs = drawn("nets/lstm_step")
    asked = ("nets/lstm_step", inputs, layer.settings, "float64")
    assert not np.allclose(mutant.run(*asked)["cell"], clean.run(*asked)["cell"])


def drawn(layer):
    draw = importlib.import_module("parity.layers.draw")
    return draw.case_inputs(REGISTRY[layer], REGISTRY[layer].cases[0])


@pytest.mark.parametrize(
    ("edit", "layer"),
    [
        # taken by `from port.agent import Agent`
        (
            mutate.Edit("port.agent", "torch.where(is_valid, draws, -1)", "torch.where(is_valid, 2 - draws, -1)"),
            "agent/actor_step",
        ),
        # a default argument of another module's function
        (
            mutate.Edit("port.networks.agent_net", "return step(params, observations, lead=2)", "raise OSError"),
            "nets/agent",
        ),
        # a table that another module makes a default of
        (mutate.Edit("port.input_option", "rewards: sign_log", "rewards: identity"), "meta/inputs"),
    ],
    ids=["imported_by_name", "default_argument", "default_factory"],
)
def test_other_modules_of_the_port_see_the_change(edit, layer):
    spec, inputs = REGISTRY[layer], drawn(layer)
    asked = (layer, inputs, spec.case_settings(spec.cases[0]), "float64")
    clean = mutate.load_edited(mutants.PORT, ()).run(*asked)
    try:
        changed = mutate.load_edited(mutants.PORT, (edit,)).run(*asked)
    except OSError:
        return
    assert any(not np.array_equal(clean[name], changed[name]) for name in clean)


def test_a_mutant_leaves_the_port_as_it_is():
    mutant = mutants.implementation_with(CATALOGUE["forget_bias_left_out"])
    clean = importlib.import_module("port.adapter").implementation
    asked = ("nets/lstm_step", drawn("nets/lstm_step"), REGISTRY["nets/lstm_step"].settings, "float64")
    assert mutant is not clean
    assert not np.allclose(mutant.run(*asked)["cell"], clean.run(*asked)["cell"])


def test_spans_find_functions_methods_lambdas_and_constants():
    def lines(module, old):
        found = coverage.spans(mutate.Edit(module, old, ""))
        return None if found is None else len(found)

    assert lines("port.optimizers", "old * coeff + (1.0 - coeff) * online[name]") == 1
    assert lines("port.agent", "counts = (rollout.discounts[:-1] > 0).to(per_step.dtype)") == 1
    assert lines("port.input_transforms", "x.amax(2)") == 1
    assert lines("port.networks.init", "BOUND = 2.0") == 1
    assert lines("port.networks.agent_net", 'MODEL_HEADS = ("z", "aux_pi", "q")') is None


def test_a_kill_is_judged_by_the_first_layer_in_the_data_flow():
    found = Kill("polyak_reversed", "optim/target_average", {"values": "agent/loss", "gradients": "ops/kl"})
    assert (found.first, found.is_at_named, found.killed_by) == ("ops/kl", False, ["values", "gradients"])
    assert Kill("polyak_reversed", "ops/kl", {"values": "", "live": tiers.NOT_RUN}).killed_by == []


QUARTER = [mutant.name for i, mutant in enumerate(CATALOGUE.values()) if i % 4 == 0 or mutant.name in FROM_DISCO_TORCH]


@pytest.mark.parametrize("name", QUARTER)
def test_a_mutant_is_killed_at_its_layer(name):
    mutant = CATALOGUE[name]
    candidate = mutate.load_edited(mutants.PORT, mutant.edits)
    assert any(tiers.first_difference(candidate, [mutant.layer], tier) for tier in ("values", "gradients"))


def test_the_unchanged_port_is_equal():
    ready = tiers.prepare_layer("values/retrace")
    assert ready.differences == []
    assert ready.enters == tiers.reached_by("values/retrace")
    clean = mutate.load_edited(mutants.PORT, ())
    assert not any(tiers.first_difference(clean, ["values/retrace"], tier) for tier in tiers.STORED)


def test_where_the_unchanged_port_differs_no_mutant_is_tried(monkeypatch):
    mutant = mutate.load_edited(mutants.PORT, CATALOGUE["kl_the_other_way"].edits)
    monkeypatch.setattr(tiers, "unchanged", lambda: mutant)
    wrong = tiers.prepare_layer("ops/kl")
    assert "ops/kl" in wrong.differences[0]

    class Running:
        def run(self, jobs, title):
            yield jobs[0], wrong

    with pytest.raises(CannotRun, match="The unchanged port differs"):
        report.prepared(Running(), ["ops/kl"])


def test_a_change_that_changes_nothing_survives():
    same = mutate.Edit("port.optimizers", "p + updates[name]", "updates[name] + p")
    layers = ("optim/update", "optim/target_average")
    reached = {layer: tiers.reached_by(layer) for layer in layers}
    survivor = tiers.kill(mutants.Mutant("polyak_reversed", "optim", layers[0], (same,), "-", "-", "-"), reached)
    assert not survivor.killed_by
    matrix = report.Matrix([survivor], 1.0, "none")
    assert not matrix.is_good
    assert matrix.survivors == [survivor]
    assert "0 of 1 mutants killed" in matrix.sentence()


def raising(monkeypatch, text, raises):
    """A mutant whose edit raises, killed by all tiers of stored cases."""
    edit = mutate.Edit("port.optimizers", "old * coeff + (1.0 - coeff) * online[name]", text)
    mutant = mutants.Mutant("raising", "optim", "optim/target_average", (edit,), "-", "-", "-", raises)
    for module in (tiers, precision, report):
        monkeypatch.setattr(module, "catalogue", lambda: {"raising": mutant})
    return mutant, tiers.kill(mutant, {mutant.layer: tiers.reached_by(mutant.layer)})


def test_a_mutant_that_raises_is_broken_and_the_report_fails_on_it(monkeypatch, tmp_path, capsys):
    mutant, kill = raising(monkeypatch, "old * coefficient", "")
    assert kill.killed_by == [] and "raised NameError" in kill.broken and "NameError" in kill.as_json()["raised"]
    matrix = report.Matrix([kill], 1.0, "nobody")
    assert (matrix.is_good, matrix.badge, matrix.broken, matrix.survivors) == (False, "broken", [kill], [])
    assert "0 of 1 mutants killed" in matrix.sentence() and "1 broken" in matrix.sentence()
    assert not precision.is_killed("raising", "float32", {mutant.layer: tiers.reached_by(mutant.layer)})
    monkeypatch.setattr(report, "run", lambda *_: matrix)
    assert report.main(["--out", str(tmp_path)]) == 1
    assert "BROKEN: raising. optim/target_average[" in capsys.readouterr().out
    assert "Broken: the mutant raises" in next(tmp_path.glob("*.html")).read_text()


@pytest.mark.parametrize(("raises", "is_killed"), [("NameError", True), ("KeyError", False)])
def test_raising_is_the_mistake_only_where_the_entry_names_the_error(monkeypatch, raises, is_killed):
    _, kill = raising(monkeypatch, "old * coefficient", raises)
    assert bool(kill.killed_by) is is_killed and bool(kill.broken) is not is_killed
    assert report.Matrix([kill], 1.0, "nobody").is_good is is_killed


def test_a_mutant_that_raises_live_is_broken_too(monkeypatch):
    mutant, _ = raising(monkeypatch, "old * coefficient", "")
    row = tiers.first_difference(mutate.load_edited(mutants.PORT, mutant.edits), [mutant.layer], "values")
    kill = Kill("raising", mutant.layer, {"values": mutant.layer})
    kill.note("live", row, 1.0)
    assert kill.broken == row.sentence() and kill.layers["live"] == "" and kill.as_json()["raised"] == kill.broken


def test_layers_that_a_change_cannot_reach_are_not_judged():
    functions = tiers.reached_by("meta/gate")
    assert coverage.is_reached(CATALOGUE["gate_left_out"].edits, functions)
    assert not coverage.is_reached(CATALOGUE["polyak_reversed"].edits, functions)


class Counting:
    """A reference that counts what it is asked."""

    name, description, layers = "counting", "", ("ops/signed_hyperbolic",)

    def __init__(self):
        self.asked = 0

    def run_and_vjp(self, layer, inputs, settings, dtype, cotangents, wrt):
        self.asked += 1
        return {"out": inputs["x"] * 2}, dict.fromkeys(wrt, cotangents["out"] * 2)

    def rounding(self, layer, inputs, settings, cotangents, wrt, bits):
        self.asked += 1
        return Rounding({"value": {"out": {p: inputs["x"] * 2.0**-p for p in bits}}, "vjp": {}})


def test_the_reference_is_asked_once_for_all_mutants_of_a_layer():
    inner, layer = Counting(), REGISTRY["ops/signed_hyperbolic"]
    ask = live_tier.comparison.asking(inner, layer)
    one, other = (live_tier.comparison.drawn(layer, layer.cases[0], seed) for seed in (0, 0))
    goldens = [ask(sample, True, True) for sample in (one, one, other)]
    assert inner.asked == 2 * 2  # the answer and sigma, for each of two samples
    assert goldens[0] is goldens[1] is not goldens[2]
    assert goldens[0].sigma("value", "out", 53).any()
    assert not ask(one, True, False).sigma("value", "out", 53).any()
    assert inner.asked == 2 * 2 + 1


class Sure:
    """The port as live reference, which compiles nothing; sigma of each number is a few roundings of 1."""

    name, description = "sure", ""

    def __init__(self):
        self.inner = mutate.load_edited(mutants.PORT, ())
        self.layers, self.run, self.vjp = self.inner.layers, self.inner.run, self.inner.vjp

    def rounding(self, layer, inputs, settings, cotangents, wrt, bits):
        def sigmas(arrays):
            return {name: {p: np.full(x.shape, 4 * 2.0**-p) for p in bits} for name, x in arrays.items()}

        values = self.run(layer, inputs, settings, "float64")
        return Rounding({"value": sigmas(values), "vjp": sigmas({name: inputs[name] for name in wrt})})


def test_a_mutant_is_killed_live(monkeypatch):
    monkeypatch.setattr(live_tier.comparison, "live_reference", Sure)
    row, _ = live_tier.kill_live("ops/kl", {"kl_the_other_way": "plain"})["kl_the_other_way"]
    assert (row.layer, row.equal) == ("ops/kl", False)


def test_a_mutant_that_needs_another_setting_is_killed_live(monkeypatch):
    monkeypatch.setattr(live_tier.comparison, "live_reference", Sure)
    layer, name = "values/loss_from_target", "squared_error_without_half"
    case = next(case.name for case in REGISTRY[layer].cases if not REGISTRY[layer].case_settings(case)["categorical"])
    assert live_tier.kill_live(layer, {name: "plain"})[name][0] is None
    assert live_tier.kill_live(layer, {name: case})[name][0] is not None


def test_where_the_unchanged_port_differs_live_no_mutant_is_tried(monkeypatch):
    other = mutate.load_edited(mutants.PORT, CATALOGUE["kl_the_other_way"].edits)
    monkeypatch.setattr(live_tier.comparison, "live_reference", lambda: other)
    with pytest.raises(CannotRun, match="differs live"):
        live_tier.kill_live("ops/kl", {})


def test_live_samples_are_of_one_size():
    layer = REGISTRY["values/retrace"]
    tried = live_tier.samples(layer)
    assert len(tried) == live_tier.SAMPLES
    assert all(sample.settings == tried[0].settings for sample in tried)
