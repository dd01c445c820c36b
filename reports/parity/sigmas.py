"""Errors in sigmas: their distribution for a candidate, the stand-in, and the original under other compilations.

Where two implementations differ by rounding alone, chance gives this distribution (`parity.goldens.calibration`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from parity.compare import BINS_PER_SIGMA, NUM_BINS, Row
from parity.goldens.calibration import Calibration, Held, by_chance
from parity.goldens.check import BOTH
from parity.tolerance import C
from reports import page

COLOURS = ("#2a78d6", "#2e8b57", "#d97a1f", "#7a4fc4", "#c2549d", "#6b7480")
BY_CHANCE = "expected by chance"


@dataclass
class Series(Held):
    """How the errors of one program are distributed in one precision, values and VJPs together.

    Attributes:
        program: whose errors they are.
        dtype: in which precision.
    """

    program: str = ""
    dtype: str = ""

    @property
    def elements(self) -> int:
        """How many there are; only those that rounding moves are counted."""
        return sum(self.counts)

    @property
    def shares(self) -> list[float]:
        """The share of the elements in each bin."""
        return [count / max(self.elements, 1) for count in self.counts]

    def within(self, sigmas: int) -> float:
        """The share of elements that are off by less than so many sigmas."""
        return sum(self.shares[: sigmas * BINS_PER_SIGMA])


def of_held(held: Mapping[str, Held]) -> list[Series]:
    """Values and VJPs taken together; names are those of `Calibration`."""
    by_program: dict[tuple[str, str], Series] = {}
    for name, one in held.items():
        way, dtype, _ = name.rsplit(", ", 2)
        by_program.setdefault((way, dtype), Series(program=way, dtype=dtype)).merge(one)
    return list(by_program.values())


def of_rows(program: str, rows: Iterable[Row]) -> list[Series]:
    """The comparisons of a candidate."""
    calibration = Calibration()
    calibration.add(program, rows)
    return of_held(calibration.held)


def table(series: Sequence[Series]) -> pd.DataFrame:
    """The numbers in the picture: a row for each program, precision and bin."""
    rows: list[dict[str, Any]] = []
    chance = by_chance()
    for one in series:
        for i, (count, share) in enumerate(zip(one.counts, one.shares, strict=True)):
            edges = {"from_sigma": i / BINS_PER_SIGMA, "to_sigma": (i + 1) / BINS_PER_SIGMA if i < NUM_BINS - 1 else ""}
            numbers = {"elements": count, "share": share, "share_by_chance": chance[i]}
            rows.append({"program": one.program, "dtype": one.dtype, **edges, **numbers})
    return pd.DataFrame(rows)


def figure(series: Sequence[Series]) -> Figure:
    """The share of elements by their error in sigmas, float64 and float32 side by side."""
    drawing = Figure(figsize=(8.5, 3.6), layout="constrained")
    programs = list(dict.fromkeys(one.program for one in series))
    smallest = min((share for one in series for share in one.shares if share), default=1e-6)
    for axes, dtype in zip(drawing.subplots(1, len(BOTH), sharey=True), BOTH, strict=True):
        for one in series:
            if one.dtype == dtype:
                _steps(axes, one.shares, COLOURS[programs.index(one.program) % len(COLOURS)], one.program)
        _steps(axes, by_chance(), "#333333", BY_CHANCE, "--")
        axes.axvline(C, color="#c0392b", lw=1)
        axes.set(yscale="log", xlim=(0, NUM_BINS / BINS_PER_SIGMA), ylim=(smallest / 2, 1.0))
        axes.set_title(dtype, fontsize=9, loc="left")
        axes.set_xlabel(f"error in sigmas (red: C = {C:g}; last step: all larger errors)", fontsize=8)
        axes.grid(color="#999999", alpha=0.3, lw=0.6)
    drawing.axes[0].set_ylabel("share of the elements", fontsize=8)
    page.add_legend(drawing, ncols=3)
    return drawing


def _steps(axes: Any, shares: Sequence[float], colour: str, label: str, style: str = "-") -> None:
    edges = [i / BINS_PER_SIGMA for i in range(NUM_BINS + 1)]
    axes.stairs(shares, edges, color=colour, label=label, lw=1.3, ls=style)
