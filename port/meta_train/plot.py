"""The picture of a run: what its agents earn, the outer loss, the norms, and how fresh agents do."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from port.meta_train.run import Files

PANELS = ("rewards", "meta_loss", "meta_grad_norm", "meta_up_norm")


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def smooth(values: np.ndarray, width: int = 50) -> np.ndarray:
    """Mean over the last `width` entries, fewer at the start."""
    total = np.cumsum(np.concatenate(([0.0], values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return (total[ends] - total[starts]) / (ends - starts)


def draw(files: Files) -> Path | None:
    """Writes `curve.png` beside the log, and says where; None where nothing is logged yet."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = _rows(files.log)
    if not rows:
        return None
    steps = np.array([int(row["step"]) for row in rows])
    figure, axes = plt.subplots(1, len(PANELS) + 1, figsize=(4 * (len(PANELS) + 1), 3.2), layout="constrained")
    for axis, name in zip(axes, PANELS, strict=False):
        values = np.array([float(row[name]) for row in rows])
        axis.plot(steps, values, alpha=0.25, linewidth=0.7)
        axis.plot(steps, smooth(values), linewidth=1.4)
        axis.set(title=name, xlabel="meta-update")
    by_board = defaultdict(list)
    for row in _rows(files.evaluations):
        by_board[row["board"]].append((int(row["step"]), float(row["life_catch_rate"]), float(row["final_catch_rate"])))
    for board, points in sorted(by_board.items()):
        table = np.array(points)
        at = np.unique(table[:, 0])
        axes[-1].plot(at, [table[table[:, 0] == s, 1].mean() for s in at], label=f"{board}, whole life")
        axes[-1].plot(at, [table[table[:, 0] == s, 2].mean() for s in at], "--", label=f"{board}, at its end")
    axes[-1].set(title="catch rate of fresh agents", xlabel="meta-update", ylim=(0, 1))
    if by_board:
        axes[-1].legend(fontsize=7)
    path = files.out / "curve.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
