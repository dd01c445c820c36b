"""The pytest plug-in: options of `pytest parity/`, what they load, and which skips are allowed.

It is registered as an entry point, so it is present in every pytest run of an environment that has disco-parity; it
does nothing there until a test of this package asks for something.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable, Generator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import pytest

from parity.errors import CannotRun, FixtureError, WeightsMissing
from parity.goldens import expected
from parity.goldens.check import disco103
from parity.goldens.store import Store
from parity.goldens.table import coverage, provenance
from parity.implementation import Implementation, load
from parity.live.comparison import NoLiveReference, live_reference
from parity.tolerance import PRECISIONS

HERE = Path(__file__).resolve().parent
ALLOWED_SKIPS = HERE / "allowed_skips.toml"
NOT_PROVIDED = "does not provide"
T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the harness's options."""
    group = parser.getgroup("disco-parity", "parity of an implementation of Disco with the original")
    group.addoption(
        "--impl", default="port", metavar="NAME", help="port, original, standin or package.module:attribute"
    )
    group.addoption("--expected", default=None, metavar="FILE", help="TOML file of known divergences")
    group.addoption("--precision", default=None, choices=list(PRECISIONS), help="the tolerance to hold it to")
    group.addoption("--examples", type=int, default=0, metavar="N", help="Hypothesis examples for each layer")
    # pytest has a `--strict` of its own by now; it means here as well that layers not provided are failures.
    with contextlib.suppress(ValueError):
        group.addoption("--strict", action="store_true", help="layers that are not provided are failures")


def pytest_configure(config: pytest.Config) -> None:
    """A kept program that cannot be read is compiled, as if it were not there; that is nothing to fail for."""
    config.addinivalue_line("filterwarnings", "ignore:Error (reading|writing) persistent compilation cache entry")


def _or_exit(make: Callable[[], T]) -> T:
    try:
        return make()
    except NoLiveReference:
        raise
    except (CannotRun, FixtureError) as error:
        pytest.exit(f"parity: {error}", returncode=2)


@pytest.fixture(scope="session")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """The implementation under test."""
    return _or_exit(lambda: load(request.config.getoption("--impl")))


NO_REFERENCE = "has no live reference"


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest, implementation: Implementation) -> Implementation:
    """What speaks live: the original where it is installed, else the stand-in."""
    end = pytest.fail if request.config.getoption("--strict") else pytest.skip
    try:
        speaking = _or_exit(live_reference)
    except NoLiveReference as error:
        end(f"{implementation.name} {NO_REFERENCE} here. {error}")
    if speaking.name == implementation.name:
        end(f"{implementation.name} {NO_REFERENCE} here but itself, which would prove nothing.")
    cache = getattr(request.config, "cache", None)  # of pytest; `--cache-clear` empties it
    if cache is not None and hasattr(speaking, "keep_programs"):
        with contextlib.suppress(OSError):  # where nothing can be written, all is compiled each time
            speaking.keep_programs(cache.mkdir("disco-parity-programs"))
    return speaking


@pytest.fixture(scope="session")
def store() -> Store:
    """The goldens."""
    return _or_exit(_opened_store)


def _opened_store() -> Store:
    opened = Store()
    _ = opened.manifest
    return opened


@pytest.fixture(scope="session")
def divergences(request: pytest.FixtureRequest) -> list[expected.Divergence]:
    """The known divergences."""
    return _or_exit(lambda: expected.load(request.config.getoption("--expected")))


def is_ours(item: pytest.Item) -> bool:
    """Whether a test belongs to this package."""
    return HERE in item.path.resolve().parents


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Says what is compared with what, before the first test of this package runs."""
    if not any(is_ours(item) for item in items):
        return []
    store = _or_exit(_opened_store)
    implementation = _or_exit(lambda: load(config.getoption("--impl")))
    try:
        disco103()
        weights = "Disco103 (sha256 verified), and seeded ones"
    except (WeightsMissing, FixtureError) as error:
        weights = f"seeded ones only: {error}"
    line = provenance(store, implementation.name, implementation.description)
    return [f"parity: {line}", f"parity: {coverage(implementation)}", f"live: {live_line()}", f"weights: {weights}"]


def live_line() -> str:
    """Says which reference speaks live."""
    try:
        speaking = _or_exit(live_reference)
    except NoLiveReference as error:
        return f"not compared. {error}"
    return f"{speaking.name} ({speaking.description})"


def allowed_skips() -> dict[str, str]:
    """Patterns of test names that may be skipped in CI, each with its reason."""
    return {entry["test"]: entry["reason"] for entry in tomllib.loads(ALLOWED_SKIPS.read_text())["skip"]}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip that is not on the list into a failure, in CI."""
    report = yield
    if report.skipped and is_ours(item) and os.environ.get("CI"):
        reason = str(report.longrepr)
        is_named = any(part in reason for part in (NOT_PROVIDED, NO_REFERENCE))
        is_allowed = is_named or any(fnmatchcase(item.name, pattern) for pattern in allowed_skips())
        if not is_allowed:
            report.outcome = "failed"
            report.longrepr = f"{item.name} was skipped in CI, which {ALLOWED_SKIPS.name} does not allow: {reason}"
    return report
