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
from typing import Any

from parity.command_line import exit_code

COMMANDS = {  # module, and what the command is for
    "calibrate": ("reference.record.calibrate", "hold the original, compiled in other ways, to the goldens"),
    "curves": ("reference.record.curves", "let the original learn Catch and keep its curves"),
    "doctor": ("reference.doctor", "what this machine has of the original, and what is missing"),
    "record": ("reference.record.goldens", "run the original and write the goldens"),
    "trace": ("reference.record.traces", "run the original on Catch and record it action by action"),
    "weights": ("reference.weights", "find and verify Disco103's weights"),
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
    module: Any = None
    for name, (path, text) in COMMANDS.items():
        raw = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help=text, formatter_class=raw, allow_abbrev=False)
        if name == chosen:
            try:
                module = importlib.import_module(path)
            except ModuleNotFoundError as error:
                missing = f"there is no {error.name}; `make bootstrap` installs the lock."
                print(f"`{name}` cannot run: {missing}", file=sys.stderr)
                return 2
            command.description = module.__doc__
            module.add_arguments(command)
    return exit_code(parser, argv, lambda args: int(module.run(args)))


if __name__ == "__main__":
    sys.exit(main())
