"""Where a docstring of the port says `Reference: file::symbol`, that symbol exists."""

import ast
import importlib.util
import pathlib
import re

import pytest

from reference.identity import load_table

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATTERN = re.compile(r"Reference: (\S+)::(\S+)")


def references():
    found = set()
    for path in sorted((ROOT / "port").rglob("*.py")):
        for file, symbol in PATTERN.findall(path.read_text()):
            found.add((file, symbol))
    return sorted(found)


def symbols(path):
    """Names of a module's functions, classes, methods and assignments."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id for t in targets if isinstance(t, ast.Name)}
        elif hasattr(node, "name"):
            names.add(node.name)
            inner = node.body if isinstance(node, ast.ClassDef) else []
            names |= {f"{node.name}.{sub.name}" for sub in inner if hasattr(sub, "name")}
    return names


def test_there_are_references():
    assert len(references()) >= 40


@pytest.mark.parametrize(("file", "symbol"), references())
def test_the_symbol_exists(file, symbol):
    package, _, rest = file.partition("/")
    if package == "disco_rl":
        assert rest in load_table().files
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed; `make original` brings disco_rl")
    path = pathlib.Path(spec.submodule_search_locations[0]) / rest
    assert path.is_file(), f"{file} does not exist"
    assert symbol in symbols(path)
