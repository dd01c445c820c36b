"""The tests of `pytest --pyargs parity`, run in a process of their own, and what JUnit's file says of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

CODES = {0: 0, 1: 1, 3: 3, 5: 3}  # exit code of pytest -> equal, different, nothing compared; all else could not run
WORDS = {"passed": "passed", "failure": "failed", "error": "could not run", "skipped": "skipped"}  # by JUnit's tag
BAD = ("failure", "error")
MOST = 10  # names of tests


def run(args: argparse.Namespace, junit: Path) -> int:
    """Runs the tests on the implementation and layers of a check; returns the exit code of a command."""
    options = {name: getattr(args, name) for name in ("impl", "device", "expected", "precision")}
    command = [sys.executable, "-m", "pytest", "--pyargs", "parity", "-q", "-rfE", "--tb=line"]
    command += ["--junitxml", str(junit)]
    command += [f"--parity-{name}={value}" for name, value in options.items() if value]
    command += ["--parity-strict"] * args.strict + ["-k", " or ".join(args.layers)] * bool(args.layers)
    return CODES.get(subprocess.run(command, check=False).returncode, 2)


def in_words(junit: Path) -> str:
    """How many tests ended in which way, and which failed besides those of goldens; empty where there is no file."""
    if not junit.is_file():
        return ""
    tests = [(test.get("name", ""), _end(test)) for test in ElementTree.parse(junit).iter("testcase")]
    ends = Counter(end for _, end in tests)
    failed = [f"`{name}`" for name, end in tests if end in BAD and not name.startswith("test_golden[")]
    more = f" and {len(failed) - MOST} more" if failed[MOST:] else ""
    names = f"; besides goldens: {', '.join(failed[:MOST])}{more}" if failed else ""
    return ", ".join(f"{ends[end]} {word}" for end, word in WORDS.items() if ends[end]) + names


def _end(test: ElementTree.Element) -> str:
    return next((each.tag for each in test if each.tag in WORDS), "passed")
