"""What others install: the wheel holds the data, and no top-level name besides the four packages."""

import re
import shlex
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.helpers import ROOT, extras_alone, run_without

PACKAGES = ("parity", "port", "reference", "reports")


def names(suffix, folder):
    return {
        path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob(f"*{suffix}") if "out" not in path.parts
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The wheel, which is built of a copy: setuptools leaves folders where it builds."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    files = ["pyproject.toml", "README.md", "LICENSE", "fixtures", *PACKAGES]
    subprocess.run(["cp", "-a", *(str(ROOT / name) for name in files), str(copy)], check=True)
    pip = [sys.executable, "-m", "pip", "wheel", str(copy), "--no-deps", "--no-build-isolation", "-q", "-w", str(out)]
    subprocess.run(pip, check=True, capture_output=True)
    return zipfile.ZipFile(next(out.glob("*.whl")))


@pytest.fixture(scope="module")
def wheel(archive):
    """Names in the wheel."""
    return set(archive.namelist())


def test_the_wheel_installs_four_packages_and_no_fixtures_beside_them(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_says_that_it_is_typed(wheel):
    assert {f"{package}/py.typed" for package in PACKAGES} <= wheel


@pytest.mark.parametrize(
    ("suffix", "folder", "at_least"),
    [
        (".py", "port", 60),
        (".toml", "port/adapter", 15),
        (".npz", "port/bundled", 1),
        (".json", "port/bundled", 1),
        (".j2", "reports/page/templates", 8),
        (".toml", "parity", 1),
        (".txt", "parity/templates", 4),
        (".toml", "parity/templates", 1),
        (".c", "parity/examples", 1),
        (".svg", "parity/ci", 1),
    ],
)
def test_the_wheel_has_every_file_of_a_kind(suffix, folder, at_least, wheel):
    expected = names(suffix, folder)
    assert len(expected) >= at_least and expected <= wheel


def test_the_wheel_has_the_goldens(wheel):
    expected = {
        f"parity/{name}"
        for suffix in (".safetensors.gz", ".csv", "manifest.json")
        for name in names(suffix, "fixtures")
    }
    assert len(expected) > 100 and expected <= wheel


INSTALLED = """
import os
sys.path.insert(0, sys.argv.pop(1))
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plug-ins of the extras have entry points here
import parity, pytest
assert parity.__file__.startswith(sys.path[0])
code = pytest.main(["-p", "parity.plugin", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def run_installed(archive, tmp_path_factory):
    """Runs pytest in another folder, where the wheel is installed and no extra is."""
    site, elsewhere = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("elsewhere")
    archive.extractall(site)
    shutil.copy(ROOT / "tests" / "toy.py", elsewhere / "my_adapter.py")
    (elsewhere / "known.toml").write_text("divergence = []\n")
    blocked = extras_alone() - set(PACKAGES)
    assert {"jax", "torch", "xdist"} <= blocked
    return lambda *arguments: run_without(blocked, INSTALLED, str(site), *arguments, cwd=elsewhere)


@pytest.mark.parametrize(("attribute", "code"), [("right", 0), ("implementation", 1)])
def test_the_gate_runs_from_a_wheel_in_another_folder(attribute, code, run_installed):
    chosen = ["--pyargs", "parity", "-q", "-k", "test_golden and values/retrace"]
    done = run_installed(*chosen, "--parity-impl", f"my_adapter:{attribute}")
    assert done.returncode == code, done.stdout + done.stderr
    assert "toy provides 5 of 77 layers" in done.stdout


def documented_commands():
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "parity/README.md")]
    commands = re.findall(r"^[ \-a-z:]*pytest (--pyargs .*?)\s*(?:#.*)?$", "\n".join(texts), re.MULTILINE)
    return sorted(
        {command.replace("{module}", "my_adapter").replace(" standin", " my_adapter:right") for command in commands}
    )


@pytest.mark.parametrize("command", documented_commands())
def test_documented_commands_fit_an_installation_without_extras(command, run_installed):
    done = run_installed("-qq", "--collect-only", *shlex.split(command), "--parity-impl", "my_adapter:right")
    assert done.returncode == 0, done.stdout + done.stderr


def test_commands_for_an_installation_are_documented():
    assert len(documented_commands()) >= 3
