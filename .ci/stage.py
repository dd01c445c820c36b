"""Runs one stage of the build: one line with its name and how long it took; its output only where it failed.

Example:
    python3 .ci/stage.py "ruff check" -- .venv/bin/python -m ruff check .
    python3 .ci/stage.py --stream "pytest tests/" -- .venv/bin/python -m pytest tests/
"""

import argparse
import subprocess
import sys
import time


def run(name, command, stream):
    """Runs a command; returns its exit code.

    Args:
        name: what the line calls the stage.
        command: the command and its arguments.
        stream: whether its output is shown as it comes, rather than only where it fails.
    """
    started = time.monotonic()
    if stream:
        print(f"{name} ...", flush=True)
    done = subprocess.run(
        command,
        stdout=None if stream else subprocess.PIPE,
        stderr=None if stream else subprocess.STDOUT,
        check=False,
    )
    outcome = "FAILED" if done.returncode else "ok"
    print(f"{name:28} {outcome:6} {time.monotonic() - started:6.1f} s", flush=True)
    if done.returncode and not stream:
        sys.stdout.write(done.stdout.decode("utf-8", "replace"))
    return done.returncode


def main():
    """Reads the command line; returns the stage's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", action="store_true", help="show the output as it comes")
    parser.add_argument("name")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    try:
        return run(args.name, command, args.stream)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
