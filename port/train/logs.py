"""What a run leaves for the eye: a CSV file, TensorBoard's events, a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from port.storage import plots
from port.storage.files import CsvLog

PANELS = {"total_loss": "loss", "entropy": "entropy of the policy", "global_gradient_norm": "norm of the gradient"}
OF_EPISODES = ("frames", "episodes", "return", "return_100", "length")


class Logs:
    """A row for each rollout, in both places; in the CSV file alone without tensorboard."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """Keeps what was logged before `first_step`, and drops the rest."""
        self.csv = CsvLog(folder / "log.csv", first_step)
        self._events: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._events = SummaryWriter(str(folder), purge_step=first_step or None)

    def add(self, row: Mapping[str, float]) -> None:
        """Logs the row of a rollout; NaN stands for what is not known yet, and is left empty."""
        step = int(row["step"])
        self.csv.add({name: "" if math.isnan(x) else f"{x:.9g}" for name, x in row.items()})
        if self._events is None:
            return
        for name, x in row.items():
            if name != "step" and not math.isnan(x):
                group = "episodes" if name in OF_EPISODES else "learner"
                self._events.add_scalar(f"{group}/{name}", x, step)

    def flush(self) -> None:
        """Puts everything on disk."""
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Ends the events' thread."""
        if self._events is not None:
            self._events.close()
            self._events = None


def draw(folder: Path, title: str) -> Path | None:
    """Writes `curve.png` beside the log, and says where; None where nothing is logged yet."""
    columns = plots.read_columns(folder / "log.csv")
    if not columns:
        return None
    from matplotlib import ticker

    names = [name for name in PANELS if name in columns]
    figure, axes = plots.make_panels(1 + len(names), 5 + 3.6 * len(names), 3.4)
    frames, is_known = columns["frames"], np.isfinite(columns["return"])
    first, *others = axes
    first.plot(
        frames[is_known], columns["return"][is_known], ".", alpha=0.3, markersize=3, label="episodes of one rollout"
    )
    first.plot(frames, columns["return_100"], linewidth=1.6, label="mean of the last 100")
    first.set(title=f"{title}: return of episodes")
    first.legend(fontsize=7, loc="best")
    for axis, name in zip(others, names, strict=True):
        plots.draw_smoothed(axis, frames, columns[name])
        axis.set(title=PANELS[name])
    for axis in axes:
        axis.set(xlabel="environment steps")
        axis.xaxis.set_major_locator(ticker.MaxNLocator(5))
        axis.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))  # 100k, not 100000
    return plots.save_curve(figure, folder)
