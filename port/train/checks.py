"""What `python -m port.train` looks at before it begins, so that no mistake comes to light after hours."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from port.storage.folder_lock import FILE as LOCK

OUT = Path("runs/train")
RUN = "config.json"  # in every folder that holds a run
SETTING = re.compile(r"\b(?:Train|Agent|AgentNet|Disco|ActorCritic|MetaNet)Config\.(\w+)")


def default_out(arguments: argparse.Namespace) -> Path:
    """A folder of its own for each environment, rule and seed."""
    rule = arguments.weights.stem if arguments.weights else arguments.rule
    return OUT / re.sub(r"[^\w.-]+", "_", f"{arguments.environment}-{rule}-seed{arguments.seed}")


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError for what could not be done, or would be regretted at the end."""
    for option in ("envs", "steps", "episodes"):
        if getattr(arguments, option) < 1:
            raise ValueError(f"--{option} is {getattr(arguments, option)}; it must be at least 1.")
    if arguments.json is not None and not arguments.json.parent.is_dir():
        raise ValueError(f"--json is {arguments.json}, but there is no folder {arguments.json.parent}; make it first.")
    if arguments.json is not None and arguments.json.is_dir():
        raise ValueError(f"--json is {arguments.json}, a folder; give a file.")
    check_folder(arguments.out)


def check_folder(out: Path) -> None:
    """Raises ValueError where a run must not, or cannot, write to a folder."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out is {out}, a file; give a folder.")
    if not out.is_dir() or (out / RUN).is_file():
        return
    others = sorted(path.name for path in out.iterdir() if path.name != LOCK)
    if others:
        raise ValueError(f"--out is {out}, which holds other things ({others[0]}) and no run; give a new folder.")


def in_options(sentence: str) -> str:
    """A sentence of the library in the command's words: settings are options."""
    return SETTING.sub(lambda found: f"--{found[1].replace('_', '-')}", sentence)
