"""`python -m reports`: the whole page, `reports/out/index.html`.

A section that cannot run gives the reason on the page; the others are still made.

Example:
    python -m reports --out reports/out
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from parity.command_line import SENTENCES, ExitCode, exit_code, write_result
from parity.errors import in_words
from parity.implementation import load
from reports import page

# By name, and imported when their turn comes: each process that a section starts imports this module again.
SECTIONS = ("parity", "lockstep", "catch_curves", "bugs", "audit", "speed")


def make_section(report: str, implementation_name: str, out: Path) -> page.Section:
    """The section that a report makes, or in its place a sentence that says why it could not run; prints the time."""
    started, reason, full_name = time.monotonic(), "", f"reports.{report}.command"
    try:
        section: page.Section = importlib.import_module(full_name).section(implementation_name, out)
    except SENTENCES as error:
        reason = str(error)
    except (Exception, SystemExit) as error:  # whatever it is, the sections that are made must not be lost with it
        traceback.print_exc()
        reason = f"It failed with {in_words(error)}"
    if reason:
        title = getattr(sys.modules.get(full_name), "TITLE", report)
        section = page.not_run(report, title, f"python -m reports.{report}", reason)
    print(f"{section.title}: {section.label}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return section


def main(arguments: Sequence[str] | None = None) -> int:
    """0 all equal, 1 something differs, 2 something could not run, 3 nothing was judged; the page says what or why."""
    parser = page.parser("reports", __doc__)
    parser.add_argument("--impl", default="port", metavar="NAME", help="implementation to report on (default: port)")
    return exit_code(parser, arguments, report)


def report(args: argparse.Namespace) -> int:
    """Makes the page, section by section."""
    load(args.impl)
    sections = [make_section(name, args.impl, args.out) for name in SECTIONS]
    path = page.write(sections, args.out)
    write_result(args.json, page.as_json(sections))
    for section in sections:
        print(f"{section.title}: {section.verdict}")
    print(f"{page.in_one_line(sections)[1]}\nThe page is {path}")
    if any(section.state == "bad" for section in sections):
        return 1
    if any(section.is_missed for section in sections):
        return ExitCode.COULD_NOT_RUN
    return ExitCode.EQUAL if any(section.kind == "judged" for section in sections) else ExitCode.NOTHING_COMPARED


if __name__ == "__main__":
    raise SystemExit(main())
