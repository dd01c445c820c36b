"""`pytest parity/`: which implementation, what it is compared with, and which skips are allowed."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Generator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from parity.check import WeightsMissing, disco103
from parity.implementation import CannotRun, Implementation, load
from parity.store import FixtureError, Store
from parity.table import provenance

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.toml")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--impl", default="port", help="implementation to judge: port, original, or package.module:name")


def pytest_configure(config: pytest.Config) -> None:
    try:
        config.stash[IMPLEMENTATION] = load(config.getoption("--impl"))
        config.stash[STORE] = Store()
        _ = config.stash[STORE].manifest
    except (CannotRun, FixtureError) as error:
        pytest.exit(f"parity: {error}", returncode=2)


IMPLEMENTATION = pytest.StashKey[Implementation]()
STORE = pytest.StashKey[Store]()


def pytest_report_header(config: pytest.Config) -> list[str]:
    implementation = config.stash[IMPLEMENTATION]
    try:
        disco103()
        weights = "Disco103 (verified)"
    except (WeightsMissing, FixtureError) as error:
        weights = f"without Disco103: {error}"
    line = provenance(config.stash[STORE], implementation.name, implementation.description)
    return [f"parity: {line}", f"weights: {weights}"]


@pytest.fixture(scope="session")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return request.config.stash[IMPLEMENTATION]


@pytest.fixture(scope="session")
def store(request: pytest.FixtureRequest) -> Store:
    return request.config.stash[STORE]


def allowed_skips() -> dict[str, str]:
    """Patterns of test names that may be skipped in CI, each with its reason."""
    return {entry["test"]: entry["reason"] for entry in tomllib.loads(ALLOWED_SKIPS.read_text())["skip"]}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") and not any(fnmatchcase(item.name, p) for p in allowed_skips()):
        report.outcome = "failed"
        report.longrepr = f"{item.name} was skipped in CI, and {ALLOWED_SKIPS.name} does not allow that."
    return report
