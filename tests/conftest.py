"""In CI a test may be skipped only for a reason that is on the list."""

import os
import tomllib
from pathlib import Path

import pytest

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.toml")


def is_allowed(reason):
    return any(entry["says"] in reason for entry in tomllib.loads(ALLOWED_SKIPS.read_text())["skip"])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process more than there are cores: many tests wait for a command that they started or killed."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    is_here = ALLOWED_SKIPS.parent in item.path.parents
    if report.skipped and not hasattr(report, "wasxfail") and is_here and os.environ.get("CI"):
        reason = str(report.longrepr)
        if not is_allowed(reason):
            report.outcome = "failed"
            report.longrepr = f"{item.name} was skipped in CI, which {ALLOWED_SKIPS.name} does not allow: {reason}"
    return report
