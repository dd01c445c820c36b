"""Learning curves: files that cannot lie, lives that are not lost, and the command that judges them."""

import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import CannotRun, FixtureError
from parity.runs import curves, life_runner
from parity.runs.curves import Curve, Recorded, Setting, file_name, from_csv, to_csv
from parity.runs.life_runner import Life, Progress, Told, Work
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

    def live(self, setting, seed):
        if setting.rule != "toy":
            return None
        return self._live(setting, seed)

    def _live(self, setting, seed):
        folder = setting.agent["folder"]
        with open(f"{folder}/begun", "a") as file:
            file.write(f"{seed} ")
        rng = random.Random(seed)
        middle = 50 * self.stretch * math.exp(rng.gauss(0, 0.05))
        for step in range(1, setting.num_steps + 1):
            if step == 75 and seed == 1 and os.path.exists(f"{folder}/kill"):
                os.remove(f"{folder}/kill")
                os.kill(os.getppid(), 9)
                time.sleep(0.5)
            rate = 0.1 + 0.85 / (1 + math.exp(-(step - middle) / (0.1 * middle)))
            yield 58 * step, [rng.random() < rate for _ in range(20)], (1.0 + rng.gauss(0, 0.01)) if step > 5 else None

class Short(Toy):
    def _live(self, setting, seed):
        yield from list(super()._live(setting, seed))[:-1]

class Broken(Toy):
    def _live(self, setting, seed):
        yield 58, [True], None
        raise ValueError("the board is on fire")

class Layers:
    name, description, layers, run = "layers", "no learner", (), None

same, slow, short, broken, layers = Toy(1.0), Toy(1.25), Short(1.0), Broken(1.0), Layers()
"""


def toy_setting(folder, steps=STEPS):
    loop = {"num_steps": steps, "batch_size": 4, "rollout_length": 29, "replay_ratio": 2, "rows": 8, "columns": 8}
    return Setting("toy", "a toy", "toy", None, {"folder": str(folder), "learning_rate": 0.1}, loop, 0.001)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with toy learners, importable here and in the processes that are started."""
    (tmp_path / "toy_learners.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("toy_learners", None)


def begun(folder):
    return sorted(int(seed) for seed in (folder / "begun").read_text().split())


def some_lives(folder, count=3, name="toy_learners:same"):
    return [Life(name, toy_setting(folder), seed) for seed in range(count)]


def curve(seed=0, steps=40):
    caught = np.random.default_rng(seed).random((steps, 7)) < np.linspace(0.1, 0.9, steps)[:, None]
    return Curve.of((58 * i, row, None if i < 5 else -(2.0**-i) / 3) for i, row in enumerate(caught.tolist(), start=1))


def write_recorded(folder, setting, found):
    """Curves and their manifest, as the recorder leaves them."""
    files = {file_name(setting.name, seed): to_csv(one) for seed, one in found.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    seeds = {str(seed): hashlib.sha256(to_csv(one)).hexdigest() for seed, one in found.items()}
    entry = {"setting": setting.as_json(), "seeds": seeds, "packages": {"jax": "0.8.1"}}
    entry["original"] = {"repository": "somewhere", "commit": "abc"}
    (folder / "manifest.json").write_text(json.dumps({"curves": {setting.name: entry}}))
    return Recorded(folder)


# Files


def test_a_life_comes_back_from_its_file_as_it_was():
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
    setting = toy_setting(tmp_path, 40)
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
    """Two settings, of which one has recorded curves, and those."""
    known = toy_setting(tmp_path, 40)
    other = dataclasses.replace(known, name="other", title="another toy")
    monkeypatch.setattr(curves, "settings", lambda: {"toy": known, "other": other})
    return write_recorded(tmp_path / "fx", known, {0: curve(0)})


def test_a_setting_without_recorded_curves_is_left_out_and_named(toys, capsys):
    (found,) = catch_curves.available({"toy": Share(2, steps=10), "other": Share(2)}, toys)
    assert (found[0].name, found[0].num_steps) == ("toy", 10)
    assert "The original's curves with another toy are not recorded" in capsys.readouterr().err


def test_a_setting_without_weights_is_left_out_with_the_reason(toys, capsys, monkeypatch):
    def refuse(self):
        raise FixtureError("There are no weights here.")

    monkeypatch.setattr(Setting, "weights_path", refuse)
    weighty = dataclasses.replace(curves.settings()["toy"], weights="disco103")
    monkeypatch.setattr(curves, "settings", lambda: {"toy": weighty})
    with pytest.raises(CannotRun, match="Nothing can be lived"):
        catch_curves.available({"toy": Share(2)}, toys)
    assert "There are no weights here. It is left out." in capsys.readouterr().err


def test_a_setting_that_was_asked_for_is_never_left_out_in_silence(toys):
    (found,) = catch_curves.available({"toy": Share(2), "other": Share(2)}, toys, ["other"])
    assert found[0].name == "other"
    with pytest.raises(FixtureError, match="other"):
        toys.curves(found[0])


def test_whoever_is_shown_beside_the_candidate_lives_as_many_seeds_as_the_plan_gives_it(folder):
    plan = [(toy_setting(folder), Share(3, beside={"toy_learners:slow": 1}))]
    found = catch_curves.wanted(["toy_learners:same"], plan, ["toy_learners:slow", "toy_learners:short"])
    assert [(life.learner, life.seed) for life in found] == [
        *(("toy_learners:same", seed) for seed in range(3)),
        ("toy_learners:slow", 0),
    ]


def test_only_what_can_be_imported_is_shown_beside(monkeypatch):
    monkeypatch.setattr(catch_curves, "BESIDE", {"here": "json", "not here": "no_such_package", "judged": "math"})
    assert catch_curves.shown_beside(["judged"]) == ["here"]


def test_curves_of_other_settings_are_refused_but_for_shorter_lives(tmp_path):
    setting = toy_setting(tmp_path, 40)
    recorded = write_recorded(tmp_path / "fx", setting, {0: curve(0)})
    assert recorded.curves(setting.shortened(10)) == {0: curve(0)}
    with pytest.raises(FixtureError, match="another agent"):
        recorded.curves(dataclasses.replace(setting, agent={**setting.agent, "learning_rate": 0.08}))
    with pytest.raises(FixtureError, match="No curve of other"):
        recorded.curves(dataclasses.replace(setting, name="other"))


def test_absent_and_damaged_manifests_are_told(tmp_path):
    with pytest.raises(FixtureError, match="no recorded curves"):
        Recorded(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(FixtureError, match="manifest.json is damaged"):
        Recorded(tmp_path)


# Lives


def test_every_life_is_kept_and_none_is_lived_twice(folder):
    work, asked = Work(folder / "work"), some_lives(folder)
    first = life_runner.run(asked[:2], work, 2)
    found = life_runner.run(asked, work, 2)
    assert begun(folder) == [0, 1, 2]
    assert all(found[key] == first[key] for key in first)
    assert sorted(path.suffix for path in work.folder.iterdir()) == [".csv"] * 3


def test_other_settings_and_other_code_are_other_lives(folder):
    life = some_lives(folder, 1)[0]
    other = dataclasses.replace(life, setting=life.setting.shortened(20))
    assert life.digest() != other.digest() != dataclasses.replace(other, seed=1).digest()
    before = life_runner.code_digest("toy_learners:same")
    life_runner.code_digest.cache_clear()
    (folder / "toy_learners.py").write_text(TOY + "# changed\n")
    assert life_runner.code_digest("toy_learners:same") != before
    life_runner.code_digest.cache_clear()


@pytest.mark.parametrize(("name", "said"), [("short", "ended after 149 of 150"), ("broken", "the board is on fire")])
def test_a_life_that_fails_is_told_in_a_sentence_and_leaves_no_file(folder, name, said):
    asked = some_lives(folder, 1, f"toy_learners:{name}")
    with pytest.raises(CannotRun, match=said):
        life_runner.run(asked, Work(folder / "work"), 1)
    assert not list(folder.glob("work/*"))


def test_progress_estimates_the_time_that_is_left(folder, capsys):
    now = [0.0]
    asked = some_lives(folder, 2)
    progress = Progress(asked, Work(folder / "work"), lambda: now[0])
    now[0] = 30.0
    progress.hear(Told(asked[0].key, STEPS // 2))
    assert "0 of 2 lives, 25% of the work, 0:30 so far, about 1:30 left" in capsys.readouterr().err
    now[0] = 60.0
    progress.end(asked[0])
    assert "1 of 2 lives, 50% of the work, 1:00 so far, about 1:00 left" in capsys.readouterr().err


def test_mistakes_are_planted_in_the_port_only():
    assert life_runner.learner("port+slower").name == "port"
    with pytest.raises(CannotRun, match="in the port only"):
        life_runner.implementation("standin+slower")
    with pytest.raises(CannotRun, match="No mistake is called 'no_such'"):
        life_runner.implementation("port+no_such")


# The port


def test_the_ports_agents_are_those_of_its_own_evaluation():
    every = curves.settings()
    assert port_curves.agent_config(every["disco103"]) == eval_agent_config(get_settings_disco())
    in_the_box = __main__.task_of(__main__.parser().parse_args([]))
    assert port_curves.agent_config(every["embedded"]) == in_the_box.agent
    assert eval_loop.EvalConfig(**every["embedded"].loop) == in_the_box.loop


def test_a_life_of_the_port_is_its_evaluation_and_a_slower_port_learns_less():
    small = {"num_steps": 12, "batch_size": 8, "replay_ratio": 4, "capacity": 16, "rows": 4, "columns": 3}
    setting = curves.settings()["embedded"]
    setting = dataclasses.replace(setting, loop={**setting.loop, **small})
    told = []
    for name in ("port", "port+slower"):
        mine = life_runner.live_through(Life(name, setting, 5), lambda news: None)
        told.append(mine)
    task = __main__.task_of(__main__.parser().parse_args([]))
    agent, meta_params = dataclasses.replace(task, loop=eval_loop.EvalConfig(**setting.loop)).make()
    reports = list(eval_loop.live(agent, meta_params, eval_loop.EvalConfig(**setting.loop, seed=5)))
    assert told[0].caught == tuple(tuple(x > 0 for x in report.episode_returns) for report in reports)
    assert told[0].frames == told[1].frames == tuple(report.frames for report in reports)
    assert told[0].caught != told[1].caught


def test_the_originals_settings_are_the_notebooks():
    pytest.importorskip("disco_rl", reason="the original is not installed; `make original` brings it")
    from disco_rl import agent as agent_lib

    from reference.original.curves import agent_settings

    notebook = agent_lib.get_settings_disco()
    notebook.learning_rate = 1e-2
    assert agent_settings(curves.settings()["disco103"]).to_dict() == notebook.to_dict()


# The command


@pytest.fixture
def command(folder, monkeypatch):
    """Runs the command with the toy setting, against recorded lives of the toy."""
    setting = toy_setting(folder)
    monkeypatch.setattr(curves, "settings", lambda: {"toy": setting})
    monkeypatch.setattr(catch_curves, "DEFAULT", {"toy": Share(4)})
    made = [life_runner.live_through(Life("toy_learners:same", setting, 50 + i), lambda news: None) for i in range(8)]
    write_recorded(folder / "fx", setting, dict(enumerate(made)))

    def run(*more, out="out"):
        fixed = ["--recorded", str(folder / "fx"), "--out", str(folder / out), "--jobs", "2"]
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
    summary = json.loads((folder / "out" / "summary.json").read_text())["settings"]["toy"]
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
    from parity import curves
    from reports import catch_curves

    folder = Path(sys.argv[1])
    setting = curves.Setting(**json.loads((folder / "setting.json").read_text()))
    curves.settings = lambda: {"toy": setting}
    catch_curves.DEFAULT = {"toy": catch_curves.Share(3)}
    fixed = ["--impl", "toy_learners:same", "--recorded", str(folder / "fx"), "--jobs", "1"]
    raise SystemExit(catch_curves.main([*fixed, "--out", sys.argv[2]]))
"""


def test_a_killed_run_goes_on_and_gives_the_same_figures_to_the_last_bit(folder, command):
    script = folder / "killed.py"
    script.write_text(KILLED)
    (folder / "setting.json").write_text(json.dumps(dataclasses.asdict(toy_setting(folder))))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}

    def run():
        done = [sys.executable, str(script), str(folder), str(folder / "out")]
        return subprocess.run(done, cwd=ROOT, env=environment, capture_output=True, text=True)

    (folder / "begun").unlink()
    (folder / "kill").write_text("")
    assert run().returncode == -9
    assert begun(folder) == [0, 1] and len(list(folder.glob("out/lives/*.csv"))) == 1
    done = run()
    assert done.returncode in (0, 1), done.stderr
    assert "1 of 3 lives had ended before" in done.stderr
    assert begun(folder) == [0, 1, 1, 2]
    assert command("--impl", "toy_learners:same", "--seeds", "3", out="whole") == done.returncode
    for name in ("curves.csv", "summary.json"):
        assert (folder / "out" / name).read_bytes() == (folder / "whole" / name).read_bytes()


# The recorder


def test_recording_a_setting_again_leaves_the_others_and_removes_what_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "provenance", lambda: {"packages": {}})
    one = toy_setting(tmp_path, 40)
    other = dataclasses.replace(one, name="other")
    work = Work(tmp_path / "work")
    work.folder.mkdir()
    for setting, seeds in ((one, 3), (other, 1), (one, 2)):
        ended = [Life("toy_learners:same", setting, seed) for seed in range(seeds)]
        monkeypatch.setattr(life_runner, "code_digest", lambda name: "the same")
        for life in ended:
            work.path(life).write_bytes(to_csv(curve(life.seed)))
        recorder.keep(setting, ended, work, tmp_path / "fx")
    recorded = Recorded(tmp_path / "fx")
    assert sorted(recorded.settings()) == ["other", "toy"]
    assert recorded.curves(one) == {0: curve(0), 1: curve(1)} and recorded.curves(other) == {0: curve(0)}
    assert len(list((tmp_path / "fx").glob("*.csv"))) == 3


def test_recording_one_setting_leaves_the_unfinished_lives_of_another(folder, monkeypatch):
    monkeypatch.setattr(curves, "settings", lambda: {"toy": toy_setting(folder)})
    monkeypatch.setattr(recorder, "LEARNER", "toy_learners:same")
    monkeypatch.setattr(recorder, "_require_original", lambda: None)
    monkeypatch.setattr(recorder, "provenance", lambda: {"packages": {}})
    unfinished = folder / "fx" / ".recording" / "original_other_seed0_abc.csv"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_text("of another recording")
    assert reference_main(["curves", "--seeds", "2", "--jobs", "2", "--out", str(folder / "fx")]) == 0
    assert list(Recorded(folder / "fx").curves(toy_setting(folder))) == [0, 1]
    assert list(unfinished.parent.iterdir()) == [unfinished]


def test_an_original_that_is_not_genuine_is_not_recorded(tmp_path, monkeypatch, capsys):
    absent = dataclasses.replace(recorder.identity.identify(search_path=[]), message="It is not there.")
    monkeypatch.setattr(recorder.identity, "identify", lambda: absent)
    assert reference_main(["curves", "--weights", "actor_critic", "--out", str(tmp_path / "fx")]) == 2
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
    groups = [SimpleNamespace(name="port", verdict=SimpleNamespace(state=state)) for state in states]
    other = SimpleNamespace(name="other", verdict=SimpleNamespace(state="different"))
    assert catch_curves.state_of("port", [SimpleNamespace(groups=[group, other]) for group in groups]) == badge
