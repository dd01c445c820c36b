"""Who imports whom, as design.md draws it: read from the sources, and tried where the rest is not there."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
JAX_STACK = {"chex", "distrax", "haiku", "jax", "jaxlib", "jmp", "optax", "rlax"}
STDLIB = set(sys.stdlib_module_names)

ALLOWED = {
    "port": STDLIB | {"numpy", "port", "torch"},
    "parity": STDLIB
    | {"hypothesis", "numpy", "parity", "pytest", "rich", "safetensors", "xdist", "dask", "distributed"},
}
# The commands of the port may show progress, draw and keep files, inside functions: the library is imported without.
COMMANDS = ("port/evaluate/__main__.py", "port/meta_train/", "port/storage/", "port/train/__main__.py", "port/train/")
ALLOWED_IN_COMMANDS = {"gymnasium", "matplotlib", "rich", "safetensors"}
FORBIDDEN = {
    "port": JAX_STACK | {"disco_rl", "parity", "reference", "reports", "tests"},
    "parity": JAX_STACK | {"disco_rl", "port", "reports", "tests", "torch"},
    "reference": {"port", "reports", "tests", "torch"},
    "reports": {"tests"},
}


def imported(source: str) -> set[str]:
    """Returns the top-level packages that a module's text imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").split(".")[0])
    return names


def sources(folder: str) -> list[pathlib.Path]:
    """Returns the Python files of a folder that its arrows bind."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return [path for path in files if "out" not in path.parts]


def offences(folder: str) -> dict[str, set[str]]:
    """Returns the imports that a folder may not have, by file."""
    found = {}
    for path in sources(folder):
        file, names = path.relative_to(ROOT).as_posix(), imported(path.read_text(encoding="utf-8"))
        if file.startswith(COMMANDS):
            names -= ALLOWED_IN_COMMANDS
        wrong = names & FORBIDDEN[folder] | (names - ALLOWED[folder] if folder in ALLOWED else set())
        if wrong:
            found[file] = wrong
    return found


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_follow_the_arrows(folder):
    assert offences(folder) == {}


@pytest.mark.parametrize("folder", ["parity", "port", "reference"])
def test_there_is_something_to_check(folder):
    assert len(sources(folder)) >= 5


def test_imports_are_seen_wherever_they_stand():
    text = """
import jax.numpy as jnp
def f():
    from torch import nn
    from . import x
try:
    import port
except ImportError:
    pass
"""
    assert imported(text) == {"jax", "torch", "port"}


LOAD_ALL = """
import importlib, pathlib, sys
package, blocked = sys.argv[1], set(sys.argv[2].split(","))

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)

sys.meta_path.insert(0, Block())
root = pathlib.Path(package)
count = 0
for path in sorted(root.rglob("*.py")):
    if path.name.startswith(("test_", "conftest", "__main__")):
        continue
    if sys.argv[3:] and path.stem not in sys.argv[3:]:
        continue
    parts = path.with_suffix("").parts
    importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    count += 1
assert not blocked & {name.split(".")[0] for name in sys.modules}
print(count)
"""


def load_without(package: str, blocked: set[str], *only: str) -> subprocess.CompletedProcess[str]:
    """Imports all modules of a package, or those named, in a process where some packages cannot be had."""
    command = [sys.executable, "-c", LOAD_ALL, package, ",".join(sorted(blocked)), *only]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize(
    ("package", "blocked", "only"),
    [
        ("port", JAX_STACK | {"disco_rl", "parity", "reference"} | ALLOWED_IN_COMMANDS, ()),
        ("parity", JAX_STACK | {"disco_rl", "port", "torch"}, ()),
        ("reference", JAX_STACK | {"port", "torch"}, ("identity", "weights", "doctor", "install")),
    ],
    ids=["port_without_jax", "parity_without_jax_and_torch", "doctor_without_either"],
)
def test_it_loads_where_the_others_are_not_installed(package, blocked, only):
    done = load_without(package, blocked, *only)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4


def test_the_blocking_blocks():
    done = load_without("port", {"torch"})
    assert done.returncode == 1
    assert "No module named 'torch' (blocked)" in done.stderr


CHECK_WITHOUT_JAX = """
import sys
blocked = set(sys.argv[1].split(","))

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)

sys.meta_path.insert(0, Block())
from parity.__main__ import main
code = main(["check", "values/retrace", "meta/gate", "--impl", sys.argv[2]])
assert not blocked & {name.split(".")[0] for name in sys.modules}
raise SystemExit(code)
"""


def test_goldens_are_checked_where_there_is_no_jax():
    command = [sys.executable, "-c", CHECK_WITHOUT_JAX, ",".join(sorted(JAX_STACK | {"disco_rl"})), "port"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 different" in done.stdout


def test_importing_the_library_imports_none_of_its_commands():
    commands = ("port.evaluate.__main__", "port.train.__main__", "port.meta_train.__main__")
    code = f"import sys, port; print([name for name in {commands} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"  # else `python -m` warns that it loads the command a second time
