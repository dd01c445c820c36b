"""The tables of `port/SYMBOLS.md`: every public symbol of the original has a counterpart in the port, or a reason."""

import ast
import importlib
import importlib.util
import pathlib
import re

import pytest

from reference.identity import load_table

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^### `(\S+)`$")
ROW = re.compile(r"^\| `([\w.]+)` \| (.+?) \| *(.*?) *\|$")

# Functions and classes of the notebooks at the pinned commit; they are not part of the installed package.
NOTEBOOKS = {
    "colabs/eval.ipynb": {
        *("unflatten_params", "get_env", "unroll_cpu_actor", "unroll_jittable_actor", "accumulate_rewards"),
        *("SimpleReplayBuffer", "SimpleReplayBuffer.add", "SimpleReplayBuffer.sample"),
    },
    "colabs/meta_train.ipynb": {
        *("unflatten_params", "get_env", "unroll_jittable_actor", "MetaTrainState", "MetaTrainAgent"),
        *(f"MetaTrainAgent.{m}" for m in ("learner_step", "actor_step", "unroll_net", "init_state", "unroll_actor")),
        *("calculate_meta_gradient", "meta_update"),
    },
}


def read(text):
    """Returns {file: {symbol: (counterparts, reason)}}."""
    tables, current = {}, None
    for line in text.splitlines():
        if heading := HEADING.match(line):
            current = tables.setdefault(heading[1], {})
        elif current is not None and (row := ROW.match(line)):
            assert row[1] not in current, f"{row[1]} has two rows"
            current[row[1]] = (re.findall(r"`(port[\w.]*)`", row[2]), row[3])
        elif current is not None and line.startswith("| `"):
            raise AssertionError(f"not a row: {line}")
    return tables


TABLES = read((ROOT / "port" / "SYMBOLS.md").read_text(encoding="utf-8"))
ROWS = [(file, symbol) for file, rows in TABLES.items() for symbol in rows]


def exists(dotted):
    """Whether `port.module.name.attribute` leads somewhere."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        module = ".".join(parts[:cut])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def public_symbols(source):
    """Names of a module's public functions, classes, constants and aliases, and of public methods of its classes."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            methods = [sub.name for sub in node.body if isinstance(sub, ast.FunctionDef)]
            if isinstance(node, ast.ClassDef):
                names |= {f"{node.name}.{name}" for name in methods if not name.startswith("_")}
    return {name for name in names if not name.startswith("_")}


def test_there_is_much_to_check():
    assert len(ROWS) >= 180
    assert sum(bool(TABLES[file][symbol][0]) for file, symbol in ROWS) >= 130


@pytest.mark.parametrize(("file", "symbol"), ROWS, ids=[f"{file}::{symbol}" for file, symbol in ROWS])
def test_a_row_names_what_exists_or_says_why_not(file, symbol):
    counterparts, reason = TABLES[file][symbol]
    assert counterparts or len(reason) > 10, "neither a counterpart nor a reason"
    missing = [name for name in counterparts if not exists(name)]
    assert not missing, f"not in the port: {missing}"


def test_every_file_of_the_original_is_there():
    files = {f"disco_rl/{name}" for name in load_table().files if name.endswith(".py")}
    without_symbols = {name for name in files if name.endswith("__init__.py")}
    assert set(TABLES) - set(NOTEBOOKS) == files - without_symbols


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_every_function_of_a_notebook_is_there(file):
    assert set(TABLES[file]) == NOTEBOOKS[file]


@pytest.mark.parametrize("file", sorted(set(TABLES) - set(NOTEBOOKS)))
def test_the_table_is_the_originals_list_of_symbols(file):
    spec = importlib.util.find_spec("disco_rl")
    if spec is None:
        pytest.skip("the original is not installed; `make original` brings it")
    path = pathlib.Path(spec.submodule_search_locations[0]) / file.removeprefix("disco_rl/")
    symbols = public_symbols(path.read_text(encoding="utf-8"))
    assert sorted(symbols - set(TABLES[file])) == [], "symbols without a row"
    assert sorted(set(TABLES[file]) - symbols) == [], "rows without a symbol"


def test_a_counterpart_that_is_not_there_would_be_seen():
    assert exists("port.agent.Agent.learner_step")
    assert not exists("port.agent.Agent.teacher_step")
    assert not exists("port.absent")


def test_symbols_are_seen_wherever_they_stand():
    source = "A = 1\n_b = 2\nC: int = 3\ndef f(): pass\nclass D:\n    def g(self): pass\n    def _h(self): pass\n"
    assert public_symbols(source) == {"A", "C", "f", "D", "D.g"}


def test_a_row_without_counterpart_and_reason_is_read_as_such():
    table = read("### `x.py`\n\n| symbol | here | |\n|---|---|---|\n| `f` | – | |\n| `g` | `port.ops` | why |\n")
    assert table == {"x.py": {"f": ([], ""), "g": (["port.ops"], "why")}}
