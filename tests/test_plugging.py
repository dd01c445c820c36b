"""Plugging in somebody else's implementation: what is asked of it, what is said of it, and what is known of it."""

import io
import json
import sys

import numpy as np
import pytest
from rich.console import Console

from parity import implementation as plugging
from parity.__main__ import main
from parity.command_line import chosen
from parity.compare import Row
from parity.goldens import table
from parity.goldens.store import Store
from parity.layers import REGISTRY
from tests import toy

LAYERS = list(toy.implementation.layers)


@pytest.fixture
def plugged(monkeypatch):
    """Makes an object loadable as `--impl test`."""

    def plug(made):
        for command in ("check", "trace", "diagnose"):
            monkeypatch.setattr(f"parity.commands.{command}.load", lambda name: made)
        return made

    return plug


def test_a_newcomers_mistake_is_found_with_one_command(plugged, capsys):
    plugged(toy.implementation)
    assert main(["check", "--impl", "toy"]) == 1
    said = capsys.readouterr().out
    assert "values/retrace q_target: values differ, 13 of 16 cases\n  values/retrace[terminal_last] value of" in said
    assert "toy provides 5 of" in said
    assert "Not provided: transforms/identity" in said
    for right in LAYERS[:-1]:
        assert f"{right}[" not in said


def test_without_the_mistake_it_is_equal_though_it_has_no_gradients(plugged, capsys):
    plugged(toy.right)
    assert main(["check", "--impl", "toy"]) == 0
    assert "Without VJPs" in capsys.readouterr().out
    assert main(["check", "--impl", "toy", "--strict"]) == 1


@pytest.mark.parametrize("command", ["check", "diagnose", "trace"])
def test_the_device_is_set_where_an_adapter_has_one(plugged, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    made, layers = plugged(toy.Toy()), ["ops/kl"] if command != "trace" else []
    assert main([command, *layers, "--device", "cuda:1"]) == 2
    assert "toy has no `device` that could be set" in capsys.readouterr().err
    made.device = "cpu"
    assert main([command, *layers, "--device", "cuda:1"]) != 2 and made.device == "cuda:1"
    assert main([command, *layers]) != 2 and made.device == "cuda:1"


def test_rows_for_machines(plugged, tmp_path):
    plugged(toy.implementation)
    main(["check", "values/retrace", "--json", str(tmp_path / "rows.json")])
    result = json.loads((tmp_path / "rows.json").read_text())
    rows = result["comparisons"]
    assert 0.0 < result["median_tolerance_float64"] < 1e-13
    assert {row["equal"] for row in rows} == {True, False}
    assert all(row["layer"] == "values/retrace" for row in rows)


@pytest.mark.parametrize("width", [80, table.WIDE])
def test_the_table_shows_every_layer_whole(width):
    compared = (("value", "float64"), ("vjp", "float64"), ("value", "float32"), ("vjp", "float32"))
    longest = max(REGISTRY, key=len)
    rows = [Row(longest, "plain", "out", *column, 1e-3, 1e-3, ratio=2.0, equal=False) for column in compared]
    console = Console(width=width, file=io.StringIO())
    console.print(table.terminal_table(rows, console.width))
    head, line = console.file.getvalue().splitlines()
    assert longest in line and "4 DIFFER" in line and "…" not in head + line
    assert ("precision seen" in head) == (width == table.WIDE)


EXPECTED = """
[[divergence]]
layer = "values/retrace"
output = "q_target"
at_least = {low}
at_most = {high}
reason = "weights one step too late"
"""


@pytest.mark.parametrize(
    ("low", "high", "made", "code", "said"),
    [
        (1e-2, 10.0, toy.implementation, 0, "of them expected"),
        (1e-2, 1e-1, toy.implementation, 1, "not between"),
        (5.0, 10.0, toy.implementation, 1, "not between"),
        (1e-2, 10.0, toy.right, 1, "no longer diverges"),
    ],
    ids=["known", "worse_than_known", "better_than_known", "gone"],
)
def test_expected_divergences(plugged, tmp_path, capsys, low, high, made, code, said):
    plugged(made)
    file = tmp_path / "known.toml"
    file.write_text(EXPECTED.format(low=low, high=high))
    assert main(["check", "--expected", str(file)]) == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[divergence]]\nlayer = 'values/retrace'", "lacks output"),
        (EXPECTED.format(low=0.1, high=1.0).replace("values/retrace", "values/retrase"), "no layer is called"),
        (EXPECTED.format(low=0.1, high=1.0) + "typo = 1", "does not know typo"),
        ("not toml", "no list of"),
    ],
)
def test_a_bad_file_of_expectations_gets_a_sentence(plugged, tmp_path, capsys, text, said):
    plugged(toy.implementation)
    (tmp_path / "known.toml").write_text(text)
    assert main(["check", "--expected", str(tmp_path / "known.toml")]) == 2
    assert said in capsys.readouterr().err


def raising(inputs, settings, dtype):
    raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (raising, "raised RuntimeError: not today"),
        (lambda i, s, d: {"result": i["x"] * 1}, "is missing; the layer gave ['result']"),
        (lambda i, s, d: {"out": (i["x"] * 1)[:1]}, "expected shape"),
        (lambda i, s, d: {"out": i["x"].astype(np.float16)}, "expected dtype float64, got float16"),
        (lambda i, s, d: {"out": i["x"] * np.nan}, "NaN at"),
        (lambda i, s, d: {"out": i["x"]}, "shares memory with one of the inputs"),
        (lambda i, s, d: [1], "expected a dict of NumPy arrays, got list"),
        (lambda i, s, d: {"out": i["x"].__imul__(2.0) * 1}, "changed its input x in place"),
    ],
    ids=["raises", "keys", "shape", "dtype", "nan", "same_object", "no_dict", "in_place"],
)
def test_a_layer_that_breaks_the_contract_is_told_how(plugged, capsys, wrong, said):
    plugged(toy.Toy(**{"ops/signed_hyperbolic": wrong}))
    is_compared = wrong is not raising and not any(words in said for words in ("shares", "expected a dict", "in place"))
    assert main(["check", "ops/signed_hyperbolic"]) == (1 if is_compared else 2)
    out = capsys.readouterr().out
    assert "ops/signed_hyperbolic[" in out
    assert said in out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such", "No implementation is called 'no_such'"),
        ("no_such.module:x", "There is no module 'no_such.module'"),
        ("tests.toy:absent", "has no 'absent'. Did you mean tests.toy:implementation?"),
        ("tests.toy:Toy", "tests.toy:Toy is a class; put `implementation = Toy()`"),
        ("tests/toy.py:right", "is a file; name its module, without .py: --impl tests.toy:right"),
        ("toy.py", "without .py: --impl toy:implementation"),
        ("/absent/toy.py:x", "from /absent, --impl toy:x"),
        ("tests", "tests is a folder; name a module: --impl tests."),
        ("reports/audit", "is a folder; name a module: --impl reports.audit:implementation"),
        (".", ". is a folder; name a module"),
        ("tests.no_such:x", "There is no module 'tests.no_such'"),
    ],
)
def test_an_implementation_that_cannot_be_loaded_gets_a_sentence(capsys, name, said):
    assert main(["check", "--impl", name]) == 2
    assert said in capsys.readouterr().err


def test_an_implementation_is_loaded_by_name():
    assert plugging.load("tests.toy:implementation") is toy.implementation


def test_a_package_that_an_adapter_needs_is_named_and_where_to_install_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "needy.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", "--impl", "needy:implementation"]) == 2
    said = capsys.readouterr().err
    assert "needs the module 'surely_not_installed', not installed here. Install its package into" in said
    assert sys.executable in said


@pytest.mark.parametrize("command", ["check", "diagnose", "list"])
def test_prefixes_choose_layers(command, capsys):
    options = [] if command == "list" else ["--impl", "tests.toy:right"]
    for asked in ("moving_average", "moving_average/", "moving_average/update"):
        assert main([command, asked, *options]) == 0
    assert main([command, "moving", *options]) == 2
    assert "No layer is called 'moving'. Did you mean moving_average" in capsys.readouterr().err


def test_layers_come_once_and_in_order():
    known = list(REGISTRY)
    assert chosen(["values/retrace", "values", "ops/"], known) == [
        name for name in known if name.startswith(("ops/", "values/"))
    ]
    assert all(name.startswith("meta/") for name in chosen(["meta"], known))  # not meta_train
    assert chosen([], known) == known


def test_list_shows_the_cases_that_the_recorder_added(capsys):
    assert main(["list", "values/retrace"]) == 0
    cases = capsys.readouterr().out.partition("cases: ")[2].strip().split(", ")
    assert set(cases) == set(Store().cases("values/retrace"))
    assert len(cases) > len(REGISTRY["values/retrace"].cases)


def test_what_is_no_implementation_is_refused_before_any_work(monkeypatch, capsys):
    monkeypatch.setattr(toy, "nothing", object(), raising=False)
    assert main(["check", "--impl", "tests.toy:nothing"]) == 2
    assert "is no implementation: it has no `name`" in capsys.readouterr().err


def test_a_misspelt_layer_is_refused_with_a_hint(monkeypatch, capsys):
    monkeypatch.setattr(toy, "misspelt", toy.Toy(**{"ops/twohot": toy.kl}), raising=False)
    assert main(["check", "--impl", "tests.toy:misspelt"]) == 2
    assert "'ops/twohot', and no layer is called that. Did you mean ops/two_hot" in capsys.readouterr().err


def test_an_adapter_without_layers_is_not_called_equal(plugged, capsys):
    empty = plugged(toy.Toy())
    empty.layers = {}
    for command in ("check", "diagnose"):
        assert main([command, "--impl", "toy"]) == 2
        assert "provides no layer;" in capsys.readouterr().err


def test_strict_says_what_is_lacking(plugged, capsys):
    plugged(toy.right)
    assert main(["check", "ops/kl", "ops/entropy", "--impl", "toy", "--strict"]) == 1
    assert "--strict: ops/entropy and 1 more are not provided." in capsys.readouterr().out


def test_an_adapter_that_is_not_there_is_told_from_a_library_that_is_not(capsys):
    assert main(["check", "--impl", "mien:implementation"]) == 2
    assert "There is no module 'mien', neither installed nor in" in capsys.readouterr().err


def test_an_expected_divergence_of_no_output_is_refused(plugged, tmp_path, capsys):
    plugged(toy.implementation)
    text = EXPECTED.format(low=0.01, high=5.0).replace('"q_target"', '"q_targte"')
    (tmp_path / "known.toml").write_text(text)
    assert main(["check", "values/retrace", "--expected", str(tmp_path / "known.toml")]) == 2
    assert "has no output (nor, for a VJP, input) 'q_targte'" in capsys.readouterr().err
