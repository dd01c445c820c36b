"""What several test files use: a process in which some packages cannot be had."""

import pathlib
import subprocess
import sys
from collections.abc import Collection

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


def run_without(blocked: Collection[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program where some packages are not installed, and sees that none of them came in.

    Args:
        blocked: top-level names of the packages.
        program: Python; what it leaves in `code` is the exit code.
        *arguments: `sys.argv[1:]` of the program.
    """
    command = [sys.executable, "-c", BEFORE + program + AFTER, ",".join(sorted(blocked)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
