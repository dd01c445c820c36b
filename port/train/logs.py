"""What a run leaves for the eye: a CSV file, TensorBoard's events, a plot."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from port.storage.files import CsvLog, smooth

PANELS = {"total_loss": "loss", "entropy": "entropy of the policy", "global_gradient_norm": "norm of the gradient"}


def tensorboard_writer(folder: Path, first_step: int) -> Any:
    """A writer of TensorBoard's events that drops what an interrupted run wrote later; None without tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=first_step if first_step else None)


class Logs:
    """A row for each rollout, in both places."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """Keeps what was logged before `first_step`, and drops the rest."""
        self.csv = CsvLog(folder / "log.csv", first_step)
        self._events = tensorboard_writer(folder, first_step)

    @property
    def has_events(self) -> bool:
        """Whether TensorBoard's events are written."""
        return self._events is not None

    def add(self, row: Mapping[str, float]) -> None:
        """Logs the row of a rollout; NaN stands for what is not known yet, and is left empty."""
        step = int(row["step"])
        self.csv.add({name: "" if math.isnan(x) else f"{x:.9g}" for name, x in row.items()})
        if self._events is None:
            return
        for name, x in row.items():
            if name != "step" and not math.isnan(x):
                group = "episodes" if name in ("frames", "episodes", "return", "return_100", "length") else "learner"
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


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """The columns of a log, NaN where empty."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in (rows[0] if rows else ())}


def draw(folder: Path, title: str) -> Path | None:
    """Writes `curve.png` beside the log, and says where; None where nothing is logged yet."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    columns = read_columns(folder / "log.csv")
    if not columns:
        return None
    panels = [name for name in PANELS if name in columns]
    figure, axes = plt.subplots(1, 1 + len(panels), figsize=(5 + 3.6 * len(panels), 3.4), layout="constrained")
    frames, found = columns["frames"], np.isfinite(columns["return"])
    first = np.atleast_1d(axes)[0]
    first.plot(frames[found], columns["return"][found], ".", alpha=0.3, markersize=3, label="episodes of one rollout")
    first.plot(frames, columns["return_100"], linewidth=1.6, label="mean of the last 100")
    first.set(title=f"{title}: return of episodes", xlabel="environment steps")
    first.legend(fontsize=7, loc="best")
    for axis, name in zip(np.atleast_1d(axes)[1:], panels, strict=True):
        known = np.isfinite(columns[name])
        axis.plot(frames[known], columns[name][known], alpha=0.25, linewidth=0.7)
        axis.plot(frames[known], smooth(columns[name][known]), linewidth=1.4)
        axis.set(title=PANELS[name], xlabel="environment steps")
    for axis in np.atleast_1d(axes):
        axis.xaxis.set_major_locator(ticker.MaxNLocator(5))
        axis.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))  # 100k, not 100000
    path = folder / "curve.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
