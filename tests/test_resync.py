"""Runs in which the port is resynchronised with the original: its whole state, and mistakes still show."""

import functools
import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parity.errors import CannotRun
from parity.mutants import Edit, edits_of
from parity.runs import spec, trace
from parity.runs.lockstep import compare
from parity.runs.runner import Workers
from parity.sigma import Rounding
from reports.lockstep import command, resync, section
from reports.lockstep.port_run import PortLoop, adapter
from reports.lockstep.verdict import ComparedRun, LearnerStep, ResyncedGroup, Verdict

EVERY, STEPS = 6, 20
SMALL = {"batch_size": 4, "rollout_length": 9, "replay_ratio": 2, "capacity": 7, "rows": 5, "columns": 4}
SIZES = {"dense": (8,), "head_mlp_hiddens": (4,), "lstm_size": 4}
PRESETS = ("bundled", "actor_critic")


def run_spec(preset):
    return spec.preset(preset, 3, SIZES, num_steps=STEPS, **SMALL)


def first_params(of):
    agent = adapter()[0](of.settings)
    state = agent.initial_learner_state(torch.Generator().manual_seed(of.seed), torch.float32)
    return importlib.import_module("port.weights").agent_params_to_original(state.params, agent.config)


class PortAsOriginal:
    """The port in the original's place, so that machinery can be tried where the original is not installed."""

    def __init__(self, of, params):
        self.of, self.params, self.loop = of, params, PortLoop(of, "float64", params)

    def rounding(self):
        return Rounding()  # the port beside itself rounds alike

    def steps(self):
        for _ in range(self.of.loop.num_steps):
            report = self.loop.loop.step()
            rollout = {"actions": report.rollout.actions.numpy(), "logits": report.rollout.agent_outs["logits"].numpy()}
            params = {name[7:]: x for name, x in self.loop.learner.items() if name.startswith("params/")}
            yield SimpleNamespace(rollout=rollout, noise=self.loop.noise.last, logs=report.logs, params=params)


@functools.cache
def resynced(preset, edits=(), direction=0):
    """The port compared with itself, which starts with perturbed parameters."""
    of = run_spec(preset)
    params = first_params(of)

    def begin(of):
        original = PortAsOriginal(of, trace.perturbed(params, "float64", direction))
        original.params = params
        return original

    ref, got, learner_steps = resync.resynced(of, EVERY, edits, begin)
    return ComparedRun(preset, of.name, "float64", compare(ref, got), every=EVERY, learner_steps=learner_steps)


def group(one):
    return ResyncedGroup(one.preset, one.dtype, [one])


@pytest.mark.parametrize("preset", PRESETS)
def test_the_same_run_is_equal_to_the_bit(preset):
    one = resynced(preset)
    assert one.port.first is None
    assert one.port.steps == STEPS
    assert not one.port.drift.any()
    assert [step.step for step in one.learner_steps] == [2, 7, 13, 19]
    assert [(step.error, step.is_equal) for step in one.learner_steps] == [(0.0, True)] * 4
    assert group(one).is_equal
    assert f"every {EVERY} steps" in Verdict([one], {}, 0.0).groups[0].sentence()


@pytest.mark.parametrize("preset", PRESETS)
def test_everything_that_decides_the_rest_of_the_run_is_resynchronised(preset):
    of, one = run_spec(preset), resynced(preset, direction=1)
    assert of.loop.num_envs * EVERY > of.loop.capacity  # the buffer has forgotten some by then
    assert one.port.first is None
    assert one.port.drift[EVERY - 1] > 0  # both began otherwise
    assert not one.port.drift[EVERY:].any()  # and are the same to the bit from then on


def test_a_mistake_shows_in_the_first_learner_step():
    one = resynced("bundled", edits_of(["retrace_index_too_late"]))
    assert not group(one).is_equal
    assert not one.learner_steps[0].is_equal and one.learner_steps[0].share > 1e6


def test_a_single_other_action_is_different_however_small_the_drift():
    one = resynced("actor_critic")
    first = trace.FirstDifference(STEPS - 1, 0, 0)
    assert group(one).is_equal
    assert not group(_with(one, port=_with(one.port, first=first))).is_equal


def test_a_mistake_in_what_is_taken_over_shows_before_it_is():
    slightly = Edit("port.optimizers", "(1.0 - coeff) * online", "(1.0 - coeff) * (1.0 + 1e-12) * online")
    one = resynced("bundled", (slightly,))
    assert one.port.first is None  # so nothing else tells
    worst = group(one).worst_learner_step
    assert worst.tensor.startswith("meta_state/target_params/") and worst.share > 10.0
    assert not group(one).is_equal


FINE, OFF = LearnerStep(7, "x", 0.0, 0.0, 0.0, True), LearnerStep(8, "y", 1e-9, 90.0, 11.0, False)


@pytest.mark.parametrize("learner_steps", [(), (OFF,), (FINE, OFF)])
def test_a_learner_step_that_is_off_or_was_not_compared_is_not_equal_in_whichever_run(learner_steps):
    fine = _with(resynced("actor_critic"), learner_steps=(FINE,))
    assert group(fine).is_equal
    for runs in ([_with(fine, learner_steps=learner_steps)], [fine, _with(fine, learner_steps=learner_steps)]):
        assert not ResyncedGroup("actor_critic", "float64", runs).is_equal


def test_nothing_learned_cannot_be_judged():
    one = resynced("actor_critic")
    still = _with(one, port=_with(one.port, loss=np.full_like(one.port.loss, np.nan)))
    with pytest.raises(CannotRun, match="nothing is learned"):
        Verdict([still], {}, 0.0)


@pytest.mark.parametrize(
    ("sigma", "got", "is_equal", "sigmas"),
    [
        (0.0, [1.0, 4.0], True, 0.0),
        (1e-6, [1.0 + 7e-6, 4.0], True, 7.0),
        (1e-6, [1.0 + 9e-6, 4.0], False, 9.0),
        (1e-6, [1.0, np.nan], False, np.inf),
        (1e-6, [1.0, 4.0, 4.0], False, np.inf),
    ],
)
def test_learners_are_compared_by_the_rule(sigma, got, is_equal, sigmas):
    rounding = Rounding({"value": {"a": {53: np.full(2, sigma)}}, "vjp": {}})
    refs, gots = {"a": np.array([1.0, 4.0]), "n": np.array(3)}, {"a": np.array(got), "n": np.array(3)}
    found = resync.compare_learners(7, run_spec("bundled"), refs, gots, rounding)
    assert (found.step, found.tensor, found.is_equal) == (7, "a", is_equal)
    assert found.sigmas == pytest.approx(sigmas, rel=1e-6)


def test_states_of_other_names_are_a_sentence():
    arrays = ({"a": np.ones(1), "b": np.ones(1)}, {"a": np.ones(1), "c": np.ones(1)})
    with pytest.raises(CannotRun, match="After 7 steps only one of .* has this in its state: b, c"):
        resync.compare_learners(7, run_spec("bundled"), *arrays, Rounding())


def test_a_different_action_is_told_with_its_margin():
    of = run_spec("actor_critic")
    params = first_params(of)

    class Other(PortAsOriginal):
        def steps(self):
            for number, step in enumerate(super().steps()):
                if number == 3:
                    step.rollout["actions"] = step.rollout["actions"].copy()
                    step.rollout["actions"][2, 1] = (step.rollout["actions"][2, 1] + 1) % 3
                yield step

    ref, got, _ = resync.resynced(of, EVERY, (), lambda of: Other(of, params))
    first = compare(ref, got).first
    assert first[:3] == (3, 2, 1)
    assert first.margin > 0


def test_a_port_that_overflows_ends_with_a_sentence():
    nan = Edit("port.optimizers", "* -learning_rate for name", "* float('nan') for name")
    with pytest.raises(CannotRun, match="The port cannot go on after 1 steps: .* not finite"):
        resynced("actor_critic", (nan,))


def test_the_page_shows_that_the_port_was_resynchronised(tmp_path):
    origin = {"original": {"repository": "here", "commit": "none"}, "packages": {}}
    made = section.section_of(Verdict([resynced("bundled")], {}, 1.0), origin, "x", tmp_path, is_live=True)
    assert f"Every {EVERY} steps the port is resynchronised with the original" in " ".join(made.body.split())
    assert "nan" not in made.body.replace("nanmax", "").split("<img")[0]
    assert made.badge == "in lockstep"
    assert f"(resynchronised every {EVERY} steps)" in made.verdict


def _with(compared, **changes):
    return type(compared)(**{**vars(compared), **changes})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--renew", "50"], "--resync-every goes with --live"),
        (["--resync-every", "50", "--live", "--quick"], "without --quick"),
        (["--resync-every", "50", "--live", "--traces", "x"], "without --quick and --traces"),
        (["--resync-every", "50", "--live", "--dtypes", "float32"], "is in float64"),
        (["--resync-every", "0", "--live"], "--resync-every takes from 1 step to"),
        (["--resync-every", "40", "--live", "--steps", "40"], "to 39, one less than a run has; got 40"),
        (["--resync-every", "100", "--live", "--steps", "0"], "--steps takes at least 1"),
    ],
)
def test_what_cannot_be_resynchronised_is_refused_with_a_sentence(given, said, tmp_path, capsys):
    assert command.main([*given, "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_without_the_genuine_original_it_says_so(tmp_path, monkeypatch, capsys):
    record = importlib.import_module("reference.record.goldens")

    def refuse():
        raise record.RecordError("it is not there.")

    monkeypatch.setattr(record, "require_original", refuse)
    assert command.main(["--live", "--resync-every", "50", "--out", str(tmp_path)]) == 2
    assert "The original must run beside the port: it is not there." in capsys.readouterr().err


def test_runs_that_have_ended_are_not_repeated(tmp_path, monkeypatch):
    of, count = run_spec("actor_critic"), []

    def run(every, edits):
        return command.run(resync.ResyncPlan([of], every, {}, edits, Workers(0), tmp_path))

    def begin(of):
        count.append(of.name)
        return PortAsOriginal(of, first_params(of))

    monkeypatch.setattr(resync.resynced, "__defaults__", (begin,))
    first, again = (run(EVERY, ()).runs[0] for _ in range(2))
    assert count == [of.name]
    assert np.array_equal(first.port.loss, again.port.loss, equal_nan=True)
    steps = resynced("actor_critic").learner_steps
    assert list(first.learner_steps) == list(again.learner_steps) == list(steps)
    run(EVERY + 1, ())
    run(EVERY, edits_of(["slower"]))
    assert len(count) == 3


@pytest.mark.parametrize("preset", PRESETS)
def test_the_original_runs_beside_the_port(preset, monkeypatch):
    pytest.importorskip("disco_rl", reason="the original is not installed; `make original` brings it")
    from reference import jax_runtime
    from reference.original import eval_loop

    known = {name: value for name, value in jax_runtime.QUICK.items() if jax_runtime.is_known(name)}
    monkeypatch.setattr(eval_loop, "COMPILER_OPTIONS", known)
    of = run_spec(preset)
    ref, got, learner_steps = resync.resynced(of, EVERY, ())
    one = ComparedRun(preset, of.name, "float64", compare(ref, got), every=EVERY, learner_steps=learner_steps)
    assert group(one).is_equal, group(one).sentence()
    assert one.port.steps == STEPS
    assert one.port.drift[EVERY - 1] > 0  # two programs, each of which rounds in its own way
