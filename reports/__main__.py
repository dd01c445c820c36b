"""`python -m reports`: the whole page, `reports/out/index.html`.

Example:
    python -m reports --out reports/out
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from parity.implementation import CannotRun
from parity.store import FixtureError, write_atomically
from reports import audit, bugs, page, parity

SECTIONS = (parity.section, bugs.section, audit.section)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 all equal, 1 something differs (the page says what), 2 could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m reports", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    parser.add_argument("--impl", default="port", metavar="NAME", help="implementation to report on (default: port)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts for machines")
    args = parser.parse_args(arguments)
    try:
        sections = [make(args.impl, args.out) for make in SECTIONS]
    except (CannotRun, FixtureError) as error:
        print(f"reports: {error}", file=sys.stderr)
        return 2
    path = page.write(sections, args.out)
    if args.json:
        write_atomically(args.json, page.as_json(sections))
    for section in sections:
        print(f"{section.title}: {section.verdict}")
    print(f"The page is {path}")
    return 0 if all(section.is_equal for section in sections) else 1


if __name__ == "__main__":
    raise SystemExit(main())
