"""Causes of differences between a port and the original, each a fragment of the port's source.

A cause also names what the original does in that place. It is a hypothesis until tested: `audit` checks a copy of the
package in which all causes but one are corrected. A difference is attributed to a cause if it appears in that copy, and
not in a copy with all causes corrected.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["value", "vjp"]
Reach = Literal["training", "trainer", "rarely", "gradients", "direct", "float64"]

REACHES: dict[str, str] = {
    "training": "changes training with the package's own trainer, or with another loop around its rule",
    "trainer": "changes training with the package's own trainer",
    "rarely": "changes training in special situations only",
    "direct": "affects direct callers of this function; the package's own training does not call it",
    "gradients": "changes gradients that the package's own training does not use",
    "float64": "appears only in float64",
}


@dataclass(frozen=True)
class Shown:
    """How a difference is shown in one file, by the port alone.

    Attributes:
        source: the layer whose golden has the inputs.
        case: which case of it.
        output: what is compared.
        kind: value or gradient.
        dtype: precision.
        imports: what the code takes from the port.
        code: sets `got`, from tensors `x[name]`, and `c[name]` for the cotangents of a gradient.
        note: what there is to know about that.
        what: what is compared, in words, where the names above do not say it.
    """

    source: str
    case: str
    output: str
    kind: Kind
    dtype: str
    imports: str
    code: str
    note: str = ""
    what: str = ""


@dataclass(frozen=True)
class Cause:
    """One place where a port departs from the original.

    Attributes:
        name: short, for files and tables.
        title: what differs, in a few words.
        module: file inside the package.
        edits: (pattern, replacement) pairs that make a copy do as the original does.
        original: where the original does it.
        says: what the port does and what the original does.
        right: the original's formula.
        means: what that is to a user.
        reach: whom it reaches, a key of `REACHES`.
        cites: pattern of the line to cite, if it is not the first edit's.
        shown: how to show it in one file; None for what later releases have mended, or other causes always hide.
    """

    name: str
    title: str
    module: str
    edits: tuple[tuple[str, str], ...]
    original: str
    says: str
    right: str
    means: str
    reach: Reach = "training"
    cites: str = ""
    shown: Shown | None = None

    def is_in(self, package: Path) -> bool:
        """Whether this release has it."""
        path = package / self.module
        return path.is_file() and all(re.search(old, path.read_text()) for old, _ in self.edits)

    def citation(self, package: Path) -> tuple[str, str]:
        """`file:line` and that line."""
        text = (package / self.module).read_text()
        found = re.search(self.cites or self.edits[0][0], text)
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
            text, count = re.subn(old, new, text)
            assert count, f"{cause.name}: {old} is gone after another correction"
        path.write_text(text)
    return folder
