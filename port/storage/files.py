"""Files that a run leaves: replaced as a whole, or logs that are cut back to a checkpoint."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path


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


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a log by column; none where there is no file."""
    if not path.is_file():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))
