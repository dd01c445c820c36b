"""The lock is what is installed, and what it declares fits the project's ranges."""

import importlib.metadata
import pathlib
import tomllib

import pytest
from packaging.requirements import Requirement

from reference import doctor, identity

ROOT = pathlib.Path(__file__).resolve().parents[1]
PINS = doctor.read_lock(ROOT / "requirements.lock")
EXTRAS = ("port", "report", "jax", "original", "train", "dev")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _requirements() -> list[Requirement]:
    """All that the project asks for, but for the audited port, which is not in the lock."""
    extras = PROJECT["optional-dependencies"]
    lines = {*PROJECT["dependencies"], *(line for name in EXTRAS for line in extras[name])}
    return [Requirement(line) for line in sorted(lines)]


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def test_every_pin_is_what_is_installed():
    assert len(PINS) > 60
    assert doctor.compare_versions(PINS) == ()


def test_another_version_and_an_absent_package_are_noticed():
    found = doctor.compare_versions({"numpy": "1.0", "no-such-package": "2.0"})
    installed = importlib.metadata.version("numpy")
    assert found == (
        doctor.Mismatch("no-such-package", "2.0", None),
        doctor.Mismatch("numpy", "1.0", installed),
    )


def test_pins_are_exact_and_name_no_index():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all("==" in line and "+" not in line and "://" not in line and " " not in line for line in lines)


@pytest.mark.parametrize("requirement", _requirements(), ids=str)
def test_declared_ranges_admit_the_lock(requirement):
    if _normal(requirement.name) in ("disco-rl", "disco-parity"):
        assert requirement.url or requirement.extras
        return
    locked = {_normal(name): version for name, version in PINS.items()}
    assert requirement.specifier.contains(locked[_normal(requirement.name)], prereleases=True)


def test_the_lock_leaves_out_the_original_and_the_audited_port():
    assert not {_normal(name) for name in PINS} & {"disco-rl", "disco-torch", "disco-parity"}


def test_dev_brings_every_extra_that_the_lock_has():
    dev = [Requirement(line) for line in PROJECT["optional-dependencies"]["dev"]]
    own = next(requirement for requirement in dev if requirement.name == "disco-parity")
    assert set(EXTRAS) - {"port", "original", "dev"} == own.extras  # `report` brings `port`


def test_checking_goldens_installs_no_framework():
    core = {_normal(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert core == {"hypothesis", "numpy", "pooch", "pytest", "rich", "safetensors"}


def test_the_extra_names_the_commit_that_the_table_was_made_of():
    table = identity.load_table()
    assert f"disco_rl @ git+{table.repository}@{table.commit}" in PROJECT["optional-dependencies"]["original"]
