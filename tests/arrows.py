"""The graph of who uses whom, read from sources: imports, names of modules in strings, and paths into folders.

It takes sources as a dict from module to text, so that a test can add an arrow.
"""

import ast
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

FOLDERS = ("port", "parity", "reference", "reports", "tests", "fixtures")
_ANY = "|".join(FOLDERS)
NAME = re.compile(rf"({_ANY})(\.\w+)+(:[\w.]+)?")  # "port.adapter" and "port.adapter:implementation"
HEAD = re.compile(rf"({_ANY})\.[\w.]*")  # what an f-string begins with
PATH = re.compile(rf"({_ANY})/([\w.-]+/?)*")
PARTS = {"joinpath", "Path", "PurePath"}  # functions whose arguments are parts of a path
Graph = dict[str, set[str]]


def read_sources(root: Path, folder: str) -> dict[str, str]:
    """The text of each module of a folder, by its dotted name; a package's ends in `.__init__`."""
    files = sorted((root / folder).rglob("*.py"))
    named = {".".join(path.relative_to(root).with_suffix("").parts): path for path in files if "out" not in path.parts}
    return {name: path.read_text(encoding="utf-8") for name, path in named.items()}


def graph(sources: dict[str, str], by_name: bool = True) -> Graph:
    """What each module uses: modules of `sources` where there is one of that name, else full names.

    Args:
        sources: text by module, as `read_sources` gives it.
        by_name: whether a name in a string counts.
    """
    known = {name.removesuffix(".__init__") for name in sources}
    arrows: Graph = {}
    for module, text in sources.items():
        names = _names(module.rpartition(".")[0], text, by_name)
        me = module.removesuffix(".__init__")
        arrows[me] = {_module_of(name, known) for name in names} - {me}
    return arrows


@cache
def _names(package: str, text: str, by_name: bool) -> tuple[str, ...]:
    tree = ast.parse(text)
    return (*imported(tree, package), *(named(tree) if by_name else ()))


def _module_of(name: str, known: Collection[str]) -> str:
    """The longest beginning of a name that is a module; the name itself where none is."""
    parts = name.split(".")
    begins = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((begin for begin in begins if begin in known), name)


def imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Full names of what is imported, wherever in the module; `from a import b` gives `a.b`.

    Args:
        tree: of the module.
        package: what its relative imports begin from.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            start = parts[: len(parts) - node.level + 1] if node.level else []
            yield from (".".join([*start, *filter(None, [node.module]), alias.name]) for alias in node.names)


def named(tree: ast.Module) -> Iterator[str]:
    """Full names of modules and folders that stand in strings: to import, to run, or to open."""
    prose = set(_prose(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in prose:
            yield from _name_in(node)
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            head = str(node.values[0].value)
            yield from [head.rstrip(".")] if HEAD.fullmatch(head) else _path_in(head)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            yield from _folders([node.right])
        elif isinstance(node, ast.List | ast.Tuple):
            yield from _folders(_after_m(node.elts))
        elif isinstance(node, ast.Call):
            yield from _named_in_call(node)


def _prose(tree: ast.Module) -> Iterator[int]:
    """Strings that are statements, and parts of f-strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            yield id(node.value)
        elif isinstance(node, ast.JoinedStr):
            yield from map(id, node.values)


def _name_in(node: ast.Constant) -> Iterator[str]:
    if isinstance(node.value, str):
        if NAME.fullmatch(node.value):
            yield node.value.partition(":")[0]
        yield from _path_in(node.value)


def _path_in(text: str) -> Iterator[str]:
    if PATH.fullmatch(text):
        yield text.strip("/").removesuffix(".py").replace("/", ".")


def _named_in_call(node: ast.Call) -> Iterator[str]:
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if function in ("import_module", "__import__"):
        yield from (str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant))
    yield from _folders(node.args if function in PARTS else _after_m(node.args))


def _folders(nodes: Iterable[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value in FOLDERS:
            yield str(node.value)


def _after_m(nodes: Sequence[ast.expr]) -> list[ast.expr]:
    """What follows "-m" in the arguments of a command."""
    return [
        after
        for before, after in itertools.pairwise(nodes)
        if isinstance(before, ast.Constant) and before.value == "-m"
    ]


def room(module: str) -> str:
    """The package of a module in its folder, or the module where it is in none: `port.networks`, `port.agent`."""
    return ".".join(module.split(".")[:2])


def between_rooms(arrows: Graph, folder: str) -> Graph:
    """The arrows of one folder, from room to room."""
    rooms: Graph = {}
    for module, uses in arrows.items():
        if module.split(".")[0] == folder:
            inside = {room(used) for used in uses if used.split(".")[0] == folder}
            rooms.setdefault(room(module), set()).update(inside - {room(module)})
    return rooms


def cycles(arrows: Graph) -> list[set[str]]:
    """The strongly connected components that have more than one node."""
    reach = {node: _reachable(node, arrows) for node in arrows}
    found = {frozenset(other for other in reach[node] if node in reach.get(other, ())) for node in arrows}
    return sorted((set(component) for component in found if len(component) > 1), key=sorted)


def _reachable(start: str, arrows: Graph) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        new = arrows.get(ahead.pop(), set()) - seen
        seen |= new
        ahead.extend(new)
    return seen


def upward(arrows: Graph, levels: Sequence[str]) -> dict[str, set[str]]:
    """What each room uses that does not stand below it; a room without a level, and one that is gone, too.

    Args:
        arrows: from room to room of one folder.
        levels: names of rooms without their folder, lowest level first; `.` is the folder's own `__init__`.
    """
    height = {name: i for i, names in enumerate(levels) for name in names.split()}
    here = {name: name.partition(".")[2] or "." for name in arrows}
    wrong = {
        name: {used for used in uses if height.get(here[used], len(levels)) >= height.get(here[name], -1)}
        for name, uses in arrows.items()
    }
    unknown = {name: {"no level"} for name in arrows if here[name] not in height}
    gone = {name: {"no such room"} for name in height if name not in here.values()}
    return {name: uses for name, uses in (wrong | unknown | gone).items() if uses}
