"""`python -m port.train`: files, resuming, exit codes, sentences; and the README's program."""

import json
import pathlib
import re
import subprocess
import sys
import time

import pytest

from port.storage import plots
from port.train import __main__

ROOT = pathlib.Path(__file__).resolve().parents[1]
SMALL = ["--batch-size", "4", "--rollout-length", "5", "--capacity", "8", "--checkpoint-every", "2", "--episodes", "4"]


def command(out, *more, name="Catch-4x3"):
    return __main__.main([name, "--envs", "2", "--out", str(out), "--quiet", *SMALL, *more])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of four rollouts."""
    out = tmp_path_factory.mktemp("run")
    assert command(out, "--steps", "3") == 0  # up to the next checkpoint
    return out


def test_it_leaves_logs_a_plot_weights_and_a_summary(done):
    columns = plots.read_columns(done / "log.csv")
    assert columns["step"].tolist() == [0, 1, 2, 3] and columns["frames"][-1] == 40
    assert {"return", "return_100", "length", "total_loss", "entropy"} <= columns.keys()
    assert (done / "curve.png").read_bytes().startswith(b"\x89PNG") and (done / "agent.npz").is_file()
    found = json.loads((done / "summary.json").read_text())
    assert (found["steps"], found["frames"], len(found["evaluation"]["returns"])) == (4, 40, 4)


def test_tensorboard_reads_what_it_wrote(done):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(done))
    events.Reload()
    assert {"episodes/return_100", "learner/total_loss"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("episodes/frames")] == [0, 1, 2, 3]


def test_started_again_it_goes_on(tmp_path, capsys):
    assert command(tmp_path, "--steps", "2") == 0
    assert command(tmp_path, "--steps", "4", "--at-least", "1.5") == 1  # no ball is worth more than 1
    said = capsys.readouterr().out
    assert "Going on after 2 rollouts" in said and "2 of the rollouts now" in said
    assert plots.read_columns(tmp_path / "log.csv")["step"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--envs", "0"], "--envs is 0"),
        (["--batch-size", "0"], "--batch-size is 0"),
        (["--rule", "actor_critic", "--weights", "x.npz"], "has no weights"),
        (["--weights", "absent.npz"], "no weights file at absent.npz"),
        (["--steps", "0"], "--steps is 0"),
        (["--episodes", "-1"], "--episodes is -1"),
        (["--device", "gpu"], "--device is 'gpu', which torch cannot use here"),
        (["--device", "cuda:77"], "--device is 'cuda:77', which torch cannot use here"),
        (["--seed", "99999999999999999999"], "--seed is 99999999999999999999"),
        (["--learning-rate", "nan"], "--learning-rate is nan"),
        (["--reward-scale", "inf"], "--reward-scale is inf; it must be positive, and finite"),
        (["--json", "absent/summary.json"], "there is no folder absent"),
        (["--json", "."], "a folder; give a file"),
        (["--weights", "."], "no weights file at ., which is a folder"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence_before_anything_is_done(more, message, tmp_path, capsys):
    assert command(tmp_path / "new", *more) == 2
    said = capsys.readouterr().err
    assert said.startswith("port.train: ") and message in said and said.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_run_that_overflows_ends_with_a_sentence_and_goes_on_from_its_last_checkpoint(tmp_path, capsys):
    assert command(tmp_path, "--steps", "4", "--reward-scale", "1e38") == 2
    said = capsys.readouterr().err
    assert "port.train: The learner step overflowed after rollout 1: adv_ema/moment2 is not finite" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "message"), [("CartPol-v1", "Did you mean"), ("Pendulum-v1", "continuous"), ("Catch-1x1", "too small")]
)
def test_a_wrong_environment_is_said_in_a_sentence(name, message, tmp_path, capsys):
    pytest.importorskip("gymnasium")
    assert command(tmp_path / "new", name=name) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_the_program_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("gymnasium")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(import gymnasium\n.+?)```", text, re.S)
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) <= 10
    short, count = re.subn(r"\.run\((\d+)", ".run(9", program)
    assert count == 1
    monkeypatch.chdir(tmp_path)
    exec(compile(short, "README.md", "exec"), {})
    assert re.search(r"\d", capsys.readouterr().out)


def test_the_readme_shows_a_network_of_ones_own_that_runs(capsys):
    pytest.importorskip("gymnasium")
    text = (ROOT / "port" / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(import port  #.+?)```", text, re.S)
    short, count = re.subn(r"\.run\((\d+)", ".run(5", program)
    assert count == 1
    exec(compile(short, "README.md", "exec"), {})
    assert re.search(r"\nrollout 5, [\d,]+ environment steps: return \d", capsys.readouterr().out)


def test_a_folder_of_other_things_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    assert command(tmp_path) == 2
    assert "thesis.tex" in capsys.readouterr().err and len(list(tmp_path.iterdir())) == 1
    assert command(tmp_path / "thesis.tex") == 2
    assert "a file; give a folder" in capsys.readouterr().err


def test_another_rule_in_the_folder_is_called_by_its_name(done, capsys):
    assert command(done, "--rule", "actor_critic", "--steps", "4") == 2
    assert "(rule Disco -> ActorCritic;" in capsys.readouterr().err


def test_another_environment_in_the_folder_is_told_before_lesser_settings(done, capsys):
    assert command(done, "--reward-scale", "0.5", "--steps", "4", name="Catch-5x4") == 2
    assert "other settings (environment." in capsys.readouterr().err


def test_each_environment_rule_and_seed_has_a_folder_of_its_own():
    def folder(*asked):
        return __main__.default_out(__main__.parser().parse_args(asked)).as_posix()

    assert folder("CartPole-v1") == "runs/train/CartPole-v1-disco-seed0"
    assert folder("CartPole-v1", "--rule", "actor_critic", "--seed", "2").endswith("/CartPole-v1-actor_critic-seed2")
    assert folder("ale_py:ALE/Pong-v5", "--weights", "a/disco_103.npz").endswith("/ale_py_ALE_Pong-v5-disco_103-seed0")


def test_more_rollouts_than_asked_for_are_announced(done, capsys):
    assert command(done, "--steps", "3") == 0
    assert "runs to rollout 4, where a checkpoint is due (--checkpoint-every 2)" in capsys.readouterr().out


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_terminated_it_says_what_becomes_of_the_run(has_checkpoint, tmp_path):
    every = "1" if has_checkpoint else "100000"
    asked = ["Catch-4x3", "--steps", "100000", "--checkpoint-every", every, "--out", str(tmp_path / "run"), "--quiet"]
    small = ["--envs", "2", "--batch-size", "4", "--rollout-length", "5", "--capacity", "8"]
    began = subprocess.Popen(
        [sys.executable, "-m", "port.train", *asked, *small], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        awaited = tmp_path / "run" / ("checkpoint.safetensors" if has_checkpoint else "log.csv")
        while not awaited.is_file() and began.poll() is None:
            time.sleep(0.05)
        began.terminate()
        _, said = began.communicate(timeout=60)
    finally:
        began.kill()
    assert began.returncode == 130
    assert ("goes on from the last checkpoint" if has_checkpoint else "before the first checkpoint") in said
