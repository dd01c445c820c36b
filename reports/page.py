"""The page that ties the reports together: one HTML file, readable without a network and without JavaScript."""

from __future__ import annotations

import base64
import importlib
import importlib.metadata
import io
import json
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from parity.store import write_atomically

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes:
        name: anchor on the page.
        title: heading.
        verdict: one sentence.
        is_equal: whether the verdict is good.
        command: makes this section again.
        body: HTML.
        provenance: what was compared with what, as (label, text).
        files: data behind it, names beside the page.
    """

    name: str
    title: str
    verdict: str
    is_equal: bool
    command: str
    body: Markup
    provenance: list[tuple[str, str]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def environment() -> Environment:
    """Templates of this folder; a name that is not given is an error."""
    return Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> Markup:
    """A template filled in."""
    return Markup(environment().get_template(template).render(**values))


def picture(figure: Any) -> str:
    """A figure as an SVG that stands in the page itself."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def reference_in_words() -> str:
    """Which original is on this machine."""
    identity = importlib.import_module("reference.identity")
    return str(identity.describe())


def versions() -> list[tuple[str, str]]:
    """Versions of what computed."""
    names = ("torch", "numpy")
    found = [f"{name} {importlib.metadata.version(name)}" for name in names]
    return [
        ("versions here", ", ".join([f"Python {platform.python_version()}", *found])),
        ("installed", reference_in_words()),
        ("made", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
    ]


def write(sections: list[Section], out: Path) -> Path:
    """Writes `index.html` and returns its path."""
    html = render("page.html.j2", sections=sections, versions=versions())
    path = out / "index.html"
    write_atomically(path, html.encode())
    return path


def as_json(sections: list[Section]) -> bytes:
    """The verdicts for machines."""
    rows = [{"section": s.name, "equal": s.is_equal, "verdict": s.verdict, "files": s.files} for s in sections]
    return (json.dumps(rows, indent=1) + "\n").encode()
