"""The pytest plug-in: options of `pytest parity/`, what they load, and which skips are allowed.

It is registered as an entry point, so it is present in every pytest run of an environment that has disco-parity; it
does nothing there until a test of this package asks for something.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from parity.command_line import ExitCode
from parity.compare import Row
from parity.errors import CannotRun, FixtureError, WeightsMissing
from parity.files import read_tables
from parity.goldens import expected
from parity.goldens.check import disco103
from parity.goldens.store import Store
from parity.goldens.table import coverage, provenance, worst
from parity.implementation import IMPLEMENTATIONS, Implementation, load, on_device
from parity.live.comparison import NoLiveReference, live_reference
from parity.tolerance import PRECISIONS

HERE = Path(__file__).resolve().parent
ALLOWED_SKIPS = HERE / "allowed_skips.toml"
NOT_PROVIDED = "does not provide"
T = TypeVar("T")


# By name without `--parity-`. In `pytest parity/` the name alone will do: see parity/conftest.py.
OPTIONS: dict[str, dict[str, Any]] = {
    "impl": {"default": "port", "metavar": "NAME", "help": IMPLEMENTATIONS},
    "device": {
        "default": None,
        "metavar": "DEVICE",
        "help": "that an adapter of `parity.adapters` computes on, as cuda",
    },
    "expected": {"default": None, "metavar": "FILE", "help": "TOML file of known divergences"},
    "precision": {"default": None, "choices": list(PRECISIONS), "help": "the tolerance to hold it to"},
    "examples": {"type": int, "default": 0, "metavar": "N", "help": "Hypothesis examples for each layer"},
    "strict": {"action": "store_true", "help": "what is not provided or cannot run is a failure"},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the harness's options, under names that no other plug-in has."""
    group = parser.getgroup("disco-parity", "parity of an implementation of Disco with the original")
    for name, about in OPTIONS.items():
        group.addoption(f"--parity-{name}", dest=f"parity_{name}", **about)


def pytest_configure(config: pytest.Config) -> None:
    """A kept program that cannot be read is compiled, as if it were not there; that is nothing to fail for."""
    config.addinivalue_line("filterwarnings", "ignore:Error (reading|writing) persistent compilation cache entry")
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist see but a part of the tests
        config.pluginmanager.register(NothingComparedIsNotEqual())


class NothingComparedIsNotEqual:
    """Ends a run in which tests of this package ran, and none of them compared anything, with exit code 3."""

    has_run = has_compared = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Looks at what `pytest_runtest_makereport` noted, perhaps in another process."""
        self.has_run |= hasattr(report, "has_compared")
        self.has_compared |= getattr(report, "has_compared", False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Gives the exit code."""
        if session.exitstatus == 0 and self.has_run and not self.has_compared:
            session.exitstatus = ExitCode.NOTHING_COMPARED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Gives the reason."""
        if self.has_run and not self.has_compared:
            terminalreporter.write_line("parity: nothing was compared, which is no verdict.", red=True)


def require_layer(request: pytest.FixtureRequest, implementation: Implementation, layer: str) -> None:
    """Skips a test (or fails it, if strict) where the implementation does not provide a layer."""
    if layer not in implementation.layers:
        end_of(request)(f"{implementation.name} {NOT_PROVIDED} {layer}")


def end_of(request: pytest.FixtureRequest) -> Callable[[str], NoReturn]:
    """How a test ends that cannot run: it is skipped, or fails, if strict."""
    return pytest.fail if request.config.getoption("--parity-strict") else pytest.skip


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
    name, device = (request.config.getoption(f"--parity-{option}") for option in ("impl", "device"))
    return _or_exit(lambda: on_device(load(name), device))


NO_REFERENCE = "has no live reference"


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest, implementation: Implementation) -> Implementation:
    """The live reference: the original where it is installed, else the stand-in."""
    end = end_of(request)
    try:
        running = _or_exit(live_reference)
    except NoLiveReference as error:
        end(f"{implementation.name} {NO_REFERENCE} here. {error}")
    if running.name == implementation.name:
        end(f"{implementation.name} {NO_REFERENCE} here but itself, which would prove nothing.")
    cache = getattr(request.config, "cache", None)  # of pytest; `--cache-clear` empties it
    if cache is not None and hasattr(running, "keep_programs"):
        with contextlib.suppress(OSError):  # where nothing can be written, all is compiled each time
            running.keep_programs(cache.mkdir("disco-parity-programs"))
    return running


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
    return _or_exit(lambda: expected.load(request.config.getoption("--parity-expected")))


def record_comparisons(test: pytest.Item, store: Store, reference: str, rows: Sequence[Row]) -> None:
    """Gives a test the properties that JUnit's file shows: its worst comparison, the goldens and the reference."""
    test.user_properties += [("reference", reference), ("goldens", store.manifest["digest"])]
    if row := worst(rows):  # `record_property` would warn: this works in JUnit's default form all the same
        numbers = {"sigmas": row.sigmas, "tolerance": row.tolerance, "error_over_tolerance": row.ratio}
        test.user_properties += [(name, f"{number:.3g}") for name, number in numbers.items()]


def is_ours(item: pytest.Item) -> bool:
    """Whether a test belongs to this package."""
    return HERE in item.path.resolve().parents


def pytest_report_collectionfinish(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """Says what is compared with what, before the first test of this package runs."""
    if not any(is_ours(item) for item in items):
        return []
    store = _or_exit(_opened_store)
    implementation = _or_exit(lambda: load(config.getoption("--parity-impl")))
    try:
        disco103()
        weights = "Disco103 (sha256 verified), and seeded ones"
    except (WeightsMissing, FixtureError) as error:
        weights = f"seeded ones only: {error}"
    line = provenance(store, implementation)
    return [f"parity: {line}", f"parity: {coverage(implementation)}", f"live: {live_line()}", f"weights: {weights}"]


def live_line() -> str:
    """Which reference live checks use."""
    try:
        running = _or_exit(live_reference)
    except NoLiveReference as error:
        return f"not compared. {error}"
    return f"{running.name} ({running.description})"


def fail_unless_allowed(report: pytest.TestReport, name: str, allowed: Path) -> None:
    """Turns a skip into a failure, in CI, unless a file has a reason for it.

    Args:
        report: of the test.
        name: of the test.
        allowed: TOML with tables [[skip]]: `says`, part of what the skip says, or `test`, a pattern of names; `reason`.
    """
    if not report.skipped or hasattr(report, "wasxfail") or not os.environ.get("CI"):
        return
    said = str(report.longrepr)
    entries = read_tables(allowed, "skip")
    if not any(entry["says"] in said if "says" in entry else fnmatchcase(name, entry["test"]) for entry in entries):
        report.outcome = "failed"
        report.longrepr = f"{name} was skipped in CI, which {allowed.name} does not allow: {said}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip that is not on the list into a failure, in CI."""
    report = yield
    if is_ours(item):
        is_comparison = report.when == "call" and "implementation" in getattr(item, "fixturenames", ())
        report.has_compared = is_comparison and not report.skipped  # type: ignore[attr-defined]
        fail_unless_allowed(report, item.name, ALLOWED_SKIPS)
    return report
