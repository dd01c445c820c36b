"""`pytest parity/`: short names of options, and a layer's tests stay in one process, since they share programs."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from parity.live.strategies import HEAVY
from parity.plugin import OPTIONS

MOST = 4  # processes; each holds JAX, torch and its programs, and the heaviest layers bound the whole
LAYER = re.compile(r"\[(\w+/\w+)")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Gives the options their short names, which only a run of these tests has."""
    group = parser.getgroup("disco-parity")
    for name in OPTIONS.keys() - {"strict"}:  # pytest has one of its own
        group.addoption(f"--{name}", dest=f"parity_{name}", **{**OPTIONS[name], "help": f"--parity-{name}"})


def pytest_configure(config: pytest.Config) -> None:
    """Takes pytest's own `--strict` for the harness's as well."""
    config.option.parity_strict |= bool(getattr(config.option, "strict", False))


def layer_of(nodeid: str) -> str:
    """The layer that a test is about; the test itself, where it is about none."""
    found = LAYER.search(nodeid)
    return found[1] if found else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process for each core, up to a few; none besides pytest's own for a choice of tests, which ends sooner."""
    is_choice = bool(config.option.keyword) or any("::" in arg for arg in config.args)
    return 0 if is_choice or config.option.usepdb else min(os.cpu_count() or 1, MOST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker, puts the layers that take longest first, so that none is left alone with them at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: layer_of(item.nodeid) not in HEAVY)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Sends all tests of a layer to one process; pytest-xdist's own groups need a pytest before 9."""
    from xdist.scheduler import LoadScopeScheduling

    class ByLayer(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return layer_of(nodeid)

    config.option.loadscopereorder = False
    return ByLayer(config, log)
