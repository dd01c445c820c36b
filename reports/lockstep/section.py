"""What lockstep leaves behind: picture, CSV, summary and its section of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from parity.files import canonical, write_atomically
from parity.runs.lockstep import Comparison
from parity.runs.trace import FirstDifference
from reports import page
from reports.lockstep.verdict import DRIFT_LIMIT, ComparedRun, Group, Verdict, in_words

TITLE = "In lockstep with the original"
BLUE, ORANGE, GREEN = "#2a78d6", "#d97a1f", "#2e8b57"
WEIGHTS = {
    "disco103": "Disco103 (sha256 verified)",
    "bundled": "the bundled rule, meta-trained here",
    "actor_critic": "none (actor-critic)",
}


def table(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """One row for each step of each run."""
    parts = []
    for one in runs:
        columns: dict[str, Any] = {
            "run": one.name,
            "dtype": one.dtype,
            "step": np.arange(one.port.steps) + 1,
            "acts_alike": np.arange(one.port.steps) < one.port.together,
            "loss_difference": one.port.loss,
            "drift": one.port.drift,
        }
        others = one.own if one.wide is None else {**one.own, "in float64": one.wide}
        for label, other in others.items():
            name = f"own_{label.replace(' ', '_')}"
            columns[f"{name}_loss_difference"] = pd.Series(other.loss)  # may have another number of steps
            columns[f"{name}_drift"] = pd.Series(other.drift)
        parts.append(pd.DataFrame(columns, index=range(one.port.steps)))
    return pd.concat(parts, ignore_index=True)


def figure(groups: list[Group]) -> Figure:
    """Drift of the parameters step by step: the port's in blue, the original's own in orange."""
    presets = list(dict.fromkeys(group.preset for group in groups))
    dtypes = list(dict.fromkeys(group.dtype for group in groups))
    drawing = Figure(figsize=(4.6 * len(dtypes), 2.6 * len(presets) + 0.5), layout="constrained")
    grid = drawing.subplots(len(presets), len(dtypes), squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for group in groups:
        _panel(grid[presets.index(group.preset)][dtypes.index(group.dtype)], group)
    page.add_legend(drawing, ncols=4)
    return drawing


def _panel(axes: Any, group: Group) -> None:
    axes.set_visible(True)
    for one in group.runs:
        if one.wide is not None:
            _line(axes, one.wide, GREEN, "original in float64", 3.0, 9)
        for other in one.own.values():
            _line(axes, other, ORANGE, "original, perturbed by one unit in the last place", 0.9, 5)
        _line(axes, one.port, BLUE, "port", 1.1, 4)
    axes.set(yscale="log", xlim=(0, max(one.port.steps for one in group.runs)))
    axes.set_title(f"{group.preset.replace('_', '-')}, {group.dtype}", fontsize=9, loc="left")
    axes.set_xlabel("step; a dot at the first different action", fontsize=8)
    axes.set_ylabel("drift / norm of parameters", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(color="#999999", alpha=0.3, lw=0.6)


def _line(axes: Any, compared: Comparison, colour: str, label: str, width: float, size: float) -> None:
    steps = np.arange(compared.steps) + 1
    drift = np.where(compared.drift > 0, compared.drift, np.nan)  # none before anything is learned
    axes.plot(steps, drift, color=colour, lw=width, alpha=0.8 if width < 2 else 0.45, label=label)
    if compared.first is not None:
        at = compared.first.step
        axes.plot([at + 1], [drift[at]], "o", color=colour, ms=size)


def _first(compared: Comparison) -> FirstDifference | None:
    """Where actions first differ, steps counted from 1."""
    if compared.first is None:
        return None
    return compared.first._replace(step=compared.first.step + 1)


def summary(verdict: Verdict) -> dict[str, Any]:
    """The verdict for machines."""
    plain: dict[str, Any] = {
        "verdict": verdict.sentence(),
        "equal": verdict.is_equal,
        "drift_limit": DRIFT_LIMIT,
        "seconds": round(verdict.seconds, 1),
        "groups": [
            {
                "preset": group.preset,
                "dtype": group.dtype,
                "equal": group.is_equal,
                "runs": len(group.runs),
                "actions": group.actions,
                "first_different_step": group.first,
                "own_first_different_step": group.own_first,
                "chance_of_being_earlier": group.chance,
                "drift_ratio": group.ratio,
                "distance_to_float64": group.to_truth,
                "resync_every": group.every,
                "learner_steps": group.learner_steps,
                "worst_loss_difference": group.worst_loss,
                "sentence": group.sentence(),
            }
            for group in verdict.groups
        ],
        "runs": [
            {
                "reference": one.port.reference,
                "steps": one.port.steps,
                "first": _first(one.port),
                "own_first": {label: _first(other) for label, other in one.own.items()},
                "drift_ratio": one.ratio,
            }
            for one in verdict.runs
        ],
        "not_run": verdict.skipped,
    }
    return {name: page.finite(value) for name, value in plain.items()}


def section_of(
    verdict: Verdict, origin: Mapping[str, Any], command: str, out: Path, is_live: bool = False
) -> page.Section:
    """Writes picture, CSV and summary; returns the section."""
    how = "run here for this report" if is_live else "from recorded traces"
    drawing = figure(verdict.groups)
    out.mkdir(parents=True, exist_ok=True)
    drawing.savefig(out / "lockstep.png", dpi=130)
    write_atomically(out / "lockstep.csv", table(verdict.runs).to_csv(index=False).encode())
    write_atomically(out / "lockstep.json", canonical(summary(verdict)).encode())
    return page.Section(
        name="lockstep",
        title=TITLE,
        verdict=verdict.sentence(),
        is_equal=verdict.is_equal,
        command=command,
        body=page.render(
            "lockstep.html.j2",
            groups=verdict.groups,
            runs=verdict.runs,
            skipped=verdict.skipped,
            limit=DRIFT_LIMIT,
            image=page.picture(drawing),
            in_words=in_words,
        ),
        provenance=[
            ("candidate", "the port, in a closed loop of its own"),
            *page.recorded_from(f"the original, {how}", origin),
            ("weights", ", ".join(WEIGHTS[name] for name in dict.fromkeys(one.preset for one in verdict.runs))),
        ],
        files=["lockstep.csv", "lockstep.json", "lockstep.png"],
        badge="in lockstep" if verdict.is_equal else "different",
        summary="lockstep.json",
    )
