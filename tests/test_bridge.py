"""`--impl cmd:PROGRAM`: programs in other languages, and programs that misbehave."""

import gc
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import save

from parity import bridge
from parity.__main__ import main
from parity.goldens.check import Outcome, check_layer
from parity.goldens.check import load as load_golden
from parity.goldens.store import Store
from parity.implementation import load
from parity.live import repro
from tests.helpers import ROOT

EXAMPLE = ROOT / "parity" / "examples" / "signed_hyperbolic.c"
CALL = ("ops/kl", {"p_logits": np.zeros((5, 3, 3))}, {"T": 5}, "float64")


def compiled(source, folder, *options):
    """The path of the program that a C source gives."""
    if shutil.which("cc") is None:
        pytest.skip("There is no C compiler here.")
    program = folder / source.stem
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", *options, "-o", str(program), str(source), "-lm"], check=True)
    return program


def checked(implementation, *layers):
    outcome, store = Outcome(), Store()
    for layer in layers:
        check_layer(store, implementation, layer, outcome)
    return outcome


@pytest.fixture
def program(tmp_path):
    """Starts the program of `tests/answering.py` in one of its modes."""

    def start(mode, seconds=20.0):
        return bridge.Program(command(mode, tmp_path), seconds)

    return start


def command(mode, folder):
    return f"{sys.executable} {ROOT / 'tests' / 'answering.py'} {mode} '{folder / 'pids'}'"


def pids(folder):
    return (folder / "pids").read_text().split()


def test_the_example_in_c_is_equal_in_values_and_gradients(tmp_path):
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 70
    outcome = checked(load(f"cmd:{compiled(EXAMPLE, tmp_path)}"), "ops/signed_hyperbolic")
    assert [row.sentence() for row in outcome.different] == [] and not outcome.without_gradients
    assert {(row.kind, row.dtype) for row in outcome.rows} == {
        (kind, dtype) for kind in ("value", "vjp") for dtype in ("float64", "float32")
    }


@pytest.mark.parametrize(
    ("right", "wrong", "kinds"),
    [("small * x[i]", "x[i] * small * 2", {"value"}), ("sign * sign", "1", {"vjp"})],
    ids=["value", "gradient_at_zero"],
)
def test_a_mistake_in_c_is_different(right, wrong, kinds, tmp_path):
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text.count(right) == 1
    (tmp_path / "wrong.c").write_text(text.replace(right, wrong))
    outcome = checked(load(f"cmd:{compiled(tmp_path / 'wrong.c', tmp_path)}"), "ops/signed_hyperbolic")
    assert {row.kind for row in outcome.different} == kinds


def test_the_command_takes_a_program_with_arguments(tmp_path, capsys):
    assert main(["check", "ops/signed_hyperbolic", "--impl", f"cmd:{command('right', tmp_path)}"]) == 0
    assert "answering provides 2 of" in capsys.readouterr().out
    assert len(pids(tmp_path)) == 1


def test_requests_look_as_the_protocol_promises():
    request = {"call": "run", "layer": "ops/kl", "settings/T": "5"}
    frame = save({"a/b": np.zeros((2, 3), np.float32), "s": np.zeros(())}, request)
    header = frame[8 : 8 + int.from_bytes(frame[:8], "little")].decode()
    assert " " not in header.rstrip(" ")
    assert all(f'"{key}":"{value}"' in header for key, value in request.items())
    entries = re.findall(r'"([\w/]+)":\{"dtype":"(\w+)","shape":\[([\d,]*)\],"data_offsets":\[(\d+),(\d+)\]\}', header)
    assert sorted(entries) == [("a/b", "F32", "2,3", "8", "32"), ("s", "F64", "", "0", "8")]


@pytest.mark.parametrize("mode", ["exit", "error"])
def test_a_program_that_fails_in_one_layer_keeps_the_others(mode, program, tmp_path):
    outcome = checked(program(mode), "ops/kl", "ops/signed_hyperbolic")
    assert {row.layer for row in outcome.different} == {"ops/kl"}
    right = [row for row in outcome.rows if row.layer == "ops/signed_hyperbolic"]
    assert len(right) >= 10 and all(row.equal for row in right)
    failures = len({(row.case, row.dtype) for row in outcome.different})
    assert len(pids(tmp_path)) == (1 if mode == "error" else 1 + failures)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("signal", "ended by signal SIGSEGV before it had answered"),
        ("exit", "ended with exit code 3 before it had answered; its standard error ends: no such table"),
        ("exit_0", "ended with exit code 0 before it had answered"),
        ("text", "wrote b'computin' for the length of its answer; only frames may stand on its standard output"),
        ("no_tensors", "answer is no safetensors file: .*; it begins b'hello'"),
        ("bad_header", "answer is no safetensors file"),
        ("half", "ended with exit code 1 before it had answered"),
        ("error", "answered with an error: no table of 18 actions"),
    ],
)
def test_a_wrong_answer_gets_a_sentence(mode, said, program):
    with pytest.raises(bridge.ProgramFailed, match=said):
        program(mode).run(*CALL)


@pytest.mark.parametrize("mode", ["hang", "hang_apart", "closed"])
def test_a_program_that_does_not_answer_in_time_is_ended_with_what_it_started(mode, program, tmp_path):
    slow = program(mode)
    slow.seconds, group = 0.5, int(pids(tmp_path)[0])
    with pytest.raises(bridge.ProgramFailed, match="within 0.5 s|closed its standard output"):
        slow.run(*CALL)
    assert not alive(group)
    assert "out" in slow.run("ops/signed_hyperbolic", {"x": np.ones(3)}, {}, "float64")
    assert len(pids(tmp_path)) == 2


def alive(group):
    """Whether a process of the group still runs, a second later."""
    for _ in range(20):
        listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
        running = {int(line.split()[0]) for line in listed.splitlines() if not line.split()[1].startswith("Z")}
        if group not in running:
            return False
        time.sleep(0.05)
    return True


def test_a_program_that_ends_after_an_answer_is_started_again(program, tmp_path):
    short = program("once")
    for _ in range(2):
        assert "out" in short.run(*CALL)
        assert not alive(int(pids(tmp_path)[-1]))
    assert len(pids(tmp_path)) == 2


def test_a_program_that_was_still_ending_when_it_was_asked_is_started_again(program, tmp_path, monkeypatch):
    short = program("once")
    monkeypatch.setattr(bridge.Process, "has_ended", False)  # as seen a moment before it ends
    for number in (1, 2, 3):
        assert "out" in short.run(*CALL)
        assert len(pids(tmp_path)) == number and not alive(int(pids(tmp_path)[-1]))


def test_a_failure_of_a_program_is_written_as_one_file_that_starts_it(tmp_path):
    name = f"cmd:{command('right', tmp_path)}"  # whose KL has a fixed shape of zeros
    golden = load_golden(Store(), "ops/kl", "plain")
    row = checked(load(name), "ops/kl").different[0]
    path = repro.write(golden, row, name, tmp_path)
    done = subprocess.run([sys.executable, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "DIFFERENT" in done.stdout, done.stderr
    assert len(pids(tmp_path)) == 2


def test_what_is_written_after_an_answer_is_refused(program):
    untidy = program("more")
    untidy.run(*CALL)
    time.sleep(0.2)
    with pytest.raises(bridge.ProgramFailed, match=r"wrote b'done\\n' without a request"):
        untidy.run(*CALL)


def test_a_request_larger_than_a_pipe_is_answered(program):
    x = np.linspace(-3, 3, 10**6)
    out = program("right").run("ops/signed_hyperbolic", {"x": x}, {}, "float64")["out"]
    np.testing.assert_allclose(out, np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x)


def test_what_a_program_declares_is_known(program):
    running = program("right")
    assert (running.name, running.layers) == ("answering", ["ops/signed_hyperbolic", "ops/kl"])
    assert running.optional_outputs == {"ops/kl": ["log/*", "more"]}
    with pytest.raises(NotImplementedError):
        running.vjp(*CALL, {}, [])


def test_a_program_is_asked_for_settings_that_it_cannot_have_if_it_says_so(program):
    choosy = program("choosy")
    left_out = {f"ops/kl[{case}] (only three actions)" for case in ("A2", "A18")}
    assert set(checked(choosy, "ops/kl").not_provided) == left_out
    assert choosy.unsupported("ops/kl", {"A": 18}) == "only three actions"
    assert choosy.unsupported("ops/kl", {"A": 3}) == choosy.unsupported("ops/kl", {}) == ""
    assert program("right").unsupported("ops/kl", {"A": 18}) == ""


def test_no_process_is_left(program, tmp_path):
    running = program("right")
    group = int(pids(tmp_path)[0])
    assert alive(group)
    del running
    gc.collect()
    assert not alive(group)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cmd:", "cmd: names no program; write it as cmd:./my_program."),
        ("cmd:./absent", "The program './absent' cannot be started: No such file or directory."),
        ("cmd:Makefile", "Did you mean cmd:./Makefile?"),
        ("cmd:./Makefile", "cannot be started: Permission denied."),
        ("cmd:'./a", "cannot be split into arguments (No closing quotation)."),
        ("cmd:true", "cmd:true: the program ended with exit code 0 before it had answered"),
        ("cmd:echo hello to all of you", "; only frames may stand on its standard output"),
    ],
)
def test_a_program_that_cannot_be_used_gets_a_sentence(name, said, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["check", "ops/kl", "--impl", name]) == 2
    assert said in capsys.readouterr().err


def test_a_program_that_fails_at_once_gets_its_last_words(tmp_path, capsys):
    assert main(["check", "ops/kl", "--impl", f"cmd:{command('no_hello', tmp_path)}"]) == 2
    assert "exit code 4 before it had answered; its standard error ends: no such table" in capsys.readouterr().err
