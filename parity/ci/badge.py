"""A badge: equal or different, on which share of the layers and by which goldens."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template
from xml.sax.saxutils import escape

from parity.files import write_atomically

LABEL = "Disco parity"
COLOURS = {"equal": "#2ea44f", "different": "#cf222e"}
GREY = "#6e7781"  # nothing was compared, or it could not run
CHARACTER, PADDING = 6.2, 12  # pixels


def write(folder: Path, verdict: str, share: float, goldens: str) -> None:
    """Writes badge.svg, and badge.json for the endpoint badge of shields.io.

    Args:
        folder: where to.
        verdict: `equal`, `different` or another.
        share: of all layers, of which the verdict holds.
        goldens: their digest.
    """
    message = f"{verdict} on {share:.0%} of layers · goldens {goldens[:7]}"
    colour = COLOURS.get(verdict, GREY)
    endpoint = {"schemaVersion": 1, "label": LABEL, "message": message, "color": colour}
    write_atomically(folder / "badge.json", (json.dumps(endpoint, ensure_ascii=False) + "\n").encode())
    write_atomically(folder / "badge.svg", _svg(message, colour).encode())


def _svg(message: str, colour: str) -> str:
    """Text is stretched to the width that is planned for it, whatever the font."""
    left_text, right_text = (round(CHARACTER * len(text)) for text in (LABEL, message))
    left, right = left_text + PADDING, right_text + PADDING
    sizes = {"left": left, "width": left + right, "left_text": left_text, "right_text": right_text}
    middles = {"left_middle": left / 2, "right_middle": left + right / 2}
    template = Template(Path(__file__).with_name("badge.svg").read_text(encoding="utf-8"))
    return template.substitute(sizes, **middles, label=LABEL, message=escape(message), colour=colour)
