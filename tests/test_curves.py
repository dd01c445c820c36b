"""Learning curves: files that cannot lie, runs that are not lost, and the command that compares them."""

import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity.errors import CannotRun, FixtureError
from parity.goldens import manifests
from parity.runs import learners, spec
from parity.runs.curves import Curve, Recorded, file_name, from_csv, manifest_entry, to_csv
from parity.runs.learners import TrainingRun
from parity.runs.runner import Workers
from parity.runs.spec import Loop, RunSpec
from port.adapter import curves as port_curves
from port.config import eval_agent_config, get_settings_disco
from port.evaluate import __main__, eval_loop
from reference.__main__ import main as reference_main
from reference.record import curves as recorder
from reports import page
from reports.catch_curves import command as catch_curves
from reports.catch_curves.command import Share

ROOT = Path(__file__).resolve().parents[1]
STEPS = 150
TOY = """
import math, os, random, time

class Toy:
    name, description, layers, run = "toy", "a toy", (), None

    def __init__(self, stretch):
        self.stretch = stretch

    def train(self, spec):
        if spec.rule != "toy":
            return None
        return self._train(spec)

    def _train(self, spec):
        folder, seed = spec.agent["folder"], spec.seed
        with open(f"{folder}/begun", "a") as file:
            file.write(f"{seed} ")
        rng = random.Random(seed)
        middle = 50 * self.stretch * math.exp(rng.gauss(0, 0.05))
        for step in range(1, spec.num_steps + 1):
            if step == 75 and seed == 1 and os.path.exists(f"{folder}/kill"):
                os.remove(f"{folder}/kill")
                os.kill(os.getppid(), 9)
                time.sleep(0.5)
            rate = 0.1 + 0.85 / (1 + math.exp(-(step - middle) / (0.1 * middle)))
            yield 58 * step, [rng.random() < rate for _ in range(20)], (1.0 + rng.gauss(0, 0.01)) if step > 5 else None

class Short(Toy):
    def _train(self, spec):
        yield from list(super()._train(spec))[:-1]

class Broken(Toy):
    def _train(self, spec):
        yield 58, [True], None
        raise ValueError("the board is on fire")

class Layers:
    name, description, layers, run = "layers", "no learner", (), None

same, slow, short, broken, layers = Toy(1.0), Toy(1.25), Short(1.0), Broken(1.0), Layers()
"""


def toy_spec(folder, steps=STEPS, preset="toy"):
    loop = Loop(num_steps=steps, batch_size=4, replay_ratio=2)
    return RunSpec(preset, "toy", None, 0, {"folder": str(folder), "learning_rate": 0.1}, loop)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with toy learners, importable here and in the processes that are started."""
    (tmp_path / "toy_learners.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("toy_learners", None)


def begun(folder):
    return sorted(int(seed) for seed in (folder / "begun").read_text().split())


def some_runs(folder, count=3, name="toy_learners:same"):
    return [TrainingRun(name, toy_spec(folder).with_seed(seed)) for seed in range(count)]


def curve(seed=0, steps=40):
    caught = np.random.default_rng(seed).random((steps, 7)) < np.linspace(0.1, 0.9, steps)[:, None]
    return Curve.of((58 * i, row, None if i < 5 else -(2.0**-i) / 3) for i, row in enumerate(caught.tolist(), start=1))


def write_recorded(folder, toy, found):
    """Curves and their manifest, as the recorder leaves them."""
    files = {file_name(toy.preset, seed): to_csv(one) for seed, one in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    seeds = {str(seed): hashlib.sha256(to_csv(one)).hexdigest() for seed, one in found.items()}
    entry = {"spec": manifest_entry(toy), "seeds": seeds, "packages": {"jax": "0.8.1"}}
    entry["original"] = {"repository": "somewhere", "commit": "abc"}
    manifests.write(folder / "manifest.json", {"curves": {toy.preset: entry}})
    return Recorded(folder)


# Files


def test_a_run_comes_back_from_its_file_as_it_was():
    assert from_csv(to_csv(curve()), "x") == curve()


def test_the_catch_rate_is_over_the_last_hundred_episodes():
    rates = curve().catch_rates
    every = [c for step in curve().caught for c in step]
    for step in (0, 10, 39):
        assert rates[step] == pytest.approx(np.mean(every[: 7 * (step + 1)][-100:]))
    assert math.isnan(Curve.of([(58, [], None), (116, [True], 0.5)]).catch_rates[0])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text.replace(",-0.0", ",-0x0", 1), "line 6"),
        (lambda text: text[:-3], "whole curve"),
        (lambda text: text.replace("step,", "stop,"), "must begin with"),
        (lambda text: text.replace("\n5,", "\n6,"), "line 6"),
        (lambda text: text.replace("\n5,290,0.", "\n5,290,0.9"), "line 6: the catch rate is not the one"),
    ],
)
def test_a_damaged_file_is_named_with_the_line(damage, said):
    with pytest.raises(FixtureError, match="it.csv") as found:
        from_csv(damage(to_csv(curve()).decode()).encode(), "it.csv")
    assert said in str(found.value)


def test_recorded_curves_are_checked_against_their_digests(tmp_path):
    setting = toy_spec(tmp_path, 40)
    recorded = write_recorded(tmp_path / "fx", setting, {0: curve(0), 3: curve(3)})
    assert recorded.curves(setting) == {0: curve(0), 3: curve(3)}
    (tmp_path / "fx" / file_name("toy", 3)).write_bytes(to_csv(curve(4)))
    with pytest.raises(FixtureError, match="toy_seed3.csv is damaged.*reference curves"):
        recorded.curves(setting)
    (tmp_path / "fx" / file_name("toy", 0)).unlink()
    with pytest.raises(FixtureError, match="toy_seed0.csv is missing"):
        recorded.curves(setting)


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """Two presets, of which one has recorded curves, and those."""
    known = toy_spec(tmp_path, 40)
    monkeypatch.setattr(catch_curves, "preset", lambda name: dataclasses.replace(known, preset=name))
    return write_recorded(tmp_path / "fx", known, {0: curve(0)})


def test_a_preset_without_recorded_curves_is_left_out_and_named(toys, capsys):
    (found,) = catch_curves.available({"toy": Share(2, steps=10), "other": Share(2)}, toys)
    assert (found[0].preset, found[0].num_steps) == ("toy", 10)
    assert "The original's curves with other are not recorded" in capsys.readouterr().err


def test_a_preset_without_weights_is_left_out_with_the_reason(toys, capsys, monkeypatch):
    def refuse(self):
        raise FixtureError("There are no weights here.")

    monkeypatch.setattr(RunSpec, "weights_path", refuse)
    weighty = dataclasses.replace(catch_curves.preset("toy"), weights="disco103")
    monkeypatch.setattr(catch_curves, "preset", lambda name: weighty)
    with pytest.raises(CannotRun, match="Nothing can be trained"):
        catch_curves.available({"toy": Share(2)}, toys)
    assert "There are no weights here. It is left out." in capsys.readouterr().err


def test_a_preset_that_was_asked_for_is_never_left_out_in_silence(toys):
    (found,) = catch_curves.available({"toy": Share(2), "other": Share(2)}, toys, ["other"])
    assert found[0].preset == "other"
    with pytest.raises(FixtureError, match="other"):
        toys.curves(found[0])


def test_whoever_is_shown_with_the_candidate_runs_as_many_seeds_as_the_plan_gives_it(folder):
    plan = [(toy_spec(folder), Share(3, beside={"toy_learners:slow": 1}))]
    found = catch_curves.runs_of(["toy_learners:same"], plan, ["toy_learners:slow", "toy_learners:short"])
    assert [(run.learner, run.spec.seed) for run in found] == [
        *(("toy_learners:same", seed) for seed in range(3)),
        ("toy_learners:slow", 0),
    ]


def test_only_what_can_be_imported_is_shown_beside(monkeypatch):
    monkeypatch.setattr(catch_curves, "BESIDE", {"here": "json", "not here": "no_such_package", "judged": "math"})
    assert catch_curves.shown_beside(["judged"]) == ["here"]


def test_curves_of_other_settings_are_refused_but_for_shorter_runs(tmp_path):
    setting = toy_spec(tmp_path, 40)
    recorded = write_recorded(tmp_path / "fx", setting, {0: curve(0)})
    assert recorded.curves(setting.with_steps(10)) == {0: curve(0)}
    with pytest.raises(FixtureError, match="another agent"):
        recorded.curves(dataclasses.replace(setting, agent={**setting.agent, "learning_rate": 0.08}))
    with pytest.raises(FixtureError, match="No curve of other"):
        recorded.curves(dataclasses.replace(setting, preset="other"))


def test_absent_and_damaged_manifests_are_told(tmp_path):
    with pytest.raises(FixtureError, match="there are no recorded curves"):
        Recorded(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(FixtureError, match="manifest.json is damaged"):
        Recorded(tmp_path)


# Runs


def test_every_run_is_kept_and_none_is_repeated(folder):
    work, asked = folder / "work", some_runs(folder)
    first = learners.train_all(asked[:2], work, Workers(2))
    every = learners.train_all(asked, work, Workers(2))
    assert begun(folder) == [0, 1, 2]
    assert all(every[key] == first[key] for key in first)
    assert sorted(path.suffix for path in work.iterdir()) == [".csv"] * 3


def test_other_settings_and_other_code_are_other_runs(folder):
    run = some_runs(folder, 1)[0]
    other = dataclasses.replace(run, spec=run.spec.with_steps(20))
    assert run.digest() != other.digest() != dataclasses.replace(other, spec=other.spec.with_seed(1)).digest()
    before = learners.code_digest("toy_learners:same")
    learners.code_digest.cache_clear()
    (folder / "toy_learners.py").write_text(TOY + "# changed\n")
    assert learners.code_digest("toy_learners:same") != before
    learners.code_digest.cache_clear()


@pytest.mark.parametrize(("name", "said"), [("short", "ended after 149 of 150"), ("broken", "the board is on fire")])
def test_a_run_that_fails_is_a_sentence_and_leaves_no_file(folder, name, said):
    with pytest.raises(CannotRun, match=said):
        learners.train_all(some_runs(folder, 1, f"toy_learners:{name}"), folder / "work", Workers(1))
    assert not list(folder.glob("work/*"))


def test_a_preset_with_another_number_of_steps_is_the_same_but_for_them():
    long, short = spec.preset("bundled", 3), spec.lockstep_preset("bundled", 3, 20)
    assert short == long.with_steps(20) and short != long and (short.name, short.num_steps) == ("bundled_seed3", 20)
    assert spec.lockstep_preset("actor_critic", 0).num_steps == 120
    assert RunSpec.from_json(json.loads(json.dumps(short.as_json()))) == short
    with pytest.raises(ValueError, match="no preset 'embedded'"):
        spec.preset("embedded")


def test_mutants_are_of_the_port_only():
    assert learners.learner("port+slower").name == "port"
    with pytest.raises(CannotRun, match="of the port only"):
        learners.learner("standin+slower")
    with pytest.raises(CannotRun, match="No mutant is called 'no_such'"):
        learners.learner("port+no_such")


# The port


def test_the_ports_agents_are_those_of_its_own_evaluation():
    disco103, bundled = spec.preset("disco103"), spec.preset("bundled")
    assert port_curves.agent_config(disco103) == eval_agent_config(get_settings_disco())
    default = __main__.task_of(__main__.parser().parse_args([]))
    assert port_curves.agent_config(bundled) == default.agent
    assert eval_loop.EvalConfig(**dataclasses.asdict(bundled.loop)) == default.loop


def test_a_run_of_the_port_is_its_evaluation_and_a_slower_port_learns_less():
    small = {"num_steps": 12, "batch_size": 8, "replay_ratio": 4, "capacity": 16, "rows": 4, "columns": 3}
    small_run = spec.preset("bundled", 5, **small)
    as_it_is, slower = (from_csv(learners.train(name, small_run), name) for name in ("port", "port+slower"))
    task = __main__.task_of(__main__.parser().parse_args([]))
    run = dataclasses.replace(task, loop=eval_loop.EvalConfig(**small)).start(5)
    reports = [run.step() for _ in range(run.config.num_steps)]
    assert as_it_is.caught == tuple(tuple(x > 0 for x in report.episode_returns) for report in reports)
    assert as_it_is.frames == slower.frames == tuple(report.frames for report in reports)
    assert as_it_is.caught != slower.caught


def test_the_originals_settings_are_the_notebooks():
    """But for what an agent does not read: how a fresh meta-network would be drawn, and another rule's discount."""
    pytest.importorskip("disco_rl", reason="the original is not installed; `make original` brings it")
    from disco_rl import agent as agent_lib

    from reference.original.curves import agent_for

    notebook, settings = agent_lib.get_settings_disco().to_dict(), agent_for(spec.preset("disco103")).settings.to_dict()
    notebook["learning_rate"] = 1e-2
    del notebook["hyper_params"]["discount_factor"]
    del notebook["update_rule"]["net"]["state_stddev"], settings["update_rule"]["net"]["state_stddev"]
    averages = {"moving_average_decay": 0.99, "moving_average_eps": 1e-6}
    assert settings == {**notebook, "update_rule": {**notebook["update_rule"], **averages}}


# The command


@pytest.fixture
def command(folder, monkeypatch):
    """Runs the command with the toy preset, against recorded runs of the toy."""
    setting = toy_spec(folder)
    monkeypatch.setattr(catch_curves, "preset", lambda name: setting)
    monkeypatch.setattr(catch_curves, "DEFAULT", {"toy": Share(4)})
    made = [from_csv(learners.train("toy_learners:same", setting.with_seed(50 + i)), "it") for i in range(8)]
    write_recorded(folder / "fx", setting, dict(enumerate(made)))

    def run(*more, out="out"):
        fixed = ["--recorded", str(folder / "fx"), "--out", str(folder / out), "--jobs", "0"]
        return catch_curves.main([*fixed, *more])

    return run


def test_an_equal_learner_ends_with_0_and_a_slower_one_with_1(folder, command, capsys):
    assert command("--impl", "toy_learners:same", "--json", str(folder / "verdict.json")) == 0
    assert "equivalent: learning takes" in capsys.readouterr().out
    assert json.loads((folder / "verdict.json").read_text())[0]["equal"] is True
    assert command("--impl", "toy_learners:slow") == 1
    assert "different: it learns slower" in capsys.readouterr().out
    html = (folder / "out" / "index.html").read_text()
    for name in ("curves.csv", "summary.json", "curves.png"):
        assert (folder / "out" / name).stat().st_size > 100 and name in html
    summary = json.loads((folder / "out" / "summary.json").read_text())["presets"]["toy"]
    assert summary["candidates"]["toy_learners:slow"]["verdict"] == "different"
    assert len(summary["original"]["missed"]) == 8 and summary["power"][0]["seeds"] == 3


def test_too_few_seeds_are_no_proof(command, capsys):
    assert command("--impl", "toy_learners:same", "--seeds", "2") == 1
    assert "at least 3 on each side" in capsys.readouterr().out


def test_what_cannot_run_is_a_sentence_and_ends_with_2(folder, command, capsys):
    for options, said in (
        (("--impl", "toy_learners:layers"), "does not learn"),
        (("--impl", "port", "--seeds", "0"), "at least 1"),
        (("--impl", "nothing_there:x"), "no module 'nothing_there'"),
        (("--recorded", str(folder / "none"), "--impl", "toy_learners:same"), "no recorded curves"),
    ):
        assert command(*options) == 2
        assert said in capsys.readouterr().err


def test_the_page_says_so_where_an_implementation_does_not_learn(folder):
    made = catch_curves.section("toy_learners:layers", folder / "out")
    assert isinstance(made, page.Section) and "does not learn" in made.body


KILLED = """
if __name__ == "__main__":  # the processes that are started import this file, too
    import json, sys
    from pathlib import Path
    from parity.runs.spec import RunSpec
    from reports.catch_curves import command as catch_curves

    folder = Path(sys.argv[1])
    spec = RunSpec.from_json(json.loads((folder / "spec.json").read_text()))
    catch_curves.preset = lambda name: spec
    catch_curves.DEFAULT = {"toy": catch_curves.Share(3)}
    fixed = ["--impl", "toy_learners:same", "--recorded", str(folder / "fx"), "--jobs", "1"]
    raise SystemExit(catch_curves.main([*fixed, "--out", sys.argv[2]]))
"""


def test_a_killed_run_goes_on_and_gives_the_same_figures_to_the_last_bit(folder, command):
    script = folder / "killed.py"
    script.write_text(KILLED)
    (folder / "spec.json").write_text(json.dumps(toy_spec(folder).as_json()))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}

    def run():
        done = [sys.executable, str(script), str(folder), str(folder / "out")]
        return subprocess.run(done, cwd=ROOT, env=environment, capture_output=True, text=True)

    (folder / "begun").unlink()
    (folder / "kill").write_text("")
    assert run().returncode == -9
    assert begun(folder) == [0, 1] and len(list(folder.glob("out/runs/*.csv"))) == 1
    done = run()
    assert done.returncode in (0, 1), done.stderr
    assert "training runs: 1 of 3 had ended before" in done.stderr
    assert begun(folder) == [0, 1, 1, 2]
    assert command("--impl", "toy_learners:same", "--seeds", "3", out="whole") == done.returncode
    for name in ("curves.csv", "summary.json"):
        assert (folder / "out" / name).read_bytes() == (folder / "whole" / name).read_bytes()


# The recorder


def test_recording_a_preset_again_leaves_the_others_and_removes_what_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "provenance", lambda: {"packages": {}})
    one, other = toy_spec(tmp_path, 40), toy_spec(tmp_path, 40, "other")
    for toy, seeds in ((one, 3), (other, 1), (one, 2)):
        recorder.keep(toy, {seed: curve(seed) for seed in range(seeds)}, tmp_path / "fx")
    recorded = Recorded(tmp_path / "fx")
    assert sorted(recorded.presets()) == ["other", "toy"]
    assert recorded.curves(one) == {0: curve(0), 1: curve(1)} and recorded.curves(other) == {0: curve(0)}
    assert len(list((tmp_path / "fx").glob("*.csv"))) == 3


def test_recording_one_preset_leaves_the_unfinished_runs_of_another(folder, monkeypatch):
    monkeypatch.setattr(recorder, "PRESETS", ("toy",))
    monkeypatch.setattr(recorder, "preset", lambda name: toy_spec(folder))
    monkeypatch.setattr(recorder, "LEARNER", "toy_learners:same")
    monkeypatch.setattr(recorder, "_require_original", lambda: None)
    monkeypatch.setattr(recorder, "provenance", lambda: {"packages": {}})
    unfinished = folder / "fx" / ".recording" / "original_other_seed0_abc.csv"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text("of another recording")
    assert reference_main(["curves", "--seeds", "2", "--jobs", "0", "--out", str(folder / "fx")]) == 0
    assert list(Recorded(folder / "fx").curves(toy_spec(folder))) == [0, 1]
    assert list(unfinished.parent.iterdir()) == [unfinished]


def test_an_original_that_is_not_genuine_is_not_recorded(tmp_path, monkeypatch, capsys):
    absent = dataclasses.replace(recorder.identity.identify(search_path=[]), message="It is not there.")
    monkeypatch.setattr(recorder.identity, "identify", lambda: absent)
    assert reference_main(["curves", "--presets", "actor_critic", "--out", str(tmp_path / "fx")]) == 2
    assert "genuine original only. It is not there." in capsys.readouterr().err
    assert not (tmp_path / "fx").exists()


@pytest.mark.parametrize(
    ("states", "badge"),
    [
        (["equivalent", "equivalent"], "equivalent"),
        (["undecided", "equivalent", "undecided"], "equivalent in 1 of 3"),
        (["undecided", "undecided"], "undecided"),
        (["equivalent", "different", "undecided"], "different"),
        ([], "undecided"),
    ],
)
def test_a_verdict_in_a_word_hides_nothing_that_is_undecided(states, badge):
    assert catch_curves.overall(states) == (badge.startswith("equivalent"), badge)
