"""Which layers a mutant can change: those that enter a mutated function.

A layer that never enters a mutated function answers bit for bit the same, so it need not be compared again. Which
functions a layer enters is recorded once, on the unchanged port, over the same cases that are compared.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
import threading
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from parity.errors import CannotRun
from parity.goldens.check import load
from parity.goldens.judge import run, vjp
from parity.goldens.store import Golden, Store
from parity.implementation import Implementation
from parity.mutants.mutate import Edit

Entered = frozenset[tuple[str, int]]  # file and first line of each function


class Span(NamedTuple):
    """Lines of a function, first and last included."""

    file: str
    first: int
    last: int


def source_digest(package: str = "port") -> str:
    """One digest over a package's sources: what a layer enters holds for these alone."""
    files = sorted(_source_of(package).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def stored_cases(store: Store, layer: str) -> list[str]:
    """The small cases, whose inputs are stored."""
    return [case for case in store.cases(layer) if store.entry(layer, case)["stored"]]


def stored_goldens(store: Store, layer: str) -> list[Golden]:
    """The goldens of the small cases."""
    return [load(store, layer, case) for case in stored_cases(store, layer)]


def entered(store: Store, implementation: Implementation, layer: str, package: str = "port") -> Entered:
    """The functions of a package that a layer enters on its stored cases, and once backwards; in its threads too."""
    folder, functions = str(_source_of(package).parent), set[tuple[str, int]]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            functions.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    goldens = stored_goldens(store, layer)
    backwards = next((golden for golden in goldens if golden.vjps), None)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        for golden in goldens:
            run(implementation, golden)
        if backwards:
            vjp(implementation, backwards)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return frozenset(functions)


@lru_cache(maxsize=128)
def _source_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise CannotRun(f"Module {module!r} has no source here.")
    return Path(spec.origin)


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def _functions(node: ast.AST) -> list[Function]:
    """The outermost functions below a node."""
    outermost: list[Function] = []
    for child in ast.iter_child_nodes(node):
        outermost += [child] if isinstance(child, Function) else _functions(child)
    return outermost


def _first_line(function: Function) -> int:
    decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
    return min([function.lineno, *(decorator.lineno for decorator in decorators)])


def _names(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


@lru_cache(maxsize=4096)
def spans(edit: Edit) -> tuple[Span, ...] | None:
    """The functions that an edit changes; None if unknown.

    An edit of a constant changes the functions of its module that name it, unless another module names it too.
    """
    path = _source_of(edit.module)
    source = path.read_text(encoding="utf-8")
    if edit.old not in source:
        return None
    start = source.index(edit.old)
    first = source.count("\n", 0, start) + 1
    last = first + edit.old.rstrip("\n").count("\n")
    tree = ast.parse(source)
    functions = _functions(tree)
    around = [f for f in functions if _first_line(f) <= first and last <= (f.end_lineno or f.lineno)]
    if not around:
        around = _readers(tree, functions, first, last, path)
    return tuple(Span(str(path), _first_line(f), f.end_lineno or f.lineno) for f in around) or None


def _readers(tree: ast.Module, functions: Sequence[Function], first: int, last: int, path: Path) -> list[Function]:
    """Functions that name the module-level constant that stands in these lines; none if it is not that simple."""
    assigned = [
        (node, {target.id for target in node.targets if isinstance(target, ast.Name)})
        for node in tree.body
        if isinstance(node, ast.Assign)
    ]
    edited = [names for node, names in assigned if node.lineno <= last and first <= (node.end_lineno or node.lineno)]
    constants = set[str]().union(*edited)
    others = [other.read_text(encoding="utf-8") for other in path.parent.rglob("*.py") if other != path]
    elsewhere = any(re.search(rf"\b{name}\b", text) for name in constants for text in others)
    readers = [f for f in functions if constants & _names(f)]
    derived = any(constants & _names(node) and not constants & names for node, names in assigned)
    return [] if elsewhere or derived else readers


def is_reached(edits: Collection[Edit], by: Entered) -> bool:
    """Whether a layer that enters these functions can be changed by any of the edits.

    An edit reaches it through a function that it enters, or through one around that. An edit of which the functions
    are unknown may reach every layer.
    """
    changed = [spans(edit) for edit in edits]
    return None in changed or any(
        file == span.file and span.first <= line <= span.last
        for places in changed
        for span in places or ()
        for file, line in by
    )
