"""Pictures of a run's log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from port.storage.files import read_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """The columns of a log of numbers, NaN where empty; none where nothing is logged yet."""
    rows = read_rows(path)
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else ())}


def smooth(values: np.ndarray, width: int = 50) -> np.ndarray:
    """Mean over the last `width` entries, fewer at the start."""
    total = np.cumsum(np.concatenate(([0.0], values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return (total[ends] - total[starts]) / (ends - starts)


def make_panels(count: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    """A figure with some panels in a row, and their axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def draw_smoothed(axis: Any, x: np.ndarray, values: np.ndarray, label: str | None = None) -> None:
    """A column as it is, faintly, and smoothed; without what is not known."""
    known = np.isfinite(values)
    (line,) = axis.plot(x[known], smooth(values[known]), linewidth=1.4, label=label)
    axis.plot(x[known], values[known], alpha=0.25, linewidth=0.7, color=line.get_color())


def save_curve(figure: Figure, folder: Path) -> Path:
    """Writes `curve.png`, and says where."""
    path = folder / "curve.png"
    figure.savefig(path, dpi=110)
    return path
