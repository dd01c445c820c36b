"""`python -m port.meta_train`: a killed run continues to the same bits, whoever does the work; settings and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import port
from port import weights
from port.meta_train import MetaTrainConfig, checkpoint
from port.meta_train.__main__ import main, parser, read_config
from port.meta_train.checkpoint import Files
from port.meta_train.plot import draw, figure_of
from port.meta_train.population import Member
from port.meta_train.run import Report, run
from port.meta_train.workers import Workers
from port.storage import files

TINY = {
    "num_meta_updates": 6,
    "boards": ("3x3", "4x3"),
    "lifetime": 4,
    "num_inner_steps": 2,
    "rollout_length": 4,
    "batch_size": 3,
    "prediction_size": 4,
    "hidden_size": 5,
    "meta_hidden_size": 3,
    "num_bins": 5,
    "max_abs_value": 3.0,
    "dense": (6,),
    "head_mlp_hiddens": (4,),
    "lstm_size": 3,
    "value_dense": (5,),
    "evaluate_every": 3,
    "evaluate_boards": ("3x3",),
    "evaluate_seeds": 2,
    "evaluate_steps": 35,
    "checkpoint_every": 2,
}
KEPT = ("checkpoint.safetensors", "last.npz", "best.npz", "log.csv", "evaluations.csv", "config.json")


def flags(settings: dict) -> list[str]:
    """The settings as a command line."""
    shown = {name: ",".join(map(str, x)) if isinstance(x, tuple) else str(x) for name, x in settings.items()}
    return [part for name, text in shown.items() for part in (f"--{name.replace('_', '-')}", text)]


def finished(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in KEPT}


def train(out: Path, workers: int = 1, **changes: object) -> MetaTrainConfig:
    config = MetaTrainConfig(**{**TINY, **changes})  # type: ignore[arg-type]
    crew = Workers(config, workers)
    try:
        run(config, out, crew)
    finally:
        crew.close()
    return config


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run leaves that nobody disturbed, in one process."""
    out = tmp_path_factory.mktemp("whole")
    train(out)
    return finished(out)


def killed_after(rows: int, command: list[str], out: Path) -> None:
    """Starts the command and kills it, without a chance to tidy up, once the log has so many rows."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    log = out / "log.csv"
    while time.monotonic() < deadline and process.poll() is None:
        if log.is_file() and log.read_bytes().count(b"\n") > rows:
            break
        time.sleep(0.002)
    assert process.poll() is None, "the run ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_a_killed_run_continues_to_the_same_bits_with_any_number_of_workers(
    whole: dict[str, bytes], tmp_path: Path
) -> None:
    rest = ["--quiet", "--out", str(tmp_path), *flags(TINY)]
    killed_after(3, [sys.executable, "-m", "port.meta_train", "--workers", "2", *rest], tmp_path)
    assert checkpoint.load(tmp_path / "checkpoint.safetensors", MetaTrainConfig(**TINY)).step < 6  # type: ignore[arg-type]
    assert main(["--workers", "1", *rest]) == 0
    assert finished(tmp_path) == whole
    assert (tmp_path / "curve.png").is_file()


def test_the_picture_shows_what_the_notebook_shows(tmp_path: Path) -> None:
    log, evaluations = (files.CsvLog(tmp_path / name, 0) for name in ("log.csv", "evaluations.csv"))
    assert draw(Files(tmp_path)) is None
    names = ("pos_rewards", "neg_rewards", "rewards", "meta_loss", "meta_grad_norm", "meta_up_norm")
    for step in range(4):
        log.add({"step": step, **{name: (i + 1) * (step + 1) for i, name in enumerate(names)}})
    evaluations.add({"step": 2, "board": "3x3", "seed": 7, "life_catch_rate": 0.25, "final_catch_rate": 0.75})
    picture = figure_of(Files(tmp_path))
    assert picture is not None
    lines = [line for axis in picture.axes for line in axis.get_lines()]
    drawn = {str(line.get_label()): np.array(line.get_ydata()) for line in lines}
    for i, name in enumerate(names):
        np.testing.assert_allclose(drawn[name], [(i + 1) * mean for mean in (1, 1.5, 2, 2.5)])  # smoothed
    raw = [list(line.get_ydata()) for line in lines]
    assert all([(i + 1.0) * step for step in (1, 2, 3, 4)] in raw for i in range(len(names)))
    assert {line.get_label() for line in picture.axes[0].get_lines()} >= {"pos_rewards", "neg_rewards"}
    assert (drawn["3x3, whole lifetime"], drawn["3x3, at its end"]) == (0.25, 0.75)


def test_help_and_readme_say_whose_means_are_logged() -> None:
    readme = Path(port.__file__).with_name("README.md").read_text(encoding="utf-8")
    for text in (parser().format_help(), readme):
        assert "means over the population" in " ".join(text.split())


def test_a_half_written_row_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = files.CsvLog(path, 0)
    for step in range(4):
        log.add({"step": step, "loss": step / 3})
    whole_text = path.read_text()
    path.write_text(whole_text + "4,0.3333")
    assert files.read_rows(files.CsvLog(path, 3).path) == [{"step": str(i), "loss": str(i / 3)} for i in range(3)]
    assert whole_text.startswith(path.read_text())


def test_an_interrupted_checkpoint_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.replace_file(path, b"old")

    def fail(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        files.replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_run_that_was_shorter_goes_on_as_if_it_had_not_stopped(whole: dict[str, bytes], tmp_path: Path) -> None:
    train(tmp_path, num_meta_updates=3)
    train(tmp_path)
    assert finished(tmp_path) == whole


def test_what_was_logged_after_the_last_checkpoint_is_logged_once(whole: dict[str, bytes], tmp_path: Path) -> None:
    config = MetaTrainConfig(**TINY)  # type: ignore[arg-type]

    def stop(report: Report) -> None:
        if report.step == 5:  # a meta-update after the checkpoint, and two after the evaluation
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, Workers(config, 1), on_step=stop)
    assert (tmp_path / "log.csv").read_text().splitlines()[-1].startswith("4,")
    train(tmp_path)
    assert finished(tmp_path) == whole


def test_norms_that_cut_the_meta_gradient_are_the_same_after_every_restart(tmp_path: Path) -> None:
    """A norm is summed in the order of the parameters, which must be the same in a checkpoint and at the start."""
    short = {"evaluate_every": 0, "max_meta_grad_norm": 1e-3, "checkpoint_every": 1}
    train(tmp_path / "whole", **short)
    for updates in range(1, 7):
        train(tmp_path / "again", **short, num_meta_updates=updates)
    for name in ("checkpoint.safetensors", "last.npz", "log.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_recomputing_gives_the_same_run_but_for_rounding(whole: dict[str, bytes], tmp_path: Path) -> None:
    train(tmp_path, recompute=True, num_meta_updates=2)
    again = [line.split(",") for line in (tmp_path / "log.csv").read_text().splitlines()]
    plain = [line.split(",") for line in whole["log.csv"].decode().splitlines()]
    assert again[0] == plain[0]
    assert [float(x) for x in again[1]] == pytest.approx([float(x) for x in plain[1]], rel=1e-4, abs=1e-6)


def test_lives_begin_staggered_and_end(tmp_path: Path) -> None:
    config = MetaTrainConfig(**TINY)  # type: ignore[arg-type]
    ages = [[Member(config, i).age(step) for step in range(6)] for i in range(2)]
    assert ages == [[0, 1, 2, 3, 0, 1], [2, 3, 0, 1, 2, 3]]
    forever = Member(MetaTrainConfig(**{**TINY, "lifetime": 0}), 1)  # type: ignore[arg-type]
    assert [forever.age(step) for step in range(3)] == [0, 1, 2]


def test_it_starts_from_given_weights_in_the_originals_names(tmp_path: Path) -> None:
    config = train(tmp_path / "first", num_meta_updates=1, evaluate_every=0)
    given = Files(tmp_path / "first").last
    net = config.agent.meta_net
    start = weights.load_npz(given, net)
    slow = {**TINY, "num_meta_updates": 1, "evaluate_every": 0, "meta_learning_rate": 1e-12}
    assert main(["--quiet", "--workers", "1", "--out", str(tmp_path / "b"), "--weights", str(given), *flags(slow)]) == 0
    end = weights.load_npz(Files(tmp_path / "b").last, net)
    for name, p in start.items():
        torch.testing.assert_close(end[name], p, rtol=0, atol=1e-6)


def test_settings_are_the_notebooks_and_read_from_the_command_line() -> None:
    plain = read_config(parser().parse_args([]))
    assert plain == MetaTrainConfig()
    assert (plain.num_meta_updates, len(plain.boards), plain.meta_learning_rate) == (800, 2, 5e-4)
    small = read_config(parser().parse_args(["--small", "--boards", "5x5,8x8", "--recompute", "yes"]))
    assert (small.boards, small.recompute, small.prediction_size) == (("5x5", "8x8"), True, 30)
    assert MetaTrainConfig.from_json(small.to_json()) == small
    assert "8x8" in parser().format_help()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"boards": ("5by5",)}, "A board is written as 8x8"),
        ({"boards": ("1x5",)}, "too small"),
        ({"boards": ()}, "at least one board"),
        ({"rollout_length": 1}, "one transition takes 2 steps"),
        ({"num_inner_steps": 0}, "num_inner_steps is 0"),
        ({"lifetime": -1}, "lifetime is -1"),
        ({"prediction_size": 0}, "prediction_size"),
        ({"meta_learning_rate": -1.0}, "meta_learning_rate is -1.0; it must be positive"),
        ({"meta_learning_rate": float("nan")}, "meta_learning_rate is nan"),
        ({"max_meta_grad_norm": float("nan")}, "max_meta_grad_norm is nan"),
        ({"value_learning_rate": float("nan")}, "learning_rate is nan"),
        ({"max_abs_value": float("inf")}, "max_abs_value is inf"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_any_work(change: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MetaTrainConfig(**{**TINY, **change})


def test_a_run_does_not_continue_with_other_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, num_meta_updates=1, evaluate_every=0)
    other = {**TINY, "num_meta_updates": 2, "evaluate_every": 0, "seed": 5}
    assert main(["--quiet", "--workers", "1", "--out", str(tmp_path), *flags(other)]) == 2
    assert "made with other settings (seed 4 -> 5)" in capsys.readouterr().err


def test_missing_or_wrong_weights_are_told_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = ["--quiet", "--workers", "1", "--out", str(tmp_path / "out"), *flags(TINY)]
    assert main([*tiny, "--weights", str(tmp_path / "none.npz")]) == 2
    assert "There is no weights file" in capsys.readouterr().err
    np.savez(tmp_path / "odd.npz", x=np.zeros(2, np.float32))
    assert main([*tiny, "--weights", str(tmp_path / "odd.npz")]) == 2
    assert "not weights for this configuration" in capsys.readouterr().err


def once(out: Path, *more: str) -> int:
    settings = {**TINY, "num_meta_updates": 2, "evaluate_every": 0}
    return main(["--quiet", "--workers", "1", "--out", str(out), *flags(settings), *more])


@pytest.mark.parametrize(
    "harm",
    [lambda whole: whole[:500], lambda whole: b"", lambda whole: b"no checkpoint" * 40],
    ids=["cut", "no", "odd"],
)
def test_a_damaged_checkpoint_is_told_in_a_sentence_and_left_alone(tmp_path, capsys, harm) -> None:
    train(tmp_path, num_meta_updates=1, evaluate_every=0)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(harm(path.read_bytes()))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert once(tmp_path) == 2
    assert "is damaged" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_run_does_not_continue_from_other_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = train(tmp_path / "first", num_meta_updates=1, evaluate_every=0)
    one, other = Files(tmp_path / "first").last, tmp_path / "other.npz"
    moved = {name: p + 1 for name, p in weights.load_npz(one, config.agent.meta_net).items()}
    weights.save_npz(other, moved, config.agent.meta_net)
    assert once(tmp_path / "first", "--weights", str(one)) == 2
    assert "was started from random weights, not from" in capsys.readouterr().err
    assert once(tmp_path / "second", "--weights", str(one), "--num-meta-updates", "1") == 0
    assert once(tmp_path / "second", "--weights", str(other)) == 2
    assert "was started from other weights, not from" in capsys.readouterr().err
    np.savez_compressed(again := tmp_path / "again.npz", **np.load(one))
    assert once(tmp_path / "second", "--weights", str(again)) == 0


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text("my,own\n1,2\n")
    assert once(tmp_path) == 2
    assert "use another --out" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("mine")
    assert once(tmp_path) == 2
    assert "does not hold settings of a meta-training" in capsys.readouterr().err
    assert (tmp_path / "log.csv").read_text() == "my,own\n1,2\n" and (tmp_path / "config.json").read_text() == "mine"


def test_a_run_that_never_reached_a_checkpoint_starts_again_with_its_settings_only(tmp_path, capsys) -> None:
    config = MetaTrainConfig(**{**TINY, "num_meta_updates": 2, "evaluate_every": 0})  # type: ignore[arg-type]
    (tmp_path / "config.json").write_text(config.to_json())
    (tmp_path / "log.csv").write_text("step,loss\n0,1.5\n")
    assert once(tmp_path, "--seed", "9") == 2
    assert "made with other settings (seed 4 -> 9)" in capsys.readouterr().err
    (tmp_path / "log.csv").write_text("")
    assert once(tmp_path) == 0


def test_no_workers_and_lists_of_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert once(tmp_path, "--workers", "0") == 2
    assert "At least one worker is needed; got 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        once(tmp_path, "--dense", "8,x")
    assert "give one or more, as 512,512, not '8,x'" in capsys.readouterr().err
