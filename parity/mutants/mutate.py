"""Mutates a package without touching it: a second copy is imported from source rewritten in memory.

Every module of the package is imported again, so that whatever it took from another one at import time (a function
under another name, a default argument, a table made from it) comes from the changed copy too. The modules that were
there before are the same objects afterwards, unchanged.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from parity.errors import CannotRun
from parity.implementation import Implementation

_LOCK = threading.RLock()


@dataclass(frozen=True)
class Edit:
    """One replacement in a module's source; `old` stands there exactly once."""

    module: str
    old: str
    new: str


def rewritten(source: str, edits: Sequence[Edit]) -> str:
    """The source after the edits; CannotRun where one does not fit."""
    for edit in edits:
        count = source.count(edit.old)
        if count != 1:
            raise CannotRun(f"{edit.module} holds the text {edit.old!r} {count} times; it must stand there once.")
        source = source.replace(edit.old, edit.new)
    return source


@lru_cache(maxsize=512)
def _compiled(source: str, path: str) -> CodeType:
    """A module's code; most modules of a copy are unchanged, and compiling them again would take most of the time."""
    return compile(source, path, "exec", dont_inherit=True)


class _Loader(SourceFileLoader):
    """Reads a module's file and compiles what the edits make of it; keeps nothing on disk."""

    edits: Sequence[Edit] = ()

    def get_code(self, fullname: str) -> CodeType:
        """The code of the changed module."""
        source = self.get_data(self.path).decode("utf-8")
        return _compiled(rewritten(source, self.edits), self.path)


class _Finder:
    """Finds the modules of some packages as usual, and loads them with their edits."""

    def __init__(self, roots: set[str], edits: Sequence[Edit]):
        self.roots, self.edits = roots, edits

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name.partition(".")[0] not in self.roots:
            return None
        spec: ModuleSpec | None = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            loader = _Loader(spec.loader.name, spec.loader.path)
            loader.edits = [edit for edit in self.edits if edit.module == name]
            spec.loader = loader
        return spec


def _loaded(roots: set[str]) -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in roots}


@contextmanager
def edited(*edits: Edit) -> Iterator[None]:
    """Inside, an import of the edited packages gives a mutated copy; afterwards all is as before.

    Import inside what shall be mutated: earlier imports keep the unchanged modules. Each edited module is imported
    on entry, so that an edit that does not fit is an error at once.
    """
    roots = {edit.module.partition(".")[0] for edit in edits}
    finder = _Finder(roots, edits)
    with _LOCK:
        before = _loaded(roots)
        for name in before:
            del sys.modules[name]
        sys.meta_path.insert(0, finder)
        try:
            for module in {edit.module: None for edit in edits}:
                importlib.import_module(module)
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in _loaded(roots):
                del sys.modules[name]
            sys.modules.update(before)


def load_edited(target: str, edits: Sequence[Edit]) -> Implementation:
    """The implementation `package.module:attribute`, imported with the edits."""
    module, _, attribute = target.partition(":")
    try:
        with edited(*edits):
            implementation: Implementation = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise CannotRun(f"Mutants are copies of the port, which needs {error.name!r}; it is not installed.") from None
    return implementation
