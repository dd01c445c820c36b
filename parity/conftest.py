"""How the tests of parity are spread over processes (`-n 2`): a layer's stay together, since they share programs."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Has pytest-xdist, where it is used, keep groups of tests together."""
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "loadgroup"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Makes a group of each layer's tests."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if "layer" in parameters:
            item.add_marker(pytest.mark.xdist_group(parameters["layer"]))
