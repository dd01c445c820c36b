"""The gate cannot be green by accident: nothing that an adapter or a file of known divergences does is `equal`."""

import json
from pathlib import Path

import pytest

from parity import weights
from parity.__main__ import main
from parity.command_line import ExitCode
from parity.goldens import check
from tests import toy

HYPERBOLIC = "ops/signed_hyperbolic"
EQUAL, DIFFERENT, COULD_NOT_RUN, NOTHING_COMPARED, INTERRUPTED = ExitCode


def right(inputs, settings, dtype):
    return toy.signed_hyperbolic(inputs, settings, dtype)


@pytest.fixture
def plug(tmp_path, monkeypatch):
    """Makes an adapter that can be loaded from its source."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source):
        name = f"adapter_{abs(hash((source, tmp_path.name)))}"
        (tmp_path / f"{name}.py").write_text(f"import sys\nimport numpy as np\nfrom tests import toy\n{source}\n")
        return f"{name}:implementation"

    return write


def layer(body):
    """An adapter of one layer: the lines of its function, `right` being the right answer."""
    lines = "\n    ".join(body.split("\n"))
    right = "right = toy.signed_hyperbolic(dict(inputs), settings, dtype)"
    function = f"def wrong(inputs, settings, dtype):\n    {right}\n    {lines}\n"
    return f"{function}implementation = toy.Toy(**{{{HYPERBOLIC!r}: wrong}})"


class_of = "class Odd(toy.Toy):\n    {}\nimplementation = Odd()"
ANSWERS = {
    "a_masked_array": (
        "return {'out': np.ma.masked_all_like(right['out'])}",
        1,
        "plain numpy.ndarray, got MaskedArray",
    ),
    "a_subclass": ("return {'out': right['out'].view(np.recarray)}", 1, "plain numpy.ndarray, got recarray"),
    "system_exit": ("sys.exit(0)", 2, "raised SystemExit: 0"),
    "os_exit": ("import os\nos._exit(0)", 2, "raised SystemExit: os._exit(0)"),
    "skipped": ("import pytest\npytest.skip('later')", 2, "raised Skipped: later"),
    "its_own_base_exception": ("class Odd(BaseException): pass\nraise Odd('odd')", 2, "raised Odd: odd"),
    "no_text": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute",
        2,
        "raised Mute, whose text cannot be shown",
    ),
    "an_input_taken_out": ("inputs.pop('x')\nreturn right", 2, "changed its input x"),
    "an_input_replaced": ("inputs['x'] = None\nreturn right", 2, "changed its input x"),
    "an_input_added": ("inputs['y'] = np.zeros(2)\nreturn right", 2, "changed its input y"),
    "changed_settings": ("settings.clear()\nsettings['T'] = 1\nreturn right", 2, "changed its settings"),
    "names_that_are_no_texts": (
        "return {**right, 1: right['out'], None: right['out']}",
        2,
        "expected names of outputs",
    ),
    "errors_raised_by_numpy": ("np.seterr(all='raise')\nreturn right", 0, "0 different"),
}


@pytest.mark.parametrize("body", ANSWERS)
def test_what_a_layer_may_do_is_a_sentence_and_never_equal(plug, capsys, body):
    source, code, sentence = ANSWERS[body]
    assert main(["check", HYPERBOLIC, "ops/kl", "--impl", plug(layer(source))]) == code
    printed = capsys.readouterr()
    assert sentence in printed.out and "Traceback" not in printed.err
    assert "ops/kl" in printed.out  # the other layer is not lost


IMPORTS = {
    "exit": ("sys.exit(0)", "failed with SystemExit: 0"),
    "skip": ("import pytest\npytest.skip('x', allow_module_level=True)", "failed with Skipped"),
    "syntax": ("def", "failed with SyntaxError"),
    "a_generator": (
        class_of.format("layers = property(lambda self: (n for n in ['ops/kl']))\n    def __init__(self): pass"),
        "has generator as `layers`",
    ),
    "a_text": ("implementation = toy.Toy()\nimplementation.layers = 'ops/kl'", "has str as `layers`"),
    "nothing": ("implementation = toy.Toy()\nimplementation.layers = None", "has NoneType as `layers`"),
    "numbers": ("implementation = toy.Toy()\nimplementation.layers = [1, 2]", "has list as `layers`"),
    "layers_raise": (
        class_of.format("layers = property(lambda self: sys.exit(0))\n    def __init__(self): pass"),
        "SystemExit: 0",
    ),
    "name": ("implementation = toy.Toy()\nimplementation.name = None", "`name` is no text"),
    "optional_text": (
        "implementation = toy.Toy()\nimplementation.optional_outputs = {'ops/kl': '*'}",
        "has str as `optional_outputs['ops/kl']`",
    ),
    "optional_list": (
        "implementation = toy.Toy()\nimplementation.optional_outputs = ['*']",
        "has list as `optional_outputs`",
    ),
    "optional_of_no_layer": (
        "implementation = toy.Toy()\nimplementation.optional_outputs = {'ops/kll': ['*']}",
        "no layer is called that",
    ),
}


@pytest.mark.parametrize("case", IMPORTS)
def test_an_odd_adapter_is_a_sentence_and_two(plug, capsys, case):
    source, sentence = IMPORTS[case]
    for command in (["check", "ops/kl"], ["trace"], ["diagnose", "ops/kl"]):
        assert main([*command, "--impl", plug(source)]) == COULD_NOT_RUN
        assert sentence in capsys.readouterr().err


def test_unsupported_that_raises_is_seen_in_its_layer(plug, capsys):
    source = class_of.format("def unsupported(self, layer, settings): return 1 / 0 if layer == 'ops/kl' else ''")
    assert main(["check", "ops/kl", HYPERBOLIC, "--impl", plug(source)]) == COULD_NOT_RUN
    assert "`unsupported` raised ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["check", "ops/entropy"], ["diagnose", "ops/entropy"], ["trace"]])
def test_nothing_compared_is_three(plug, capsys, command):
    source = "implementation = toy.Toy()\nimplementation.layers = {'env/step': toy.kl}"
    source = source.replace("env/step", "replay/sample")
    assert main([*command, "--impl", plug(source)]) == NOTHING_COMPARED
    assert "parity: " in capsys.readouterr().err


def test_strict_fails_on_skipped_cases_and_a_named_file_must_be_there(monkeypatch, tmp_path, capsys):
    check.disco103.cache_clear()
    monkeypatch.delenv(weights.VARIABLE, raising=False)
    monkeypatch.setattr(weights, "cache_folder", lambda: tmp_path)
    assert main(["check", "meta/whole"]) == EQUAL
    assert main(["check", "meta/whole", "--strict"]) == DIFFERENT
    assert "(not run)" in capsys.readouterr().out
    monkeypatch.setenv(weights.VARIABLE, str(tmp_path / "none.npz"))
    for more in ([], ["--strict"]):
        assert main(["check", "meta/whole", *more]) == COULD_NOT_RUN
        assert "none.npz is not there. It is named by DISCO103_WEIGHTS" in capsys.readouterr().err


ENTRY = {"layer": HYPERBOLIC, "output": "out", "at_least": 0.1, "at_most": 1.0, "reason": "known"}


def written(path, **changes):
    entry = {key: value for key, value in {**ENTRY, **changes}.items() if value is not ...}
    path.write_text("[[divergence]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in entry.items()))
    return str(path)


def test_an_exception_is_no_expected_divergence(plug, tmp_path, capsys):
    known = written(tmp_path / "known.toml", at_least=0)
    (tmp_path / "known.toml").write_text(Path(known).read_text().replace("1.0", "inf"))
    impl = plug(layer("raise ValueError('no')"))
    assert main(["check", HYPERBOLIC, "--impl", impl, "--expected", known]) == COULD_NOT_RUN
    assert "raised ValueError: no" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "vpj"}, "no kind is called 'vpj'. Did you mean vjp"),
        ({"dtype": "float46"}, "no dtype is called 'float46'"),
        ({"case": "zeroes"}, "no case is called 'zeroes'"),
        ({"kind": 1}, "kind is 1; give a text"),
        ({"layer": ["ops/kl"]}, "layer is ['ops/kl']; give a text"),
        ({"at_least": "0.1"}, "at_least is '0.1'; give a number"),
        ({"at_least": True}, "at_least is True; give a number"),
        ({"at_most": 0.01}, "at_least must not be below 0"),
        ({"at_least": -1}, "at_least must not be below 0"),
        ({"reason": ""}, "the reason is empty"),
        ({"reason": ...}, "lacks reason"),
        ({"wher": "x"}, "does not know wher"),
    ],
)
def test_an_odd_entry_of_a_known_divergence_is_refused(tmp_path, capsys, changes, sentence):
    path = written(tmp_path / "known.toml", **changes)
    assert main(["check", HYPERBOLIC, "--impl", "tests.toy:right", "--expected", path]) == COULD_NOT_RUN
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["divergence = 1", "divergence = [1]", "[divergence]\nlayer = 'x'", "[[divergences]]", "a = " + "[" * 9999, "\0"],
)
def test_an_odd_file_of_known_divergences_is_refused(tmp_path, capsys, text):
    path = tmp_path / "known.toml"
    path.write_text(text)
    for odd in (path, tmp_path, tmp_path / "none", _loop(tmp_path / "loop")):
        assert main(["check", HYPERBOLIC, "--impl", "tests.toy:right", "--expected", str(odd)]) == COULD_NOT_RUN
        assert str(odd) in capsys.readouterr().err


def _loop(path):
    if not path.is_symlink():
        path.symlink_to(path)
    return path


def test_entries_are_judged_by_what_was_asked(tmp_path, capsys):
    path = written(tmp_path / "known.toml", layer="values/retrace", output="q_target")
    ask = ["check", "--impl", "tests.toy:right", "--expected", path]
    assert main([*ask, HYPERBOLIC]) == EQUAL
    assert main([*ask, HYPERBOLIC, "values/retrace"]) == DIFFERENT
    assert "no longer diverges" in capsys.readouterr().out
    path = written(tmp_path / "known.toml", layer="ops/entropy", output="out")
    assert main([*ask, HYPERBOLIC, "ops/entropy"]) == DIFFERENT
    assert "was not compared" in capsys.readouterr().out


SLOW = """import time
while True:
    try:
        time.sleep(0.01)
    except Exception:
        pass"""


@pytest.mark.parametrize("command", ["check", "diagnose"])
def test_a_layer_that_does_not_end_is_out_of_time_and_the_others_go_on(plug, capsys, command):
    ask = [command, HYPERBOLIC, "values/retrace", "--impl", plug(layer(SLOW))]
    assert main([*ask, "--timeout", "0.2"]) == DIFFERENT  # values/retrace differs
    printed = capsys.readouterr().out
    assert f"OutOfTime: {HYPERBOLIC} took longer than the 0.2 seconds of --timeout" in printed
    assert "values/retrace" in printed
    for odd in ("0", "-1", "nan", "1e300"):
        assert main([*ask, "--timeout", odd]) == COULD_NOT_RUN


def test_trace_shows_the_other_layers_where_one_raises(plug, capsys):
    assert main(["trace", "--impl", plug(layer("raise SystemExit(0)"))]) == DIFFERENT  # values/retrace differs
    assert "values/retrace" in capsys.readouterr().out
