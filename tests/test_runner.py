"""The runner: results are kept, nothing is repeated, and neither a killed worker nor a killed command loses work."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity.errors import CannotRun
from parity.runs import bars, runner
from parity.runs.bars import Bars
from parity.runs.runner import Job, Runner, Workers
from tests import runner_jobs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def running():
    """Two workers for several tests."""
    with Runner(Workers(2)) as running:
        yield running


def begun(folder):
    return sorted((folder / "begun").read_text().split())


def keeping(folder, names, function=runner_jobs.note, *more):
    return [Job(name, function, (str(folder), name, *more), path=folder / "kept" / name) for name in names]


def test_jobs_give_the_same_in_processes_and_in_this_one(running):
    jobs = [Job(f"job {i}", runner_jobs.double, (i,)) for i in range(5)]
    for results in (running.run(jobs), runner.run_all(jobs, Workers(0))):
        assert {job.name: result for job, result in results} == {f"job {i}": 2 * i for i in range(5)}


def test_a_kept_result_is_not_made_again_and_a_result_is_kept_at_once(tmp_path, capsys):
    with Runner(Workers(0)) as running:
        first = next(running.run(keeping(tmp_path, "ab")))
        assert first[1] == (tmp_path / "kept" / first[0].name).read_bytes() == first[0].name.encode()
        again = {job.name: result for job, result in running.run(keeping(tmp_path, "abc"), "letters")}
    assert again == {"a": b"a", "b": b"b", "c": b"c"}
    assert begun(tmp_path) == ["a", "b", "c"]
    assert "letters: 1 of 3 had ended before" in capsys.readouterr().err


def test_a_worker_that_is_killed_in_the_middle_is_survived(running, tmp_path):
    (tmp_path / "die").touch()
    jobs = keeping(tmp_path, "abcd", runner_jobs.note_and_die_once)
    assert sorted(result for _, result in running.run(jobs)) == [b"a", b"b", b"c", b"d"]
    assert set(begun(tmp_path)) == set("abcd")
    assert len(begun(tmp_path)) > 4  # the one that died began again


def test_what_goes_wrong_in_a_job_is_a_sentence(running, tmp_path):
    for function, said in (
        (runner_jobs.fail, "it failed: ValueError: the board is on fire"),
        (runner_jobs.always_die, "it failed: the process that ran it was killed, again and again"),
    ):
        with pytest.raises(CannotRun, match=said):
            list(running.run([Job("it", function, path=tmp_path / "kept")]))
    assert not (tmp_path / "kept").exists()


def test_progress_is_reported_and_workers_have_one_thread_and_the_environment(monkeypatch, capsys):
    shares = []
    monkeypatch.setattr(Bars, "step", lambda self, name, share: shares.append(share))
    monkeypatch.setattr(bars, "LINE_EVERY", 0.0)
    workers = Workers(1, environment={"FLAG": "set"})
    ((_, result),) = runner.run_all([Job("it", runner_jobs.report, (100,), steps=100)], workers, "reports")
    assert result == ("1", "set")
    assert len(shares) >= 2 and shares == sorted(shares) and 0 < shares[0] < 1
    assert re.search(r"reports: 0 of 1, 0:0\d so far, no estimate yet", capsys.readouterr().err)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_line_now_and_then_estimates_the_time_that_is_left(is_terminal, capsys):
    now = [0.0]
    shown = Bars("runs", {"long": 3.0, "short": 1.0}, lambda: now[0])
    shown.console._force_terminal = is_terminal
    shown.console.is_interactive = is_terminal
    shown.step("long", 1 / 3)
    for seconds in (bars.LINE_EVERY - 1, bars.LINE_EVERY, bars.LINE_EVERY + 1):
        now[0] = seconds
        shown.look()
    assert capsys.readouterr().err == ("" if is_terminal else "runs: 0 of 2, 0:15 so far, about 0:45 left\n")
    shown.end("long")
    assert shown.line() == "runs: 1 of 2, 0:16 so far, about 0:05 left"


COMMAND = """
if __name__ == "__main__":  # the processes that are started import this file, too
    import signal, sys
    from pathlib import Path
    from parity.runs import runner
    from tests.runner_jobs import note_slowly

    signal.signal(signal.SIGINT, signal.default_int_handler)  # which whoever started the tests may ignore
    folder = Path(sys.argv[1])
    seconds = {name: 30.0 if name == sys.argv[2] else 0.3 for name in "abc"}
    jobs = [
        runner.Job(name, note_slowly, (str(folder), name, wait), path=folder / "kept" / name)
        for name, wait in seconds.items()
    ]
    print(sorted(result for _, result in runner.run_all(jobs, runner.Workers(1))))
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_command_leaves_no_worker_and_repeats_nothing(tmp_path, sent):
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen([*command, "b"], env=environment, cwd=ROOT, stderr=subprocess.DEVNULL) as running:
        wait_until(lambda: (tmp_path / "begun").exists() and begun(tmp_path) == ["a", "b"])
        workers = children(running.pid)
        running.send_signal(sent)
        assert running.wait(60) != 0
    assert workers
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["a"]
    done = subprocess.run([*command, "none"], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[b'a', b'b', b'c']\n", done.stderr
    assert begun(tmp_path) == ["a", "b", "b", "c"]


def children(pid):
    every = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in every for child in path.read_text().split()]


def wait_until(is_so, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def scheduler():
    """A scheduler with two workers, started by hand on loopback; its address."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = []

    def start(*arguments):
        command = [sys.executable, "-m", *arguments]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True))
        return started[-1]

    head = start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    address = next(
        found[0] for line in iter(head.stderr.readline, "") if (found := re.findall(r"tcp://127.0.0.1:\d+", line))
    )
    for _ in range(2):
        start("distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny")
    yield address
    for process in started:
        process.kill()
        process.communicate()


def test_the_workers_of_a_scheduler_that_was_started_by_hand_do_the_work(scheduler, tmp_path, monkeypatch):
    workers = Workers(1, scheduler)
    jobs = keeping(tmp_path, "abcd", runner_jobs.note_slowly, 0.2)
    assert sorted(result for _, result in runner.run_all(jobs, workers)) == [b"a", b"b", b"c", b"d"]
    assert begun(tmp_path) == list("abcd")
    monkeypatch.setattr(runner, "loaded_code", lambda: "other")
    with pytest.raises(CannotRun, match="a worker has loaded other code than this command; start the workers again"):
        list(runner.run_all([Job("it", runner_jobs.double, (1,))], workers))


def test_without_a_scheduler_there_it_says_so(monkeypatch):
    monkeypatch.setattr(runner, "CONNECT_WITHIN", 1)
    with pytest.raises(CannotRun, match="no dask scheduler at tcp://127.0.0.1:9"):
        list(runner.run_all([Job("it", runner_jobs.double, (1,))], Workers(1, "tcp://127.0.0.1:9")))


def test_two_commands_at_once_do_not_get_in_each_others_way(running):
    assert [result for _, result in running.run([Job("it", runner_jobs.double, (1,))])] == [2]
    with Runner(Workers(1)) as other:
        assert [result for _, result in other.run([Job("it", runner_jobs.double, (2,))])] == [4]


def test_a_key_changes_with_every_part():
    keys = [runner.key("a", "b"), runner.key("ab"), runner.key("a", b"c"), runner.key("b", "a")]
    assert len(set(keys)) == 4 and all(len(one) == 16 for one in keys)
