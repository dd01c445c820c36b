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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from parity import bridge
from parity.errors import CannotRun, in_words
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
PACKAGE_HINT = (
    f" Install its package into the environment of {sys.executable}, for example with `python -m pip install`."
)
LAYERS_AND_GROUPS = (*REGISTRY, *dict.fromkeys(name.partition("/")[0] for name in REGISTRY))


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
    if hint := path_hint(module_name, attribute):
        raise CannotRun(hint)
    if not attribute:
        names = ", ".join(sorted(KNOWN))
        own = "package.module:name or cmd:./program"
        raise CannotRun(f"No implementation is called {name!r}. Known: {names}; or your own as {own}.")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the command `pytest` does not look there by itself
    try:
        with contained():
            module = importlib.import_module(module_name)
        if not hasattr(module, attribute):
            like = [f"{module_name}:{key}" for key, value in vars(module).items() if not lacking(value)]
            raise CannotRun(f"Module {module_name} has no {attribute!r}.{f' Did you mean {like[0]}?' if like else ''}")
        return _checked(getattr(module, attribute), name)
    except (CannotRun, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        if name not in KNOWN and f"{module_name}.".startswith(f"{error.name}."):
            raise CannotRun(f"There is no module {module_name!r}, neither installed nor in {os.getcwd()}.") from None
        hint = next((hint for known, hint in HINTS.items() if target == KNOWN[known]), PACKAGE_HINT)
        raise CannotRun(f"Implementation {name!r} needs the module {error.name!r}, not installed here.{hint}") from None
    except BaseException as error:  # SystemExit, too: a module that ends the process has shown nothing
        raise CannotRun(f"Importing {module_name} failed with {in_words(error)}") from error


@contextmanager
def contained() -> Iterator[None]:
    """What foreign code does to the process ends with the block: NumPy's error state, and an end by `os._exit`."""
    owner, end = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() == owner:
            raise SystemExit(f"os._exit({status})")
        end(status)  # of a process that was forked in the block

    os._exit = refuse
    try:
        with np.errstate():
            yield
    finally:
        os._exit = end


def on_device(implementation: Implementation, device: str | None) -> Implementation:
    """The implementation, set to compute on a device where one is named."""
    if device:
        if not hasattr(implementation, "device"):
            raise CannotRun(f"{implementation.name} has no `device` that could be set; its adapter chooses it.")
        implementation.device = device
    return implementation


def path_hint(module_name: str, attribute: str) -> str:
    """What to write where the name of a file or folder stands in the place of a module's; empty where none does."""
    path = Path(module_name)
    place = f"from {path.parent}, --impl " if path.is_absolute() or ".." in path.parts else "--impl "
    dotted = path.stem if place != "--impl " else ".".join([*path.parts[:-1], path.stem])
    name = attribute or "implementation"
    if path.suffix == ".py":
        return f"{module_name} is a file; name its module, without .py: {place}{dotted}:{name}"
    if not path.is_dir() or (attribute and path.name == module_name and (path / "__init__.py").exists()):
        return ""
    modules = [] if (path / "__init__.py").exists() else sorted(file.stem for file in path.glob("*.py"))
    return f"{module_name} is a folder; name a module: {place}{'.'.join([dotted, *modules[:1]]).strip('.')}:{name}"


def lacking(found: object) -> list[str]:
    """The parts of an implementation that an object does not have."""
    parts = ("name", "description", "layers", "run")
    return [part for part in parts if isinstance(found, type) or not hasattr(found, part)]


def _checked(implementation: Implementation, name: str) -> Implementation:
    """Refuses an object that lacks a part of the contract, or that names a layer which does not exist."""
    if isinstance(implementation, type):
        instance = f"implementation = {implementation.__name__}()"
        raise CannotRun(f"{name} is a class; put `{instance}` into its module and name the instance.")
    if parts := lacking(implementation):
        raise CannotRun(f"{name} is no implementation: it has no `{parts[0]}` (`python -m parity new` writes one).")
    for part in ("name", "description"):
        if not isinstance(getattr(implementation, part), str):
            raise CannotRun(f"{name} is no implementation: its `{part}` is no text.")
    optional = getattr(implementation, "optional_outputs", {})
    if not isinstance(optional, Mapping):
        raise CannotRun(f"{name} has {type(optional).__name__} as `optional_outputs`; give a dict of lists by layer.")
    lists = {
        "layers": implementation.layers,
        **{f"optional_outputs[{layer!r}]": names for layer, names in optional.items()},
    }
    for where, names in lists.items():
        if not _is_list_of_names(names):
            raise CannotRun(f"{name} has {type(names).__name__} as `{where}`; give a list, set or dict of names.")
    for layer in (*implementation.layers, *optional):
        if layer not in REGISTRY:
            raise CannotRun(f"{name} provides {layer!r}, and no layer is called that. {did_you_mean(layer)}")
    return implementation


def _is_list_of_names(names: Any) -> bool:
    """Whether names can be asked for again and again: a generator is empty the second time, a text has letters."""
    return isinstance(names, Collection) and not isinstance(names, str) and all(isinstance(n, str) for n in names)


def did_you_mean(name: str, known: Collection[str] = LAYERS_AND_GROUPS) -> str:
    """A hint for a misspelt name, of a layer unless others are given."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(near)}?" if near else "`python -m parity list LAYER` shows them all."
