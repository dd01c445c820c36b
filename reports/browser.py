"""`python -m reports.browser`: installs Chromium where there is none.

The tests of the page and `python -m reports.screenshot` open it in a headless Chromium of the system. The environment
variable CHROMIUM names another one; nothing is ever downloaded but by apt-get, on Debian and its like, as root.

Example:
    python -m reports.browser
    CHROMIUM=/opt/chrome/chrome python -m reports.screenshot
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from parity.command_line import exit_code
from parity.errors import CannotRun

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BY_HAND = "Install Chromium or Chrome (Debian: apt-get install chromium), or name one in the variable CHROMIUM."
APT = ("apt-get", "-q", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20")
INSTALL = ("install", "--yes", "--no-install-recommends", "chromium")
PATIENCE = 300  # seconds, for each call of apt-get

# What is wrong inside the page, in sentences; links to files are checked from outside.
LOOK = """() => {
  const found = [];
  for (const image of document.images)
    if (!image.naturalWidth) found.push(`the image "${image.alt || image.src.slice(0, 60)}" is broken`);
  for (const link of document.querySelectorAll('a[href^="#"]'))
    if (!document.getElementById(decodeURIComponent(link.hash.slice(1)))) found.push(`nothing is at ${link.hash}`);
  const { scrollWidth } = document.documentElement;
  if (scrollWidth > innerWidth) {
    const free = [...document.querySelectorAll("body *")].filter((element) => !element.closest(".wide, pre"));
    const wide = free.find((element) => element.getBoundingClientRect().right > innerWidth + 1) || document.body;
    found.push(`the page is ${scrollWidth} wide where ${innerWidth} fit, at <${wide.tagName.toLowerCase()}>`);
  }
  for (const badge of document.querySelectorAll(".contents .badge"))
    if (badge.getBoundingClientRect().right > badge.parentElement.getBoundingClientRect().right + 1)
      found.push(`"${badge.textContent}" is wider than its place`);
  return found;
}"""


def find_chromium() -> str:
    """The path of a Chromium; CannotRun where there is none."""
    named = os.environ.get("CHROMIUM")
    for name in (named,) if named else NAMES:
        path = shutil.which(name)
        if path:
            return path
    where = f"CHROMIUM names {named}, which cannot be run. " if named else "There is no Chromium here. "
    raise CannotRun(f"{where}{BY_HAND}")


@contextmanager
def started() -> Iterator[Any]:
    """A headless Chromium, of Playwright's class Browser; CannotRun where there is none."""
    path = find_chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise CannotRun("Playwright is not installed; `pip install 'disco-parity[dev]'` brings it.") from error
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True)
class Visit:
    """A page that is open.

    Attributes:
        page: of Playwright's class Page.
        folder: what lies beside the page.
        refused: requests that left the page; none was answered.
        errors: what the page complained of on the console.
    """

    page: Any
    folder: Path
    refused: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What is wrong with the page at its present size, in sentences."""
        asked = [f"the page asks for {url}" for url in self.refused]
        complaints = [f"console error: {text}" for text in self.errors]
        return [*asked, *complaints, *self.page.evaluate(LOOK), *self.dead_links()]

    def dead_links(self) -> list[str]:
        """Links to files that are missing next to the page; links to the network are not followed."""
        links = self.page.eval_on_selector_all("a[href]", "all => all.map(a => a.getAttribute('href'))")
        files = [unquote(urlsplit(link).path) for link in links if not urlsplit(link).scheme]
        return [f"missing file: {name}" for name in files if name and not (self.folder / name).is_file()]


@contextmanager
def visit(
    browser: Any, path: Path, width: int = 1200, height: int = 900, scheme: str = "light", with_javascript: bool = True
) -> Iterator[Visit]:
    """Opens a page that lies on the disk, in a window of a size, with nothing else in reach."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, java_script_enabled=with_javascript
    )
    try:
        opened = Visit(context.new_page(), path.parent)
        url = path.resolve().as_uri()
        context.route("**/*", lambda route, request: _answer(route, request.url, url, opened.refused))
        opened.page.on("console", lambda said: opened.errors.append(said.text) if said.type == "error" else None)
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.page.goto(url)
        yield opened
    finally:
        context.close()


def _answer(route: Any, asked: str, allowed: str, refused: list[str]) -> None:
    if asked.partition("#")[0] == allowed:
        route.continue_()
    else:
        refused.append(asked)
        route.abort()


def install() -> str:
    """Installs Chromium by apt-get and returns its path; CannotRun where that is not possible."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        why = "apt-get is not here" if shutil.which("apt-get") is None else "only root may install it"
        raise CannotRun(f"There is no Chromium here, and {why}. {BY_HAND}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (("update",), INSTALL):
        try:
            subprocess.run([*APT, *arguments], env=quiet, check=True, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.SubprocessError as error:
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            raise CannotRun(f"apt-get {arguments[0]} failed ({said[-1]}). {BY_HAND}") from error
    return find_chromium()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 there is a Chromium now, 2 there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.browser", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return exit_code(parser, arguments, lambda _: ensure())


def ensure() -> int:
    """Finds a Chromium, or installs one where none is named."""
    try:
        path = find_chromium()
    except CannotRun:
        if os.environ.get("CHROMIUM"):
            raise
        path = install()
    print(f"Chromium is {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
