"""Manifests: written with the digest of their own content, and read with it checked.

The digests of those in `fixtures/` also stand in `digests.json` beside this module. So an edited manifest is refused
even if its digest was computed again. Recording writes both.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from parity.errors import FixtureError
from parity.files import canonical, check_form, read_json, reading, write_atomically

FIXTURES = (Path(__file__).resolve().parents[1] / "fixtures").resolve()  # a link, so that a wheel has them in `parity`
DIGESTS = Path(__file__).with_name("digests.json")


def read(path: Path, remedy: str, form: Any, version: int | None = None, what: str = "the manifest") -> dict[str, Any]:
    """A manifest of a form as of `files.check_form`, its own digest checked, and its format where it has one."""
    content = read_json(path, {"digest": str}, remedy, what)
    with reading(path, remedy):
        stated, computed, place = content["digest"], _digest(content), _place(path)
        if computed != stated:
            raise FixtureError(f"{path} is not what was recorded: its digest does not fit its content. {remedy}")
        if place and stated != json.loads(DIGESTS.read_text(encoding="utf-8")).get(place):
            raise FixtureError(f"{path} is not what was recorded: {DIGESTS.name} has another digest for it. {remedy}")
        if content.get("format") != version:
            raise FixtureError(f"{path} has format {content.get('format')}; this version reads format {version}.")
        check_form(content, form)
    return content


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes a manifest; the digest of one of `fixtures/` also where the code has it."""
    written = as_bytes(content)
    write_atomically(path, written)
    if place := _place(path):
        known = json.loads(DIGESTS.read_text(encoding="utf-8"))
        write_atomically(DIGESTS, canonical({**known, place: json.loads(written)["digest"]}).encode())


def as_bytes(content: dict[str, Any]) -> bytes:
    """A manifest with the digest of its own content."""
    whole = {**content, "digest": _digest(content)}
    return (json.dumps(whole, sort_keys=True, indent=0, allow_nan=False) + "\n").encode()  # unindented: it is large


def _digest(content: dict[str, Any]) -> str:
    body = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(canonical(body).encode()).hexdigest()


def _place(path: Path) -> str:
    """Where a manifest stands in the fixtures; empty for one that stands elsewhere."""
    path = path.resolve()
    return path.relative_to(FIXTURES).as_posix() if path.is_relative_to(FIXTURES) else ""
