"""The picture of a run: what its agents catch, miss and earn, the outer loss, the norms, and how fresh agents do."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from port.meta_train.checkpoint import Files
from port.storage import plots
from port.storage.files import read_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Columns of the log that share a panel, as in the original's notebook.
PANELS = (("pos_rewards", "neg_rewards"), ("rewards",), ("meta_loss",), ("meta_grad_norm",), ("meta_up_norm",))


def _draw_evaluations(axis: Any, rows: list[dict[str, str]]) -> None:
    """How fresh agents do, by board."""
    by_board = defaultdict(list)
    for row in rows:
        by_board[row["board"]].append((int(row["step"]), float(row["life_catch_rate"]), float(row["final_catch_rate"])))
    for board, points in sorted(by_board.items()):
        table = np.array(points)
        at = np.unique(table[:, 0])
        axis.plot(at, [table[table[:, 0] == s, 1].mean() for s in at], label=f"{board}, whole lifetime")
        axis.plot(at, [table[table[:, 0] == s, 2].mean() for s in at], "--", label=f"{board}, at its end")
    axis.set(title="catch rate of fresh agents", xlabel="meta-update", ylim=(0, 1))
    if by_board:
        axis.legend(fontsize=7)


def figure_of(files: Files) -> Figure | None:
    """The panels that the original's notebook shows, of the population's means, and one of the fresh agents.

    None where nothing is logged yet.
    """
    columns = plots.read_columns(files.log)
    if not columns:
        return None
    figure, axes = plots.make_panels(len(PANELS) + 1, 4 * (len(PANELS) + 1), 3.2)
    for axis, names in zip(axes, PANELS, strict=False):
        for name in names:
            plots.draw_smoothed(axis, columns["step"], columns[name], name)
        axis.set(title=", ".join(names), xlabel="meta-update")
        if len(names) > 1:
            axis.legend(fontsize=7)
    _draw_evaluations(axes[-1], read_rows(files.evaluations))
    return figure


def draw(files: Files) -> Path | None:
    """Writes `curve.png` beside the log, and says where; None where nothing is logged yet."""
    figure = figure_of(files)
    return plots.save_curve(figure, files.out) if figure else None
