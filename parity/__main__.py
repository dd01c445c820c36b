"""`python -m parity list | check | trace | diagnose | compare | ci | new`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from parity.command_line import exit_code
from parity.commands import check, ci, compare, diagnose, listing, new, trace

COMMANDS = {
    "list": listing,
    "check": check,
    "trace": trace,
    "diagnose": diagnose,
    "compare": compare,
    "ci": ci,
    "new": new,
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    root = argparse.ArgumentParser(
        prog="python -m parity",
        description="Checks whether an implementation of Disco computes what DeepMind's code computes.",
    )
    commands = root.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        about = commands.add_parser(name, help=command.HELP, epilog=f"example: {command.EXAMPLE}", allow_abbrev=False)
        command.add_arguments(about)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run, 3 nothing was compared, 130 interrupted."""
    return exit_code(parser(), arguments, lambda args: COMMANDS[args.command].run(args))


if __name__ == "__main__":
    raise SystemExit(main())
