"""Jobs for the tests of the runner."""

import os
import signal
import time
from pathlib import Path

from parity.runs import runner


def double(x):
    return 2 * x


def note(folder, name):
    """Leaves a mark for each time that it runs."""
    with (Path(folder) / "begun").open("a") as file:
        file.write(f"{name} ")
    return name.encode()


def note_and_die_once(folder, name):
    note(folder, name)
    try:
        (Path(folder) / "die").unlink()
    except FileNotFoundError:
        return name.encode()
    os.kill(os.getpid(), signal.SIGKILL)


def always_die():
    os.kill(os.getpid(), signal.SIGKILL)


def note_slowly(folder, name, seconds):
    note(folder, name)
    time.sleep(seconds)
    return name.encode()


def fail():
    raise ValueError("the board is on fire")


def report(steps):
    for step in range(steps):
        runner.report_step(step + 1)
        time.sleep(0.01)
    return os.environ["OMP_NUM_THREADS"], os.environ.get("FLAG")
