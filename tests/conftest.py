"""In CI a test may be skipped only for a reason that is on the list."""

import os
from pathlib import Path

import pytest

from parity.plugin import fail_unless_allowed

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.toml")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process more than there are cores: many tests wait for a command that they started or killed."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if ALLOWED_SKIPS.parent in item.path.parents:
        fail_unless_allowed(report, item.name, ALLOWED_SKIPS)
    return report
