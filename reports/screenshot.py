"""`python -m reports.screenshot`: checks the page in a browser and takes a picture of its top.

Opens reports/out/index.html in a headless Chromium, at the window sizes of a desktop and of a phone. Reports broken
images and links, network requests, and anything wider than the window. The picture is the one in reports/README.md.

Example:
    python -m reports.screenshot
    python -m reports.screenshot --page reports/out/index.html --png page.png --scheme dark
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from parity.command_line import exit_code, write_json
from parity.errors import CannotRun
from parity.files import write_atomically
from reports import browser, page

PNG = page.HERE.parent / "screenshot.png"
SIZES = {"desk": (1200, 900), "phone": (390, 844)}


def take(path: Path, scheme: str) -> tuple[bytes, list[str]]:
    """The picture of a page's top, and what is wrong with the page at every size."""
    faults, picture = list[str](), b""
    with browser.started() as chromium:
        for name, (width, height) in SIZES.items():
            with browser.visit(chromium, path, width, height, scheme) as visit:
                faults += [f"{name}: {fault}" for fault in visit.faults()]
                picture = picture or visit.page.screenshot()
    return picture, faults


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 1 something on the page is broken, 2 could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.screenshot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, default=page.OUT / "index.html", metavar="FILE", help="what to open")
    parser.add_argument("--png", type=Path, default=PNG, metavar="FILE", help="(default: reports/screenshot.png)")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light", help="(default: light)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is broken for machines")
    return exit_code(parser, arguments, run)


def run(args: argparse.Namespace) -> int:
    """Takes the picture and prints what is broken."""
    if not args.page.is_file():
        raise CannotRun(f"There is no page {args.page}; `make report` makes one.")
    picture, faults = take(args.page, args.scheme)
    write_atomically(args.png, picture)
    write_json(args.json, faults)
    for fault in faults:
        print(f"Broken, {fault}.")
    print(f"The picture is {args.png} ({len(picture) / 1000:.0f} kB)")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
