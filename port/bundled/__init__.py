"""The rule in the box: a small Disco rule, meta-trained here from random weights on boards of Catch.

Disco103's weights cannot be shipped with this project, so this rule is the default wherever weights are needed.
`catch_rule.json` holds its sizes, the commands that made it and how it was judged.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from port import weights
from port.types import Params

WEIGHTS = Path(__file__).resolve().parent / "catch_rule.npz"
REMEDY = "Restore it with `git checkout -- port`, or install the package again."


def card() -> dict[str, Any]:
    """What is known of the rule: sizes of rule and agent, sha256, commands, measured catch rates."""
    try:
        found: dict[str, Any] = json.loads(WEIGHTS.with_suffix(".json").read_text(encoding="utf-8"))
        return found
    except (FileNotFoundError, ValueError) as problem:
        raise ValueError(f"The card of the embedded rule cannot be read ({problem}). {REMEDY}") from None


def path() -> Path:
    """The weights' file, after its digest was checked."""
    stated = card()["sha256"]
    if not WEIGHTS.is_file():
        raise ValueError(f"The embedded rule's weights are not at {WEIGHTS}. {REMEDY}")
    if hashlib.sha256(WEIGHTS.read_bytes()).hexdigest() != stated:
        raise ValueError(f"{WEIGHTS} is damaged: its sha256 is not the one on its card. {REMEDY}")
    return WEIGHTS


def load() -> Params:
    """The rule's meta-parameters."""
    found = path()
    return weights.load_npz(found, weights.meta_config_of(found))
