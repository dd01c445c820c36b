"""Diagnosis: a mistake is called by its name, an equal port equal, and an unknown mistake unknown."""

import json
import sys
import types

import numpy as np
import pytest

from parity import mutants
from parity.__main__ import main
from parity.goldens.store import Store
from parity.layers.spec import upstream
from parity.mutants import patterns
from parity.mutants.diagnose import closing_line, diagnose, explain, in_parts
from parity.mutants.mutate import Edit, load_edited
from parity.mutants.suspect import Suspect
from tests import toy

STORE = Store()


class Candidate:
    """The port with mistakes in it, behind an adapter of its own."""

    name, description = "candidate", "the port with mistakes"

    def __init__(self, *edits):
        self.inner = load_edited(mutants.PORT, edits)
        self.layers = self.inner.layers

    def run(self, layer, inputs, settings, dtype):
        return self.inner.run(layer, inputs, settings, dtype)

    def vjp(self, layer, inputs, settings, dtype, cotangents, wrt):
        return self.inner.vjp(layer, inputs, settings, dtype, cotangents, wrt)


class ValuesOnly(Candidate):
    """Gives no VJPs."""

    def vjp(self, *arguments):
        raise NotImplementedError


def with_mistakes(*names, kind=Candidate):
    return kind(*(edit for name in names for edit in mutants.catalogue()[name].edits))


@pytest.mark.parametrize(
    "name",
    [
        "retrace_index_too_late",
        "root_epsilon_left_out",
        "two_hot_epsilon_left_out",
        "polyak_reversed",
        "adam_denominator_not_stopped",
        "gate_order_of_torch",
        "parameters_updated_in_place",
        "initial_weights_corrected_for_truncation",
    ],
)
def test_a_mistake_is_called_by_its_name(name):
    layer = mutants.catalogue()[name].layer
    diagnoses = diagnose(STORE, with_mistakes(name), [layer])
    assert [diagnosis.layer for diagnosis in diagnoses] == [layer]
    assert name in diagnoses[0].mistakes or name in diagnoses[0].also
    assert mutants.catalogue()[diagnoses[0].mistakes[0]].formula in "\n".join(diagnoses[0].lines())


def test_a_mistake_is_recognised_by_its_values_where_there_are_no_gradients():
    diagnoses = diagnose(STORE, with_mistakes("retrace_index_too_late", kind=ValuesOnly), ["values/retrace"])
    assert diagnoses[0].mistakes == ["retrace_index_too_late"]


def test_two_mistakes_in_one_layer_are_told_apart():
    pair = ["retrace_index_too_late", "retrace_target_not_stopped"]
    diagnoses = diagnose(STORE, with_mistakes(*pair), ["values/retrace"])
    assert sorted(diagnoses[0].mistakes) == sorted(pair)


def test_what_a_layer_inherits_is_not_diagnosed_again():
    layers = ["nets/lstm_step", "nets/unroll", "meta/gate"]
    first, second = diagnose(STORE, with_mistakes("forget_bias_left_out"), layers)
    assert (first.layer, first.mistakes, first.feeding) == ("nets/lstm_step", ["forget_bias_left_out"], ())
    assert second.is_inherited
    assert second.feeding == ("nets/lstm_step",)
    assert "inherits forget_bias_left_out" in "\n".join(second.lines())


def test_a_mistake_downstream_of_another_is_found_as_well():
    layers = ["values/retrace", "values/estimate_q"]
    first, second = diagnose(STORE, with_mistakes("retrace_without_lambda", "q_td_sign"), layers)
    assert first.mistakes == ["retrace_without_lambda"]
    assert (second.mistakes, second.is_inherited) == (["q_td_sign"], False)


def test_an_unknown_mistake_is_called_unknown_and_its_pattern_shown():
    tripled = Edit(
        "port.value_fns.value_utils", "return torch.stack(targets[::-1])", "return 3 * torch.stack(targets[::-1])"
    )
    (finding,) = diagnose(STORE, Candidate(tripled), ["values/retrace"])
    text = "\n".join(finding.lines())
    assert finding.mistakes == []
    assert "No catalogued mistake fits." in text
    assert "It is 3 times the right answer throughout." in text


def test_an_unexplained_part_is_said():
    odd = Edit("port.ops", "return expectation(log_p - log_q, log_p)", "return expectation(log_p - 0.7 * log_q, log_p)")
    first, second = diagnose(STORE, Candidate(odd), ["ops/kl", "disco/agent_loss"])
    assert (first.mistakes, first.unexplained_parts) == ([], ())
    assert (second.mistakes, second.unexplained_parts) == ([], ("ops/kl",))
    assert "Part of it and not explained either: ops/kl." in "\n".join(second.lines())


class Altered(Candidate):
    """Changes the answers of some layers, and only of these."""

    def __init__(self, change, *names):
        super().__init__(*(edit for name in names for edit in mutants.catalogue()[name].edits))
        self.change = change

    def run(self, layer, inputs, settings, dtype):
        return self.change(layer, super().run(layer, inputs, settings, dtype), dtype)


@pytest.mark.parametrize(
    "factor", [{"float64": 3.0, "float32": 3.0}, {"float64": 1.0, "float32": np.float32(1 + 2e-5)}]
)
def test_a_difference_without_a_diagnosis_does_not_block_what_is_downstream(factor):
    def change(layer, out, dtype):
        return {name: value * factor[dtype] for name, value in out.items()} if layer == "ops/kl" else out

    first, second = diagnose(STORE, Altered(change, "loss_not_masked"), ["ops/kl", "agent/loss"])
    assert (first.layer, first.mistakes) == ("ops/kl", [])
    assert (second.mistakes, second.is_explained) == (["loss_not_masked"], True)


@pytest.mark.parametrize("is_missing", [True, False])
def test_outputs_without_numbers_do_not_hide_the_others(is_missing):
    def change(layer, out, dtype):
        rest = {name: value for name, value in out.items() if name != "adv"}
        return rest if is_missing else rest | {"adv": out["adv"][:1]}

    (finding,) = diagnose(STORE, Altered(change, "q_td_sign"), ["values/estimate_q"])
    assert (finding.mistakes, finding.scope) == (["q_td_sign"], "numbers")
    assert "It explains all numbers" in "\n".join(finding.lines())


def test_nothing_that_feeds_it_differs_only_where_that_was_looked_at():
    candidate = with_mistakes("q_td_sign")
    (alone,) = diagnose(STORE, candidate, ["values/estimate_q"])
    assert "differs; nothing that feeds it was seen to differ (not compared: " in alone.lines()[0]
    (finding,) = diagnose(STORE, candidate, [*sorted(upstream("values/estimate_q")), "values/estimate_q"])
    assert finding.lines()[0] == "values/estimate_q differs; nothing that feeds it differs."


FOUR = ["loss_not_masked", "target_moves_towards_new_parameters", "loss_epsilon_left_out", "update_norm_before_scaling"]


OTHERS = ["loss_summed", "terminals_not_shifted", "meta_state_not_kept", "norm_as_root_mean_square"]


def test_several_mistakes_in_a_learner_step_are_named_one_after_another():
    suspect = Suspect(STORE, with_mistakes(*FOUR), "agent/learner_step")
    possible = [mutants.catalogue()[name] for name in [*OTHERS, *FOUR]]
    finding = explain(suspect, possible, (), set(), float("inf"))
    assert (set(finding.mistakes), finding.is_explained) == (set(FOUR), True)
    assert "each other one most of what is left" in "\n".join(finding.lines())
    same = mutants.catalogue()["loss_averaged_over_all_steps"]  # without a mask it is the loss without its epsilon
    finding = in_parts(suspect, finding, [same, *possible], ())
    assert any("loss_epsilon_left_out" in name for name in (*finding.mistakes, *finding.also))


def test_a_small_mistake_beside_a_large_one_is_not_taken_for_float32():
    suspect = Suspect(STORE, with_mistakes("loss_not_masked", "loss_epsilon_left_out"), "agent/loss")
    possible = [mutants.catalogue()[name] for name in [*OTHERS, *FOUR]]
    finding = explain(suspect, possible, (), set(), float("inf"))
    assert finding.mistakes == ["loss_not_masked", "loss_epsilon_left_out"]
    assert finding.precision == "within tolerance"


def test_a_mistake_that_explains_nearly_all_is_named_with_what_it_leaves():
    rounded = Edit(
        "port.networks.init", "truncated_normal(noise[name]) * stds", "1.137 * truncated_normal(noise[name]) * stds"
    )
    first, second = diagnose(STORE, Candidate(rounded), ["nets/agent_init", "meta/init"])
    assert (first.mistakes, first.is_explained) == (["initial_weights_corrected_for_truncation"], False)
    assert "Something is unexplained: of 28 outputs that differ it leaves 28, by 0.00013" in "\n".join(first.lines())
    assert (second.mistakes, second.is_inherited) == (first.mistakes, True)
    assert "Without a diagnosis" in closing_line([first], 1)


def test_outputs_of_the_wrong_form_are_recognised():
    (finding,) = diagnose(STORE, with_mistakes("model_heads_in_sorted_order"), ["nets/action_model"])
    assert finding.mistakes == ["model_heads_in_sorted_order"]


def test_the_toy_is_told_its_one_mistake():
    (finding,) = diagnose(STORE, toy.implementation, STORE.layers())
    assert (finding.layer, finding.mistakes) == ("values/retrace", ["retrace_index_too_late"])
    assert diagnose(STORE, toy.right, STORE.layers()) == []


@pytest.fixture
def as_module(monkeypatch):
    """Makes a candidate importable as `injected_candidate:implementation`."""

    def make(candidate):
        module = types.ModuleType("injected_candidate")
        module.implementation = candidate
        monkeypatch.setitem(sys.modules, "injected_candidate", module)
        return "injected_candidate:implementation"

    return make


def test_the_command_says_equal_for_a_clean_port(capsys):
    assert main(["diagnose", "values/retrace", "ops/kl"]) == 0
    assert "all equal, nothing to diagnose" in capsys.readouterr().out


def test_the_command_names_explains_and_shows_the_formula(as_module, capsys, tmp_path):
    name, out = as_module(with_mistakes("kl_the_other_way")), tmp_path / "found.json"
    assert main(["diagnose", "ops/kl", "--impl", name, "--json", str(out)]) == 1
    text = capsys.readouterr().out
    assert "Mistake: kl_the_other_way" in text
    assert "KL(p || q)" in text
    assert "The first layer that differs is ops/kl." in text
    assert json.loads(out.read_text())[0]["mistakes"][0]["name"] == "kl_the_other_way"


@pytest.mark.parametrize("arguments", [["nonsense/layer"], ["--impl", "nonsense"]])
def test_the_command_says_what_it_cannot_run(arguments, capsys):
    assert main(["diagnose", *arguments]) == 2
    assert capsys.readouterr().err.startswith("parity: No ")


def test_upstream_goes_all_the_way():
    assert {"nets/lstm_step", "meta/inputs", "ops/importance_weight"} <= upstream("agent/learner_step")


REF = np.arange(1.0, 13.0).reshape(4, 3) ** 1.5


@pytest.mark.parametrize(
    ("got", "sentence"),
    [
        (-REF, "The sign is reversed."),
        (REF + 2.0, "the right answer plus 2 throughout"),
        (np.roll(REF, -1, axis=0), "step t holds what belongs to step t+1"),
        (np.roll(REF, 1, axis=0), "step t holds what belongs to step t-1"),
        (REF[::-1].copy(), "wrong way round"),
        (REF[:, ::-1].copy(), "another order"),
        (REF.astype(np.float32).astype(np.float64), "Every number is a float32"),
        (np.where(np.arange(4)[:, None] == 3, 0.0, REF), "Only the last step"),
    ],
)
def test_patterns_are_named_where_they_are_plain(got, sentence):
    assert any(sentence in line for line in patterns.describe(REF, got, {}))


def test_patterns_see_terminals_and_stay_silent_otherwise():
    ends = np.array([[False, True, False]] * 4)
    got = REF + np.where(ends, REF * REF, 0.0)
    assert "It is wrong only where is_terminal is True." in patterns.describe(REF, got, {"is_terminal": ends})
    noise = REF + np.sin(np.arange(12.0) * 7 + 1).reshape(4, 3)
    assert patterns.describe(REF, noise, {}) == ["100% of the elements are off."]


class RoundsMore(toy.Toy):
    """Right in float64; in float32 it adds an error of some hundred units in the last place."""

    def run(self, layer, inputs, settings, dtype):
        out = super().run(layer, inputs, settings, dtype)
        return out if dtype == "float64" else {k: v * np.float32(1 + 2e-5) for k, v in out.items()}


def test_float32_rounding_is_not_called_a_mistake(store):
    found = diagnose(store, RoundsMore(), ["moving_average/update"])
    assert [finding.mistakes for finding in found] == [[]]
    assert "Equal in float64, so the formula is right" in "".join(found[0].lines())
