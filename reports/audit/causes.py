"""What is known about a port: its distribution, what it leaves out, and causes of differences from the original.

It is data, `reports/audit/NAME.toml`, and imports nothing of the port. A cause is a fragment of the port's source, and
a hypothesis until tested: the audit checks a copy of the package in which all causes but one are corrected. A
difference is attributed to a cause if it appears in that copy, and not in a copy with all causes corrected.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from parity.layers import REGISTRY

HERE = Path(__file__).resolve().parent
REACHES = {
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
    """

    source: str
    case: str
    output: str
    kind: Literal["value", "vjp"]
    dtype: str
    imports: str
    code: str
    note: str = ""


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
    reach: str = "training"
    cites: str = ""
    shown: Shown | None = None

    def is_in(self, package: Path) -> bool:
        """Whether this release has it."""
        path = package / self.module
        return path.is_file() and all(re.search(old, path.read_text()) for old, _ in self.edits)

    def citation(self, package: Path) -> tuple[str, str]:
        """`file:line` and that line."""
        text = (package / self.module).read_text()
        match = re.search(self.cites or self.edits[0][0], text)
        assert match is not None, f"{self.name} is not in {package}"
        number = text.count("\n", 0, match.start()) + 1
        return f"{package.name}/{self.module}:{number}", text.splitlines()[number - 1].strip()


@dataclass(frozen=True)
class Port:
    """A port to audit; all but the name is empty for one of which nothing is known.

    Attributes:
        name: of its adapter: a known one, or `package.module:attribute`.
        distribution: what pip calls it.
        install: the command that installs it.
        about: whose it is.
        probes: module of comparisons outside the registry.
        outside: what is not judged.
        conventions: what differs and is no mistake.
        how: how the adapter calls the package.
        reasons: reason -> layers that are not provided because of it.
        no_reason: for the others.
        causes: of its differences.
    """

    name: str
    distribution: str = ""
    install: str = ""
    about: str = ""
    probes: str = ""
    outside: str = ""
    conventions: str = ""
    how: str = ""
    reasons: Mapping[str, list[str]] = field(default_factory=dict)
    no_reason: str = "the adapter does not have it"
    causes: tuple[Cause, ...] = ()

    @property
    def title(self) -> str:
        """Its name for readers."""
        return self.distribution or self.name

    def reason_by_layer(self) -> dict[str, str]:
        """Why a layer may be missing."""
        known = {layer: reason for reason, layers in self.reasons.items() for layer in layers}
        return {layer: known.get(layer, self.no_reason) for layer in REGISTRY}


def load_port(name: str, folder: Path = HERE) -> Port:
    """What is known about a port."""
    path = folder / f"{name}.toml"
    if not path.is_file():
        return Port(name)
    fields = tomllib.loads(path.read_text(encoding="utf-8"))
    preludes = fields.pop("preludes", {})
    causes = tuple(_cause(entry, preludes) for entry in fields.pop("cause"))
    return Port(name, causes=causes, **fields)


def _cause(entry: Mapping[str, Any], preludes: Mapping[str, str]) -> Cause:
    fields = {**entry, "edits": tuple((old, new) for old, new in entry["edits"])}
    if "shown" in entry:
        shown = dict(entry["shown"])
        prelude = preludes[shown.pop("prelude")] if "prelude" in shown else ""
        fields["shown"] = Shown(**{**shown, "code": prelude + shown["code"]})
    return Cause(**fields)


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
