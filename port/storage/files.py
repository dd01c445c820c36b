"""Files that a run leaves: replaced as a whole, or logs that are cut back to a checkpoint; and smoothed columns."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def replace_file(path: Path, content: bytes) -> None:
    """Writes beside the target, to the disk, and only then puts it in place."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class CsvLog:
    """Rows that begin with the number of a step; cut back to a checkpoint when a run continues."""

    def __init__(self, path: Path, first_step: int) -> None:
        """Keeps the whole rows below `first_step`, and drops the rest."""
        self.path = path
        self._header: list[str] = []
        whole: list[str] = []
        if path.is_file():
            for i, line in enumerate(path.read_text().splitlines(keepends=True)):
                if line.endswith("\n") and (i == 0 or self._step(line) < first_step):
                    whole.append(line)
        if whole:
            self._header = whole[0].strip().split(",")
        replace_file(path, "".join(whole).encode())

    def _step(self, line: str) -> int:
        try:
            return int(line.split(",", 1)[0])
        except ValueError:
            raise ValueError(f"{self.path} is no log of a run: {line.strip()[:40]!r} has no step.") from None

    def add(self, row: Mapping[str, float | int | str]) -> None:
        """Appends a row, and the header before the first."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(row) if not self._header else self._header, lineterminator="\n")
        if not self._header:
            self._header = list(row)
            writer.writeheader()
        writer.writerow(row)
        with self.path.open("a") as file:
            file.write(text.getvalue())

    def rows(self) -> Sequence[dict[str, str]]:
        """All rows so far."""
        with self.path.open() as file:
            return list(csv.DictReader(file))


def smooth(values: np.ndarray, width: int = 50) -> np.ndarray:
    """Mean over the last `width` entries, fewer at the start."""
    total = np.cumsum(np.concatenate(([0.0], values)))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return (total[ends] - total[starts]) / (ends - starts)
