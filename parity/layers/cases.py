"""Cases that most layers have: other sizes, and terminals at some steps."""

from __future__ import annotations

import re

from parity.layers.edits import terminal
from parity.layers.spec import Case, Edit

PLAIN = Case("plain")
K601 = Case("K601", {"K": 601, "max_abs_value": 300.0})


def sized(*names: str) -> tuple[Case, ...]:
    """Cases whose names are the sizes that they set: `T1_B1` sets T and B to 1."""
    return tuple(
        Case(name, {letter: int(size) for letter, size in re.findall(r"([A-Z])(\d+)", name)}) for name in names
    )


def terminals(steps: str, name: str = "is_terminal", then: tuple[Edit, ...] = ()) -> tuple[Case, ...]:
    """A case for each of the steps (as `edits.terminal` calls them) at which an input is terminal."""
    return tuple(Case(f"terminal_{step}", edits=(terminal(step, name), *then)) for step in steps.split())
