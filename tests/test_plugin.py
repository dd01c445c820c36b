"""The pytest plug-in takes no option's name from others, and a skip in CI needs a reason."""

import os
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from parity.goldens.store import Store
from parity.plugin import OPTIONS, fail_unless_allowed
from tests.helpers import ROOT

OTHERS = """
def pytest_addoption(parser):
    for name in {names}:
        parser.addoption(f"--{{name}}")
"""
ALLOWED = '[[skip]]\nsays = "no GPU"\nreason = "x"\n\n[[skip]]\ntest = "test_slow*"\nreason = "x"\n'


def run_pytest(folder, *arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "parity.plugin", *arguments]
    paths = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=folder, env=os.environ | paths, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_plugin_leaves_short_names_to_others(tmp_path):
    names = sorted(OPTIONS.keys() - {"strict"})
    (tmp_path / "conftest.py").write_text(OTHERS.format(names=names))
    (tmp_path / "test_it.py").write_text(
        "def test_it(request):\n    assert request.config.getoption('--impl') == 'theirs'\n"
        "    assert request.config.getoption('--parity-impl') == 'ours'\n"
    )
    done = run_pytest(tmp_path, "--impl", "theirs", "--parity-impl", "ours")
    assert done.returncode == 0, done.stdout + done.stderr


def test_short_names_are_for_the_tests_of_parity_alone(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    assert "unrecognized arguments: --impl" in run_pytest(tmp_path, "--impl", "port").stderr


@pytest.mark.parametrize("option", ["--impl", "--parity-impl"])
@pytest.mark.parametrize("more", [(), ("--strict",)], ids=["lax", "strict"])
def test_both_names_choose_the_implementation(option, more):
    chosen = [str(ROOT / "parity" / "test_goldens.py"), "-k", "signed_parabolic and zeros", *more]
    done = run_pytest(ROOT, "-o", "addopts=-ra --import-mode=importlib", *chosen, option, "tests.toy:right")
    assert "toy does not provide ops/signed_parabolic" in done.stdout
    assert done.returncode == (1 if more else 3), done.stdout + done.stderr  # 3: nothing was compared


@pytest.mark.parametrize(
    ("name", "said", "ci", "outcome"),
    [
        ("test_a", "there is no GPU here", "1", "skipped"),
        ("test_slow_one", "too slow", "1", "skipped"),
        ("test_a", "too slow", "1", "failed"),
        ("test_a", "too slow", "", "skipped"),
    ],
)
def test_in_ci_a_skip_needs_a_reason(name, said, ci, outcome, tmp_path, monkeypatch):
    monkeypatch.setenv("CI", ci)
    (tmp_path / "allowed.toml").write_text(ALLOWED)
    report = SimpleNamespace(skipped=True, outcome="skipped", longrepr=said)
    fail_unless_allowed(report, name, tmp_path / "allowed.toml")
    assert report.outcome == outcome


PROPERTIES = {"reference", "goldens", "sigmas", "tolerance", "error_over_tolerance"}


@pytest.mark.parametrize(
    ("test", "reference", "plugin"),
    [
        ("test_goldens.py::test_golden[values/retrace[terminal_last]]", "recorded original 9059a29", "xdist.plugin"),
        ("test_live.py::test_live[ops/kl]", "(", "_hypothesis_pytestplugin"),
    ],
    ids=["golden_in_a_worker", "live"],
)
def test_junit_has_sigmas_tolerance_goldens_and_reference(test, reference, plugin, tmp_path):
    if "live" in test:
        pytest.importorskip("jax")
    file, workers = tmp_path / "junit.xml", ["-n", "1"] if "xdist" in plugin else []
    options = ["-o", "addopts=--import-mode=importlib", "-p", plugin, *workers, "--junitxml", str(file)]
    done = run_pytest(ROOT, *options, "--parity-impl", "tests.toy:right", str(ROOT / "parity" / test))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {each.get("name"): each.get("value") for each in ElementTree.parse(file).iter("property")}
    assert found.keys() == PROPERTIES
    assert found["goldens"] == Store().manifest["digest"] and reference in found["reference"]
    assert 0 < float(found["error_over_tolerance"]) <= 1 and float(found["tolerance"]) > 0
