"""The page as text: the verdict over all sections, what stands at its top, and sections that could not run."""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
from markupsafe import Markup

from parity.compare import compare
from parity.errors import CannotRun
from parity.goldens.store import Golden
from parity.sigma import Rounding
from reports import __main__ as whole
from reports import browser, page, screenshot
from reports.bugs import precision
from reports.parity import command as parity
from reports.parity import sigmas

ROOT = pathlib.Path(__file__).resolve().parents[1]


def section(name, is_equal=True, **more):
    return page.Section(name, name.title(), f"{name} was judged.", is_equal, f"make {name}", Markup("<p>x</p>"), **more)


def gone(name, **more):
    return section(name, kind="not run", **more)


@pytest.mark.parametrize(
    ("sections", "state", "words"),
    [
        ([section("a"), section("b")], "good", "All 2 verdicts are good: no difference from the original was found."),
        ([section("a")], "good", "The verdict is good: no difference from the original was found."),
        ([section("a"), section("b", False)], "bad", "1 of 2 verdicts is bad: B (different)."),
        ([section("a", False, badge="undecided")], "bad", "The verdict is bad: A (undecided)."),
        ([section("a"), section("b", False, kind="beside")], "good", "The verdict is good: no difference"),
        ([section("a"), gone("b", is_equal=False)], "absent", "was found. Not run: B."),
        ([section("a"), gone("b", is_equal=True)], "good", "was found. Not run: B."),
        ([gone("b")], "absent", "Nothing was judged. Not run: B."),
    ],
    ids=["all", "one", "bad", "undecided", "of_others", "needed", "not_needed", "nothing"],
)
def test_the_verdict_over_all_sections_counts_those_that_judge(sections, state, words):
    found = page.in_one_line(sections)
    assert found[0] == state and words in found[1]


def test_what_was_compared_stands_at_the_top_once(tmp_path):
    mine = section("mine", provenance=[("candidate", "port"), ("weights", "seeded"), ("live", "nobody")])
    other = section("other", provenance=[("candidate", "port"), ("weights", "others")])
    beside = section("beside", kind="beside", provenance=[("candidate", "theirs"), ("reference", "the original")])
    assert page.compared([beside, mine, other]) == [
        *(("candidate", "port"), ("reference", "the original"), ("weights", "seeded"))
    ]
    html = page.write([beside, mine, other], tmp_path).read_text()
    counts = {text: html.count(f"<dd>{text}</dd>") for text in ("port", "seeded", "nobody", "others", "theirs")}
    assert counts == {"port": 1, "seeded": 1, "nobody": 1, "others": 1, "theirs": 1}


def test_what_stands_in_backticks_is_code_and_nothing_else_is_markup():
    assert page.with_code("`make <x>` & more") == "<code>make &lt;x&gt;</code> &amp; more"


def refuses(implementation_name, out):
    raise CannotRun("There is no trace; `make traces` makes one.")


def breaks(implementation_name, out):
    raise ValueError("a mistake of ours")


def have_sections(monkeypatch, makers):
    """Modules of the page's folder, each with a section that one of the functions makes."""
    names = [f"made_up_{i}" for i in range(len(makers))]
    for name, make in zip(names, makers, strict=True):
        module = types.ModuleType(f"reports.{name}.command")
        module.TITLE, module.section = name, make
        monkeypatch.setitem(sys.modules, f"reports.{name}", types.ModuleType(f"reports.{name}"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(whole, "SECTIONS", names)


@pytest.mark.parametrize(
    ("makers", "code"),
    [
        ([lambda name, out: section("a"), refuses], 2),
        ([lambda name, out: section("a", False), refuses], 1),
        ([lambda name, out: section("a"), lambda name, out: gone("b")], 0),
    ],
    ids=["could_not_run", "different", "not_needed"],
)
def test_a_section_that_cannot_run_does_not_take_the_others_with_it(makers, code, tmp_path, monkeypatch, capsys):
    have_sections(monkeypatch, makers)
    assert whole.main(["--out", str(tmp_path), "--json", str(tmp_path / "verdict.json")]) == code
    html = (tmp_path / "index.html").read_text()
    assert "a was judged." in html and "not run</span>" in html
    assert len(json.loads((tmp_path / "verdict.json").read_text())) == 2
    if refuses in makers:
        assert "There is no trace; <code>make traces</code> makes one." in html
        assert "There is no trace" in capsys.readouterr().out


def test_a_section_that_breaks_says_how_and_shows_where(tmp_path, monkeypatch, capsys):
    have_sections(monkeypatch, [breaks, lambda name, out: section("a")])
    assert whole.main(["--out", str(tmp_path)]) == 2
    assert "It failed with ValueError: a mistake of ours" in (tmp_path / "index.html").read_text()
    assert "in breaks" in capsys.readouterr().err


def test_a_section_that_cannot_be_imported_does_not_take_the_others_with_it(tmp_path, monkeypatch, capsys):
    have_sections(monkeypatch, [lambda name, out: section("a")])
    monkeypatch.setattr(whole, "SECTIONS", ["no_such_section", *whole.SECTIONS])
    assert whole.main(["--out", str(tmp_path)]) == 2
    html = (tmp_path / "index.html").read_text()
    assert "a was judged." in html and "It failed with ModuleNotFoundError" in html
    assert "no_such_section: not run, 0 s" in capsys.readouterr().err


def test_the_sections_of_the_page_have_titles_where_they_cannot_run():
    for name in whole.SECTIONS:
        module = importlib.import_module(f"reports.{name}.command")
        assert module.TITLE[0].isupper() and callable(module.section)


def test_a_process_that_a_section_starts_imports_no_other_section():
    code = "import sys, reports.__main__; print(sorted({'matplotlib', 'scipy', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_implementation_that_is_not_there_makes_no_page(tmp_path, capsys):
    assert whole.main(["--impl", "no_such_module:x", "--out", str(tmp_path / "out")]) == 2
    assert "no_such_module" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Errors and tolerances of layers


def golden(truth, sigma):
    sigmas = {"value": {"out": {53: np.array(sigma), 24: 2.0**29 * np.array(sigma)}}, "vjp": {}}
    arrays = {"outputs": {"out": np.array(truth)}, "vjps": {}, "inputs": {}, "cotangents": {}}
    return Golden("ops/kl", "made", {}, "generated", "seeded", **arrays, rounding=Rounding(sigmas))


def test_errors_in_sigmas_are_counted():
    where, ref = ("ops/kl", "plain", "out"), np.ones(4)
    got = ref + 1e-3 * np.array([0.0, 0.3, 1.1, 9.0])
    row = compare(where, "value", "float64", ref, got, np.full(4, 1e-3))
    (series,) = sigmas.of_rows("mine", [row])
    assert (series.program, series.dtype, series.elements) == ("mine", "float64", 4)
    assert [series.within(n) for n in (1, 2, 8)] == [0.5, 0.75, 0.75] and series.counts[-1] == 1
    assert sigmas.table([series])["elements"].sum() == 4
    assert sigmas.figure([series]).axes


def test_tolerances_of_a_layer_are_relative_to_the_scale(monkeypatch):
    cases = {"plain": golden([4.0, 1.0, 2.0], [4e-10, 0.0, 1.0]), "zero": golden([0.0], [0.0])}
    monkeypatch.setattr(parity, "load_case", lambda store, layer, case: cases[case])
    store = types.SimpleNamespace(cases=lambda layer: list(cases))
    allowed = parity.what_is_allowed(store, "ops/kl")
    assert set(allowed) == {("value", "float64"), ("value", "float32")}
    spread = allowed["value", "float64"]
    assert spread.median == pytest.approx(8e-10, rel=1e-3) and spread.largest == pytest.approx(2.0)


def test_silent_elements_are_counted_once():
    where, ref = ("ops/kl", "plain", "out"), np.ones(4)
    rows = [
        compare(where, "value", dtype, ref, ref, np.array([0.0, 1e-9, 0.5, 1.0])) for dtype in ("float64", "float32")
    ]
    assert parity.count_informative(rows) == (4, 2)


def test_mutants_killed_in_one_precision_are_kept_for_the_page(tmp_path):
    path = tmp_path / "precision.json"
    assert precision.stored(path) == {}
    single, half = precision.Killed(9, 10, ["a"], "now"), precision.Killed(7, 10, ["a", "b", "c"], "now")
    precision.store({"float32": single}, path)
    precision.store({"bf16": half}, path)
    assert precision.stored(path) == {"bf16": half, "float32": single}


# Where there is no browser


@pytest.fixture
def without_browser(tmp_path, monkeypatch):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_screenshot_without_a_browser_is_a_sentence(without_browser, capsys):
    (without_browser / "index.html").write_text("<p>here</p>")
    given = ["--page", str(without_browser / "index.html"), "--png", str(without_browser / "x.png")]
    assert screenshot.main(given) == 2
    assert "There is no Chromium here. Install" in capsys.readouterr().err
    assert screenshot.main(["--page", str(without_browser / "none.html")]) == 2
    assert "`make report` makes one" in capsys.readouterr().err


def test_a_browser_that_is_named_and_is_none_is_told(without_browser, monkeypatch, capsys):
    monkeypatch.setenv("CHROMIUM", "/no/such/chromium")
    assert browser.main([]) == 2
    assert "CHROMIUM names /no/such/chromium, which cannot be run." in capsys.readouterr().err


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("apt", "user", "said"),
    [
        (None, 0, "apt-get is not here"),
        ("exit 0", 1000, "only root may install it"),
        ("echo 'E: Unable to fetch' >&2; exit 100", 0, "apt-get update failed (E: Unable to fetch)"),
        ("exit 0", 0, "There is no Chromium here. Install"),
    ],
    ids=["no_apt", "not_root", "no_network", "in_vain"],
)
def test_what_hinders_the_install_is_told(apt, user, said, without_browser, monkeypatch, capsys):
    if apt:
        script(without_browser / "apt-get", apt)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert browser.main([]) == 2
    assert said in capsys.readouterr().err


def test_a_browser_is_installed_once(without_browser, monkeypatch, capsys):
    log, made = without_browser / "log", without_browser / "chromium"
    arrives = f"printf '#!/bin/sh\\n' > {made}; /bin/chmod +x {made}"
    script(without_browser / "apt-get", f'echo "$*" >> {log}\n{arrives}')
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert browser.main([]) == browser.main([]) == 0
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["update", "chromium"]
    assert f"Chromium is {made}" in capsys.readouterr().out


# Skips

SKIPS = """
import pytest

def test_one():
    pytest.skip({reason!r})
"""


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("There is no Chromium here. Install one.", "1 skipped"), ("I did not feel like it", "1 failed")],
    ids=["listed", "not_listed"],
)
def test_in_ci_a_skip_must_be_on_the_list(reason, outcome, tmp_path):
    for name in ("conftest.py", "allowed_skips.toml"):
        (tmp_path / name).write_bytes((ROOT / "tests" / name).read_bytes())
    (tmp_path / "test_one.py").write_text(SKIPS.format(reason=reason))
    command = [sys.executable, "-m", "pytest", "-p", "no:disco_parity", "-p", "no:xdist", "-q", str(tmp_path)]
    surroundings = {**os.environ, "CI": "1", "PYTEST_ADDOPTS": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)
    assert outcome in done.stdout, done.stdout + done.stderr
