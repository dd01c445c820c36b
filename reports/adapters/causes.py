"""What a difference between a port and the original can come from, down to a line, and a way to find out.

A cause names a fragment of the port's source and what the original does in its place. It is never believed: `audit`
judges a copy of the package in which all causes but one are corrected, and only what then still differs is laid at
that one's door; and a copy with all of them corrected, to see whether anything is left over.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cause:
    """One place where a port departs from the original.

    Attributes:
        name: short, for files and tables.
        title: what differs, in a few words.
        module: file inside the package.
        edits: (pattern, replacement) pairs that make a copy do as the original does; the first pattern also finds the
            line that is cited.
        original: where the original does it.
        says: what the port does and what the original does.
        means: what that is to a user.
    """

    name: str
    title: str
    module: str
    edits: tuple[tuple[str, str], ...]
    original: str
    says: str
    means: str

    def is_in(self, package: Path) -> bool:
        """Whether this release has it."""
        path = package / self.module
        return path.is_file() and all(re.search(old, path.read_text()) for old, _ in self.edits)

    def citation(self, package: Path) -> tuple[str, str]:
        """`file:line` and that line."""
        text = (package / self.module).read_text()
        found = re.search(self.edits[0][0], text)
        assert found is not None, f"{self.name} is not in {package}"
        number = text.count("\n", 0, found.start()) + 1
        return f"{package.name}/{self.module}:{number}", text.splitlines()[number - 1].strip()


def corrected_copy(package: Path, causes: Iterable[Cause], folder: Path) -> Path:
    """Copies a package, and its metadata, into a folder and makes it do as the original does in the given places."""
    copy = folder / package.name
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for metadata in package.parent.glob(f"{package.name}-*.dist-info"):
        shutil.copytree(metadata, folder / metadata.name)
    for cause in causes:
        path = copy / cause.module
        text = path.read_text()
        for old, new in cause.edits:
            text = re.sub(old, new, text)
        path.write_text(text)
    return folder
