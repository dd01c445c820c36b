"""What is shown of learning curves: the picture, the rows behind it, the summary for machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from parity.runs.curves import Curve
from parity.runs.spec import RunSpec
from reports import page
from reports.catch_curves import metrics, power, statistics
from reports.catch_curves.metrics import MEASURES, MISSED
from reports.catch_curves.power import ALPHA, FEWEST, POWER
from reports.catch_curves.statistics import Verdict

ORIGINAL = "the original"
GREY, COLOURS = "#5b6673", ("#2a78d6", "#d97a1f", "#7a4fc4", "#1a7f4b")
POINTS = 200  # of a curve that are drawn
SEED_COUNTS = (3, 5, 10, 20)


@dataclass(frozen=True)
class Group:
    """Runs of one implementation with one preset.

    Attributes:
        name: of the implementation.
        curves: by seed.
        verdict: against the original's runs.
    """

    name: str
    curves: Mapping[int, Curve]
    verdict: Verdict


@dataclass(frozen=True)
class Panel:
    """One preset: the original's recorded runs and those of others."""

    spec: RunSpec
    ref: Mapping[int, Curve]
    groups: list[Group]

    def everyone(self) -> list[tuple[str, Mapping[int, Curve]]]:
        """All runs by implementation, the original's first."""
        return [(ORIGINAL, self.ref), *((group.name, group.curves) for group in self.groups)]


def rows(panels: Sequence[Panel]) -> pd.DataFrame:
    """A row for each step of each run."""
    tables = []
    for panel in panels:
        for name, curves in panel.everyone():
            for seed, curve in curves.items():
                table = {"preset": panel.spec.preset, "implementation": name, "seed": seed}
                table |= {"step": range(1, len(curve) + 1), "frames": curve.frames, "catch_rate": curve.catch_rates}
                table["value_loss"] = [math.nan if loss is None else loss for loss in curve.value_losses]
                table |= {"episodes": [len(c) for c in curve.caught], "caught": [sum(c) for c in curve.caught]}
                tables.append(pd.DataFrame(table))
    return pd.concat(tables, ignore_index=True)


def power_rows(ref: Sequence[Curve]) -> list[dict[str, Any]]:
    """What a number of seeds against the recorded ones can show, from the spread of the recorded ones."""
    if len(ref) < FEWEST:
        return []
    spread = float(MISSED.scaled(metrics.measured(ref)["missed"]).std(ddof=1))
    return [
        {
            "seeds": n,
            "recorded": len(ref),
            "spread": spread,
            "equivalence_power": power.tost(spread, n, len(ref), *MISSED.bounds(ref)),
            "slowdown_found": MISSED.unscaled(power.detectable(spread, n, len(ref))),
            "power_at_quarter_slower": power.difference(spread, n, len(ref), math.log(1.25)),
        }
        for n in SEED_COUNTS
    ]


def _numbers(curves: Mapping[int, Curve]) -> dict[str, Any]:
    """Each measure of each run, in the order of the seeds; None for a time never reached."""
    measures = metrics.measured(list(curves.values()))
    return {"seeds": list(curves), **{name: page.finite(values.tolist()) for name, values in measures.items()}}


def summary(panels: Sequence[Panel]) -> dict[str, Any]:
    """All figures for machines."""
    return {
        "alpha": ALPHA,
        "power_wanted": POWER,
        "margins": {measure.name: measure.margin for measure in MEASURES},
        "presets": {
            panel.spec.preset: {
                "steps": panel.spec.num_steps,
                "original": _numbers(panel.ref),
                "power": power_rows(list(panel.ref.values())),
                "candidates": {
                    group.name: {
                        "verdict": group.verdict.state,
                        "words": group.verdict.words,
                        **_numbers(group.curves),
                        "comparisons": [asdict(c) for c in group.verdict.comparisons.values()],
                    }
                    for group in panel.groups
                },
            }
            for panel in panels
        },
    }


def figure(panels: Sequence[Panel]) -> Figure:
    """Catch rates over learner steps: each run thin, their mean thick, its 95% bootstrap band shaded."""
    drawing = Figure(figsize=(1.2 + 3.9 * len(panels), 4.0), layout="constrained")
    for axes, panel in zip(drawing.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for (name, curves), colour in zip(panel.everyone(), (GREY, *COLOURS * len(panel.groups)), strict=False):
            _draw(axes, f"{name} ({len(curves)})", list(curves.values()), colour)
        axes.set(xlim=(0, panel.spec.num_steps), ylim=(0, 1.02), xlabel="learner steps")
        axes.set_title(panel.spec.title, fontsize=10)
        axes.grid(color="#999999", alpha=0.25, lw=0.6)
        axes.legend(loc="lower right", frameon=False, fontsize=8, title="seeds in brackets", title_fontsize=7)
    drawing.axes[0].set_ylabel("catch rate over the last 100 episodes")
    return drawing


def _draw(axes: Any, label: str, curves: Sequence[Curve], colour: str) -> None:
    length = min(len(curve) for curve in curves)
    places = np.unique(np.linspace(0, length - 1, min(POINTS, length)).astype(int))
    rates = np.array([curve.catch_rates[places] for curve in curves])
    for one in rates:
        axes.plot(places + 1, one, color=colour, lw=0.5, alpha=0.35)
    if len(rates) > 1:
        axes.fill_between(places + 1, *statistics.band(rates), color=colour, alpha=0.18, lw=0)
    axes.plot(places + 1, rates.mean(axis=0), color=colour, lw=1.8, label=label)
