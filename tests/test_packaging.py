"""What others install: the wheel holds the data, and no top-level name besides the four packages."""

import subprocess
import sys
import zipfile

import pytest

from tests.helpers import ROOT

PACKAGES = ("parity", "port", "reference", "reports")


def names(suffix, folder):
    return {
        path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob(f"*{suffix}") if "out" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Names in the wheel, which is built of a copy: setuptools leaves folders where it builds."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    files = ["pyproject.toml", "README.md", "LICENSE", "fixtures", *PACKAGES]
    subprocess.run(["cp", "-a", *(str(ROOT / name) for name in files), str(copy)], check=True)
    pip = [sys.executable, "-m", "pip", "wheel", str(copy), "--no-deps", "--no-build-isolation", "-q", "-w", str(out)]
    subprocess.run(pip, check=True, capture_output=True)
    return set(zipfile.ZipFile(next(out.glob("*.whl"))).namelist())


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
