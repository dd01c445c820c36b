"""`python -m reference weights`: finds and verifies Disco103's weights; the finder is `parity.weights`.

Example:
    python -m reference weights --path disco_103.npz
    python -m reference weights --download
"""

import argparse
import json
import pathlib
from typing import Any

from parity import weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `python -m reference weights`."""
    parser.add_argument("--path", help="the file to verify (default: environment, then cache)")
    parser.add_argument("--download", action="store_true", help="fetch the file where none is found")
    parser.add_argument("--json", metavar="FILE", help="also write the finding here")


def run(args: argparse.Namespace) -> int:
    """Finds and verifies the weights; returns 0, or 1 for a wrong file, or 2 for none."""
    finding: dict[str, Any]
    try:
        found = weights.find_weights(args.path, download=args.download)
        finding = {"path": str(found.path), "source": found.source, "sha256": found.sha256, "error": None}
        code, line = (
            0,
            f"{found.path} (from {found.source}): verified, sha256 {found.sha256}",
        )
    except weights.WeightsError as error:
        finding = {"path": args.path, "source": None, "sha256": None, "error": str(error)}
        code, line = 2 if isinstance(error, weights.WeightsMissingError) else 1, str(error)
    print(line)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(finding, indent=1) + "\n", encoding="utf-8")
    return code
