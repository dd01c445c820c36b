"""The page that ties the reports together: one HTML file, readable without a network and without JavaScript."""

from __future__ import annotations

import argparse
import base64
import importlib
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from parity.command_line import write_result
from parity.files import write_atomically

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "out"
COMPARED = ("candidate", "reference", "recorded with", "weights")  # stand at the top, once
LABELS = {"good": "equal", "bad": "different", "beside": "for comparison", "absent": "not run"}


@dataclass(frozen=True)
class Section:
    """One part of the page.

    Attributes:
        name: anchor on the page.
        title: heading.
        verdict: one sentence.
        is_equal: whether the verdict is good; for one that was not run, whether it can be done without.
        command: makes this section again.
        body: HTML.
        provenance: what was compared with what, as (label, text).
        files: data behind it, names beside the page.
        kind: whether it judges, shows another's work, which is no verdict on the candidate, or was not run.
        badge: the verdict in a word or two; if empty, equal or different.
        summary: which of the files --json writes as well; if empty, --json writes the verdict.
    """

    name: str
    title: str
    verdict: str
    is_equal: bool
    command: str
    body: Markup
    provenance: list[tuple[str, str]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    kind: Literal["judged", "beside", "not run"] = "judged"
    badge: str = ""
    summary: str = ""

    @property
    def state(self) -> str:
        """good, bad, beside or absent."""
        if self.kind == "judged":
            return "good" if self.is_equal else "bad"
        return "beside" if self.kind == "beside" else "absent"

    @property
    def is_missed(self) -> bool:
        """Whether it should have run, and could not."""
        return self.kind == "not run" and not self.is_equal

    @property
    def label(self) -> str:
        """The word on its badge."""
        return self.badge or LABELS[self.state]


def recorded_from(how: str, origin: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which original was recorded, and with which packages, for the provenance of a section.

    Args:
        how: the original was, or what of it.
        origin: the provenance in a manifest.
    """
    original, packages = origin["original"], origin["packages"]
    return [
        ("reference", f"{how}: {original['repository']} at {original['commit']}"),
        ("recorded with", ", ".join(f"{name} {version}" for name, version in packages.items())),
    ]


def not_run(name: str, title: str, command: str, reason: str) -> Section:
    """A section in whose place there is only the reason."""
    return Section(name, title, f"Could not run here. {reason}", False, command, Markup(), kind="not run")


def in_one_line(sections: Sequence[Section]) -> tuple[str, str]:
    """The verdict over all sections: its state and its words."""
    judged = [section for section in sections if section.kind == "judged"]
    bad = [f"{section.title} ({section.label})" for section in judged if section.state == "bad"]
    absent = [section.title for section in sections if section.state == "absent"]
    missing = f" Not run: {', '.join(absent)}." if absent else ""
    if bad:
        count = f"{len(bad)} of {len(judged)} verdicts {'is' if len(bad) == 1 else 'are'}"
        return "bad", f"{count if len(judged) > 1 else 'The verdict is'} bad: {', '.join(bad)}.{missing}"
    if not judged:
        return "absent", f"Nothing was judged.{missing}"
    count = f"All {len(judged)} verdicts are" if len(judged) > 1 else "The verdict is"
    state = "absent" if any(section.is_missed for section in sections) else "good"
    return state, f"{count} good: no difference from the original was found.{missing}"


def with_code(text: str) -> Markup:
    """A sentence as HTML; what stands in backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["with_code"] = with_code


def render(template: str, **values: Any) -> Markup:
    """A template filled in; a name that it lacks is an error."""
    return Markup(TEMPLATES.get_template(template).render(**values))


def finite(value: Any) -> Any:
    """A value as JSON has it, all the way down: named tuples as dicts, numbers that are not finite as None."""
    if isinstance(value, dict):
        return {name: finite(x) for name, x in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return finite(value._asdict())
    if isinstance(value, list | tuple):
        return [finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def add_legend(figure: Any, ncols: int) -> None:
    """One legend for all panels of a figure, below them."""
    labelled = [axes.get_legend_handles_labels() for axes in figure.axes]
    lines = {label: line for handles, labels in labelled for line, label in zip(handles, labels, strict=True)}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=ncols, frameon=False, fontsize=8)


def picture(figure: Any) -> str:
    """A figure as an SVG that stands in the page itself, without a background: the page has a dark one, too."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def reference_in_words() -> str:
    """Which original is on this machine."""
    return str(importlib.import_module("reference.identity").describe())


def project_in_words() -> str:
    """Version and commit of this project."""
    try:
        words = f"disco-parity {importlib.metadata.version('disco-parity')}"
    except importlib.metadata.PackageNotFoundError:
        words = "disco-parity"
    if not (HERE.parents[1] / ".git").exists():
        return words
    git = ["git", "-C", str(HERE.parents[1])]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return words
    return f"{words}, commit {commit.stdout.strip()}{' with changes' if changes.stdout.strip() else ''}"


def versions() -> list[tuple[str, str]]:
    """Versions of what computed, where and when."""
    packages = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy", "scipy")]
    return [
        ("versions here", ", ".join([f"Python {platform.python_version()}", *packages])),
        ("installed", reference_in_words()),
        ("this project", project_in_words()),
        ("made", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, on {os.cpu_count()} cores of {platform.machine()}"),
    ]


def compared(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """What was compared with what: of each label what the first section that judges says."""
    text_of: dict[str, str] = {}
    for section in sorted(sections, key=lambda section: section.kind != "judged"):
        for label, text in section.provenance:
            if label in COMPARED:
                text_of.setdefault(label, text)
    return [(label, text_of[label]) for label in COMPARED if label in text_of]


def write(sections: Sequence[Section], out: Path) -> Path:
    """Writes `index.html` and returns its path."""
    state, verdict = in_one_line(sections)
    rows = [*compared(sections), *versions()]
    html = render("page.html.j2", sections=sections, state=state, verdict=verdict, compared=rows)
    path = out / "index.html"
    write_atomically(path, html.encode())
    return path


def parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The command line of a report, with the options that all have."""
    options = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where to write (reports/out)")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the verdict for machines")
    return options


def publish(section: Section, args: argparse.Namespace) -> int:
    """Writes a page of one section, and whatever else the options ask for; 0 equal, 1 different."""
    path = write([section], args.out)
    write_result(args.json, (args.out / section.summary).read_bytes() if section.summary else as_json([section]))
    print(f"{section.verdict}\nThe page is {path}")
    return 0 if section.is_equal else 1


def as_json(sections: Sequence[Section]) -> bytes:
    """The verdicts for machines."""
    rows = [
        {"section": s.name, "equal": s.is_equal, "state": s.label, "verdict": s.verdict, "files": s.files}
        for s in sections
    ]
    return (json.dumps(rows, indent=1) + "\n").encode()
