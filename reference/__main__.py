"""What belongs to the original, from the shell.

Example:
    python -m reference doctor
    python -m reference weights --download
    python -m reference record --check
    python -m reference curves --presets disco103 --seeds 10
    python -m reference trace bundled --seeds 0,1
"""

import argparse
import importlib
import sys
import types

COMMANDS = {
    "calibrate": "hold the original, compiled in other ways, to the goldens",
    "curves": "let the original learn Catch and keep its curves",
    "doctor": "what this machine has of the original, and what is missing",
    "record": "run the original and write the goldens",
    "trace": "run the original on Catch and record it action by action",
    "weights": "find and verify Disco103's weights",
}
MODULES = {
    "calibrate": "reference.record.calibrate",
    "curves": "reference.record.curves",
    "record": "reference.record.goldens",
    "trace": "reference.record.traces",
}
OLD_NAMES = {"tape": "trace"}  # of commands, which are still taken


def main(argv: list[str] | None = None) -> int:
    """Runs one command; only that command's module is loaded."""
    argv = list(sys.argv[1:] if argv is None else argv)
    argv[:1] = [OLD_NAMES.get(name, name) for name in argv[:1]]
    chosen = argv[0] if argv and argv[0] in COMMANDS else None
    parser = argparse.ArgumentParser(
        prog="python -m reference", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    module = None
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:
            module = _load(name)
            if module is None:
                return 2
            command.description = module.__doc__
            module.add_arguments(command)
    args = parser.parse_args(argv)
    assert module is not None  # the parser has refused every name that is not a command
    return int(module.run(args))


def _load(name: str) -> types.ModuleType | None:
    """Imports a command's module; says in a sentence what is not installed where that fails."""
    try:
        return importlib.import_module(MODULES.get(name, f"reference.{name}"))
    except ModuleNotFoundError as error:
        print(
            f"`{name}` cannot run: there is no {error.name}; `make bootstrap` installs the lock.",
            file=sys.stderr,
        )
        return None


if __name__ == "__main__":
    sys.exit(main())
