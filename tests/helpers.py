"""What several test files use: a process in which some packages cannot be had."""

import importlib.metadata
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Collection

from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEFORE = """
import sys
blocked = set(sys.argv.pop(1).split(","))

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked)", name=name)

began_with = set(sys.modules)  # what site packages start with every interpreter
sys.meta_path.insert(0, Block())
code = 0
"""
AFTER = """
came_in = blocked & {name.split(".")[0] for name in set(sys.modules) - began_with}
assert not came_in, came_in
raise SystemExit(code)
"""


def run_without(
    blocked: Collection[str], program: str, *arguments: str, cwd: pathlib.Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs a program where some packages are not installed, and sees that none of them came in.

    Args:
        blocked: top-level names of the packages.
        program: Python; what it leaves in `code` is the exit code.
        *arguments: `sys.argv[1:]` of the program.
        cwd: the folder to run it in.
    """
    command = [sys.executable, "-c", BEFORE + program + AFTER, ",".join(sorted(blocked)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def extras_alone():
    """Top-level names of all packages that are installed and are not needed by the core, nor by what it needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed, ahead = {"disco-parity"}, project["dependencies"]
    while ahead:
        lines = [line for line in map(Requirement, ahead) if not line.marker or line.marker.evaluate({"extra": ""})]
        new = {line.name for line in lines} - needed
        needed |= new
        ahead = [line for name in new for line in importlib.metadata.requires(name) or ()]
    tops = importlib.metadata.packages_distributions()
    normal = {name.lower().replace("_", "-") for name in needed}
    return {top for top, names in tops.items() if not normal & {name.lower().replace("_", "-") for name in names}}
