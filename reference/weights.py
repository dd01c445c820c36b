"""`python -m reference weights`: finds and verifies Disco103's weights; the finder is `parity.weights`.

Example:
    python -m reference weights --path disco_103.npz
    python -m reference weights --download
"""

import argparse
import pathlib
from typing import Any

from parity import weights
from parity.command_line import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `python -m reference weights`."""
    parser.add_argument("--path", help="the file to verify (default: environment, then cache)")
    parser.add_argument("--download", action="store_true", help="fetch the file where none is found")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the finding here")


def run(args: argparse.Namespace) -> int:
    """Finds and verifies the weights; returns 0, or 1 for a wrong file, or 2 for none."""
    finding: dict[str, Any] = {"path": args.path, "source": None, "sha256": None, "error": None}
    try:
        found = weights.find_weights(args.path, download=args.download)
    except weights.WeightsError as error:
        code, line = 2 if isinstance(error, weights.WeightsMissingError) else 1, str(error)
        finding["error"] = line
    else:
        code, line = 0, f"{found.path} (from {found.source}): verified, sha256 {found.sha256}"
        finding |= {"path": str(found.path), "source": found.source, "sha256": found.sha256}
    print(line)
    write_json(args.json, finding)
    return code
