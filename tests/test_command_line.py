"""How commands end: crashes, places that cannot be written, closed pipes and signals, each with its exit code."""

import argparse
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity import errors
from parity.__main__ import main
from parity.command_line import ExitCode, exit_code, write_json
from parity.files import write_atomically
from tests.helpers import ROOT

CHECK = ["check", "ops/signed_hyperbolic", "--impl", "tests.toy:right"]
MAINS = {
    "parity.__main__": ("list", "check", "trace", "diagnose", "compare a b", "new x.py"),
    "reference.__main__": ("doctor", "record", "calibrate", "curves", "trace", "weights"),
    **{f"reports.{name}.command": ("",) for name in ("parity", "lockstep", "catch_curves", "bugs", "speed")},
    **{f"reports.{name}": ("",) for name in ("__main__", "meta_gradients", "guide_figures", "screenshot", "browser")},
    **{"reports.audit.command": ("port",), "port.train.__main__": ("Catch",)},
    **{"port.evaluate.__main__": ("",), "port.meta_train.__main__": ("",)},
}


def ended(command, raised=None, **options):
    parser = argparse.ArgumentParser("python -m test")
    parser.add_argument("--json", type=Path)
    return exit_code(parser, [f"--{name}={value}" for name, value in options.items()], command)


def fail(error):
    def command(args):
        raise error

    return command


class Mute(BaseException):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (errors.CannotRun("not here"), 2, "test: not here"),
        (errors.WeightsMissing("no weights"), 2, "test: no weights"),
        (errors.NothingCompared("nothing"), 3, "test: nothing"),
        (OSError(28, "No space left on device", "out/x"), 2, "test: out/x cannot be used: No space left on device."),
        (KeyError("x"), 2, "test: KeyError: 'x' ("),
        (SystemExit(0), 2, "test: SystemExit: 0 ("),
        (Mute(), 2, "test: Mute, whose text cannot be shown ("),
        (KeyboardInterrupt(), 130, "test: interrupted; what was written"),
    ],
)
def test_whatever_stops_a_command_is_a_sentence_and_no_verdict(capsys, error, code, sentence):
    assert ended(fail(error)) == code
    printed = capsys.readouterr().err
    assert printed.startswith(sentence) and "Traceback" not in printed


def test_a_result_that_could_not_be_written_is_refused_before_the_work(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("kept")
    work = fail(AssertionError("work was done"))
    for odd in (tmp_path, "", file / "below", file / "far" / "below"):
        assert ended(work, json=odd) == 2
        assert "give " in capsys.readouterr().err
    assert main(["trace", "--out", str(file)]) == 2
    assert main(["list", "--diagram", str(tmp_path)]) == 2
    assert file.read_text() == "kept"


def test_a_device_or_a_pipe_stays_what_it_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    write_atomically(pipe, b"result")
    assert reader.communicate()[0] == b"result"
    assert pipe.is_fifo()


def test_json_alone_stands_on_standard_output_for_a_dash(capsys):
    def command(args):
        print("for people")
        write_json(args.json, {"x": 1})
        return 1

    assert ended(command, json="-") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"x": 1}
    assert "for people" in printed.err


def shell(line):
    done = subprocess.run(
        ["bash", "-c", line.format(f"{sys.executable} -m parity {' '.join(CHECK)}") + '; exit "${PIPESTATUS[0]}"'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        ("{} | true", 0, ""),
        ("{} --json - | head -c 1 > /dev/null", 0, "toy"),
        ("{} --help | true", 0, ""),
        ("{} > /dev/full", 2, "parity: A file or stream cannot be used: No space left on device."),
        ("{} >&-", 0, ""),
        ("PYTHONIOENCODING=ascii {} | cat > /dev/null", 0, ""),
    ],
)
def test_a_reader_that_goes_or_is_not_there(line, code, sentence):
    returned, printed = shell(line)
    assert returned == code
    assert printed.startswith(sentence) and not re.search("Traceback|Exception|BrokenPipe", printed)


@pytest.mark.parametrize("module", MAINS)
def test_unknown_and_shortened_options_are_refused(module, capsys):
    for command in MAINS[module]:
        for option in ("--no-such-option", "--hel"):
            with pytest.raises(SystemExit, match="2"):
                importlib.import_module(module).main([*command.split(), option])
            assert f"unrecognized arguments: {option}" in capsys.readouterr().err


def processes_of(session):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        found += [stat.parent.name] if int(its_session) == session and state != "Z" else []
    return found


INTERRUPTED = {  # a terminal sends SIGINT to all processes, a scheduler SIGTERM to one
    "parity check": signal.SIGINT,
    "parity diagnose": signal.SIGTERM,
    "reports.bugs --without-live --jobs 2 --out {}": signal.SIGINT,
    "port.train Catch --steps 100000 --out {} --quiet": signal.SIGTERM,
    "port.evaluate --seeds 4 --steps 100000 --jobs 2 --out {}": signal.SIGINT,
    "port.meta_train --small --out {}/run --workers 2": signal.SIGTERM,
}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("command", INTERRUPTED)
def test_a_signal_ends_a_command_and_its_processes(tmp_path, command):
    arguments = command.format(tmp_path / "run").split()
    going = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _wait_until_at_work(going, 4 if {"--jobs", "--workers"} & {*arguments} else 1)
        (os.killpg if INTERRUPTED[command] is signal.SIGINT else os.kill)(going.pid, INTERRUPTED[command])
        _, printed = going.communicate(timeout=20)
        assert going.returncode == ExitCode.INTERRUPTED
        assert arguments[0] in printed and "Traceback" not in printed and "resource_tracker" not in printed, printed
        time.sleep(2)
        assert not processes_of(going.pid)
    finally:
        for pid in processes_of(going.pid):
            os.kill(int(pid), signal.SIGKILL)


def _wait_until_at_work(going, count):
    """Until there are so many processes, workers and a tracker among them, and some seconds more for imports."""
    deadline = time.monotonic() + 60
    while len(processes_of(going.pid)) < count and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(6)
    assert going.poll() is None, going.communicate()
