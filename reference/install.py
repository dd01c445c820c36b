"""Installs the original into this environment, and says whether it is genuine.

Nothing but `disco_rl` is installed: its dependencies are the pinned set, which stays as it is.

Example:
    python -m reference.install
    python -m reference.install --src ../disco_rl
"""

import argparse
import importlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

from reference import identity

IGNORED = shutil.ignore_patterns(".git", "build", "dist", "*.egg-info", "__pycache__", ".venv")
# What git or pip say, and what it means; the first that fits wins.
FETCH_FAILURES = (
    (r"Could not resolve host|Name or service not known", "the name {host} does not resolve (no network?)"),
    (r"Temporary failure in name resolution", "the name {host} does not resolve (no network?)"),
    (r"Cannot find command 'git'|No such file or directory: 'git'", "git is not installed"),
    (r"Connection refused|timed out|[Cc]onnect to|No route to host|unreachable", "{host} cannot be reached"),
    (r"CONNECT tunnel failed[^\n]*|Proxy[^\n]*|returned error: \d+", "{host} cannot be reached ({found})"),
    (r"fatal: ([^\n]+)", "{found}"),
    (r"ERROR: ([^\n]+)", "{found}"),
)


class OriginalError(Exception):
    """The original cannot be installed; the message says why."""


def declared_requirement() -> str:
    """Returns the requirement that the extra `original` declares, such as `disco_rl @ git+https://...@commit`."""
    for line in importlib.metadata.requires("disco-parity") or ():
        requirement, _, marker = line.partition(";")
        if requirement.strip().startswith(f"{identity.PACKAGE} @") and "original" in marker:
            return requirement.strip()
    raise OriginalError("The extra `original` declares no disco_rl: `make bootstrap` reinstalls the project.")


def check_source(source: pathlib.Path) -> None:
    """Raises a sentence where a folder is not a checkout of the original."""
    if not source.is_dir():
        raise OriginalError(f"SRC={source} is not a folder.")
    try:
        name = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    except (OSError, KeyError, ValueError):
        name = "nothing"
    if name != identity.PACKAGE:
        raise OriginalError(f"SRC={source} is not a checkout of disco_rl: its pyproject.toml names {name}.")
    if not (source / identity.PACKAGE / "__init__.py").is_file():
        raise OriginalError(f"SRC={source} is not a checkout of disco_rl: it has no package of that name.")


def install_declared() -> None:
    """Installs the original from the repository and commit that the project declares."""
    requirement = declared_requirement()
    code, output = _pip_install(requirement)
    if code:
        raise OriginalError(
            f"The original could not be fetched: {explain_failure(output, requirement)}; nothing was "
            "installed. With a checkout at hand: make original SRC=PATH."
        )


def install_checkout(source: pathlib.Path) -> None:
    """Installs the original from a checkout, by way of a copy so that the checkout stays clean."""
    check_source(source)
    with tempfile.TemporaryDirectory(prefix="disco-parity-") as folder:
        copy = pathlib.Path(folder) / identity.PACKAGE
        shutil.copytree(source, copy, ignore=IGNORED)
        code, output = _pip_install(str(copy))
    if code:
        raise OriginalError(f"SRC={source} could not be installed: {explain_failure(output, str(source))}.")


def explain_failure(output: str, requirement: str) -> str:
    """Says in a few words why pip failed."""
    host = re.search(r"//([^/]+)/", requirement)
    for pattern, sentence in FETCH_FAILURES:
        match = re.search(pattern, output)
        if match:
            words = match.group(match.lastindex or 0).strip().rstrip(".")
            return sentence.format(host=host.group(1) if host else "the repository", found=words)
    return "pip gave no reason"


def _pip_install(requirement: str) -> tuple[int, str]:
    """Runs pip for one requirement, dependencies left alone; returns its exit code and output."""
    options = ["--no-deps", "--no-build-isolation", "--force-reinstall", "--no-input", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, requirement]
    surroundings = os.environ | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)
    return done.returncode, done.stdout + done.stderr


def main(argv: list[str] | None = None) -> int:
    """Installs the original; returns 0 where it is genuine, 1 where it is not or was not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.install",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--src", type=pathlib.Path, help="a checkout of disco_rl (default: the pinned commit)")
    args = parser.parse_args(argv)
    try:
        if args.src is None:
            install_declared()
        else:
            install_checkout(args.src.expanduser())
    except OriginalError as error:
        print(error)
        return 1
    importlib.invalidate_caches()
    installed = identity.identify()
    print(identity.describe(installed))
    if installed.state != "genuine":
        print(installed.message)
    return 0 if installed.state == "genuine" else 1


if __name__ == "__main__":
    sys.exit(main())
