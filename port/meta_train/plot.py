"""The picture of a run: what its agents catch, miss and earn, the outer loss, the norms, and how fresh agents do."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from port.meta_train.run import Files
from port.storage.files import smooth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Columns of the log that share a panel, as in the original's notebook.
PANELS = (("pos_rewards", "neg_rewards"), ("rewards",), ("meta_loss",), ("meta_grad_norm",), ("meta_up_norm",))


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def _draw_log(axis: Any, rows: list[dict[str, str]], names: Sequence[str]) -> None:
    """One panel: each column as it is, faintly, and smoothed."""
    steps = np.array([int(row["step"]) for row in rows])
    for name in names:
        values = np.array([float(row[name]) for row in rows])
        (line,) = axis.plot(steps, smooth(values), linewidth=1.4, label=name)
        axis.plot(steps, values, alpha=0.25, linewidth=0.7, color=line.get_color())
    axis.set(title=", ".join(names), xlabel="meta-update")
    if len(names) > 1:
        axis.legend(fontsize=7)


def _draw_evaluations(axis: Any, rows: list[dict[str, str]]) -> None:
    """How fresh agents do, by board."""
    by_board = defaultdict(list)
    for row in rows:
        by_board[row["board"]].append((int(row["step"]), float(row["life_catch_rate"]), float(row["final_catch_rate"])))
    for board, points in sorted(by_board.items()):
        table = np.array(points)
        at = np.unique(table[:, 0])
        axis.plot(at, [table[table[:, 0] == s, 1].mean() for s in at], label=f"{board}, whole life")
        axis.plot(at, [table[table[:, 0] == s, 2].mean() for s in at], "--", label=f"{board}, at its end")
    axis.set(title="catch rate of fresh agents", xlabel="meta-update", ylim=(0, 1))
    if by_board:
        axis.legend(fontsize=7)


def figure_of(files: Files) -> Figure | None:
    """The panels that the original's notebook shows, of the population's means, and one of the fresh agents.

    None where nothing is logged yet.
    """
    from matplotlib.figure import Figure

    rows = _rows(files.log)
    if not rows:
        return None
    figure = Figure(figsize=(4 * (len(PANELS) + 1), 3.2), layout="constrained")
    axes = figure.subplots(1, len(PANELS) + 1)
    for axis, names in zip(axes, PANELS, strict=False):
        _draw_log(axis, rows, names)
    _draw_evaluations(axes[-1], _rows(files.evaluations))
    return figure


def draw(files: Files) -> Path | None:
    """Writes `curve.png` beside the log, and says where; None where nothing is logged yet."""
    figure, path = figure_of(files), files.out / "curve.png"
    if figure is None:
        return None
    figure.savefig(path, dpi=110)
    return path
