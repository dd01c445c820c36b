"""How the tests of parity are spread over processes (`-n 2`): a layer's stay together, since they share programs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from parity.strategies import HEAVY

LAYER = re.compile(r"\[(\w+/\w+)")


def layer_of(nodeid: str) -> str:
    """The layer that a test is about; the test itself, where it is about none."""
    found = LAYER.search(nodeid)
    return found[1] if found else nodeid


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
