"""`python -m port.train`: files, resuming, exit codes, sentences; and the README's program."""

import json
import pathlib
import re

import pytest

from port import train
from port.training import logs

ROOT = pathlib.Path(__file__).resolve().parents[1]
SMALL = ["--batch-size", "4", "--rollout-length", "5", "--capacity", "8", "--checkpoint-every", "2", "--episodes", "4"]


def command(out, *more, name="Catch-4x3"):
    return train.main([name, "--envs", "2", "--out", str(out), "--quiet", *SMALL, *more])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of four rollouts."""
    out = tmp_path_factory.mktemp("run")
    assert command(out, "--steps", "3") == 0  # up to the next checkpoint
    return out


def test_it_leaves_logs_a_plot_weights_and_a_summary(done):
    columns = logs.read_columns(done / "log.csv")
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
    assert "Going on after 2 rollouts" in said and "2 of them now" in said
    assert logs.read_columns(tmp_path / "log.csv")["step"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--envs", "0"], "--envs is 0"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--rule", "actor_critic", "--weights", "x.npz"], "has no weights"),
        (["--weights", "absent.npz"], "no weights file at absent.npz"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(more, message, tmp_path, capsys):
    assert command(tmp_path / "new", *more) == 2
    said = capsys.readouterr().err
    assert said.startswith("port.train: ") and message in said and said.count("\n") == 1
    assert not (tmp_path / "new").exists()


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
