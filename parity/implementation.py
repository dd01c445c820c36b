"""How an implementation of Disco is plugged in: by name, and by nothing else than NumPy arrays.

An implementation is any object with a `name`, the names of its `layers`, and two methods:

    run(layer, inputs, settings, dtype) -> outputs
    vjp(layer, inputs, settings, dtype, cotangents, wrt) -> gradients

Inputs, outputs, cotangents and gradients are flat dicts of NumPy arrays; `settings` holds sizes and static numbers;
`dtype` is `"float64"` or `"float32"` and says in which precision to compute and answer.

What an implementation does not have it may declare; that is listed, and fails only with `--strict`: layers are left
out of `layers`; `optional_outputs`, by layer, are patterns of outputs that may be missing; and
`unsupported(layer, settings)` says why a case cannot run, or returns an empty string. A method that raises
NotImplementedError for a layer has no VJPs of it.

Two more methods are called where they are there: `run_and_vjp(layer, inputs, settings, dtype, cotangents, wrt)`, both
at once, and `keep_programs(folder)`, which may keep there what is compiled, for the next run. A live reference also has
`rounding(layer, inputs, settings, cotangents, wrt, bits)`, how far rounding takes each number of its answer.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import Protocol

from parity import bridge
from parity.errors import CannotRun
from parity.layers import REGISTRY
from parity.layers.spec import Arrays, Settings

KNOWN = {
    "port": "port.adapter:implementation",
    "original": "reference.original:implementation",
    "standin": "reference.standin:implementation",
    "disco_torch": "reports.audit.disco_torch:implementation",
}


IMPLEMENTATIONS = 'port, original, standin, package.module:attribute or "cmd:PROGRAM"'
HINTS = {
    "port": " `pip install 'disco-parity[port]'` brings it.",
    "original": " Install the original with `make original`.",
    "standin": " `pip install 'disco-parity[jax]'` brings it.",
}


class Implementation(Protocol):
    """The whole contract."""

    name: str
    description: str

    @property
    def layers(self) -> Collection[str]:
        """Names of the layers provided."""

    def run(self, layer: str, inputs: Arrays, settings: Settings, dtype: str) -> Arrays:
        """The layer's outputs."""

    def vjp(
        self, layer: str, inputs: Arrays, settings: Settings, dtype: str, cotangents: Arrays, wrt: Sequence[str]
    ) -> Arrays:
        """The vector-Jacobian product with respect to the inputs named in `wrt`."""


def load(name: str) -> Implementation:
    """An implementation: a known name; `package.module:attribute`, from the current folder too; or `cmd:PROGRAM`."""
    if name.startswith(bridge.PREFIX):
        return _checked(bridge.Program(name.removeprefix(bridge.PREFIX)), name)
    target = KNOWN.get(name, name)
    module_name, _, attribute = target.partition(":")
    if not attribute:
        names = ", ".join(sorted(KNOWN))
        own = "package.module:name or cmd:./program"
        raise CannotRun(f"No implementation is called {name!r}. Known: {names}; or your own as {own}.")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the command `pytest` does not look there by itself
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        hint = HINTS.get(name, "")
        if error.name == module_name.partition(".")[0] and name not in KNOWN:
            raise CannotRun(f"There is no module {module_name!r}, neither installed nor in {os.getcwd()}.") from None
        raise CannotRun(f"Implementation {name!r} needs the module {error.name!r}, not installed here.{hint}") from None
    except Exception as error:
        raise CannotRun(f"Importing {module_name} failed with {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise CannotRun(f"Module {module_name} has no {attribute!r}.")
    return _checked(getattr(module, attribute), name)


def on_device(implementation: Implementation, device: str | None) -> Implementation:
    """The implementation, set to compute on a device where one is named."""
    if device:
        if not hasattr(implementation, "device"):
            raise CannotRun(f"{implementation.name} has no `device` that could be set; its adapter chooses it.")
        implementation.device = device
    return implementation


def _checked(implementation: Implementation, name: str) -> Implementation:
    """Refuses an object that lacks a part of the contract, or that names a layer which does not exist."""
    lacking = [part for part in ("name", "description", "layers", "run") if not hasattr(implementation, part)]
    if lacking:
        raise CannotRun(f"{name} is no implementation: it has no `{lacking[0]}` (`python -m parity new` writes one).")
    unknown = sorted(layer for layer in implementation.layers if layer not in REGISTRY)
    if unknown:
        raise CannotRun(f"{name} provides {unknown[0]!r}, and no layer is called that. {did_you_mean(unknown[0])}")
    return implementation


def did_you_mean(layer: str) -> str:
    """A hint for a misspelt name of a layer."""
    near = difflib.get_close_matches(layer, REGISTRY, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(near)}?" if near else "`python -m parity list` shows them all."
