"""A folder is one run's at a time, in both commands that train; a killed run leaves it free."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from port.storage.folder_lock import FILE, FolderLock
from port.train import __main__
from tests.test_meta_train import TINY, flags, main, once
from tests.test_trainer import corridor_trainer

HOLD = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"


@contextlib.contextmanager
def another_run(folder: Path):
    """A process that is at work in a folder; it is killed at the end, without a chance to tidy up."""
    command = [sys.executable, "-S", "-c", HOLD, str(folder / FILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        yield
        process.kill()


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_second_meta_training_in_a_folder_is_refused_and_changes_nothing(tmp_path, capsys):
    assert once(tmp_path, "--num-meta-updates", "1") == 0
    before = contents(tmp_path)
    with another_run(tmp_path):
        assert once(tmp_path) == 2
        assert f"Another run is at work in {tmp_path}; wait until it ends" in capsys.readouterr().err
        assert contents(tmp_path) == before
    assert once(tmp_path) == 0  # killed, so the folder is free at once


def test_a_meta_training_holds_its_folder_to_the_end_and_not_longer(tmp_path, monkeypatch):
    seen = []

    def figures(report):
        with pytest.raises(ValueError, match="Another run is at work"):
            FolderLock(tmp_path)
        seen.append(report.step)
        return ""

    monkeypatch.setattr("port.meta_train.__main__.figures", figures)
    settings = {**TINY, "num_meta_updates": 2, "evaluate_every": 0}
    assert main(["--workers", "1", "--out", str(tmp_path), *flags(settings)]) == 0
    assert seen == [1, 2]
    FolderLock(tmp_path).release()


def test_a_second_training_in_a_folder_is_refused_and_changes_nothing(tmp_path, capsys):
    corridor_trainer(tmp_path).close()
    before = contents(tmp_path)
    with another_run(tmp_path):
        with pytest.raises(ValueError, match=f"Another run is at work in {tmp_path}"):
            corridor_trainer(tmp_path)
        assert __main__.main(["Catch-5x5", "--steps", "1", "--quiet", "--out", str(tmp_path)]) == 2
        assert f"Another run is at work in {tmp_path}" in capsys.readouterr().err
        assert contents(tmp_path) == before
    corridor_trainer(tmp_path).close()


def test_a_trainer_made_anew_in_the_same_process_takes_the_folder_up(tmp_path):
    old = corridor_trainer(tmp_path)
    old.run(3)
    new = corridor_trainer(tmp_path)
    with pytest.raises(ValueError, match=f"a newer one uses {tmp_path}; make a new one to continue"):
        old.advance()
    with pytest.raises(ValueError, match="This trainer was closed"):
        old.run(3)
    new.run(6)
    new.close()
    with pytest.raises(ValueError, match="This trainer was closed"):
        new.advance()


def test_a_trainer_that_could_not_begin_leaves_the_folder_free(tmp_path):
    corridor_trainer(tmp_path).run(3)
    with pytest.raises(ValueError, match="made with other settings") as kept:
        corridor_trainer(tmp_path, seed=8)
    FolderLock(tmp_path).release()
    assert kept.value.__traceback__  # which keeps the trainer alive


FORKS = """
import os, sys
from pathlib import Path
from port.storage.folder_lock import FolderLock
lock, (ours, theirs), (is_there, tell) = FolderLock(Path(sys.argv[1])), os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(theirs)
    os.write(tell, b"1")
    os.read(ours, 1)  # until the parent lets go of the other end
    os._exit(0)
os.read(is_there, 1)
try:
    FolderLock(Path(sys.argv[1]))  # the child let go of it for itself only
except ValueError as error:
    print(error)
lock.release()
FolderLock(Path(sys.argv[1])).release()
print("free")
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there are no forks here")
def test_a_forked_child_does_not_keep_the_folder_when_its_parent_is_gone(tmp_path):
    command = [sys.executable, "-c", FORKS, str(tmp_path)]  # by itself: JAX, which other tests load, forbids forks
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "Another run" in said
    assert said.endswith("free\n")
