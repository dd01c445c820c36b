"""What a speed run leaves behind: table, pictures, CSV files, JSON, and its section of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from rich.table import Table

from parity.files import canonical, write_atomically
from reports import page
from reports.speed.summary import ORIGINAL, PORT, TITLES, Found, Timing, exponent, in_words

TITLE = "Speed"
COLOUR = "#2a78d6"
PLOTTED = ("milliseconds", "lower_quartile", "upper_quartile", "cpu_milliseconds")
LABELS = {"disco_torch": "disco-torch", "port_compiled": "port (torch.compile)", ORIGINAL: "original"}
AXES = {"T": "transitions T", "B": "batch B", "A": "actions A", "board": "rows and columns of the board"}


def label(name: str) -> str:
    """An implementation's name for readers."""
    return LABELS.get(name, name)


def rows(found: Found) -> list[dict[str, Any]]:
    """One row for each task and implementation."""
    return [timing.row(name) for timing in found.timings.values() for name in timing.names]


def in_time(milliseconds: float) -> str:
    """A duration for readers."""
    if milliseconds >= 10_000:
        return f"{milliseconds / 1000:,.1f} s"
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def terminal_table(found: Found) -> Table:
    """The same for the terminal."""
    shown = Table("task", "implementation", "median", "quartiles", "processor time", "original / it", box=None)
    for task, timing in found.timings.items():
        for name in timing.names:
            low, high = (in_time(timing.milliseconds(name, share)) for share in (0.25, 0.75))
            cells = (in_time(timing.milliseconds(name)), f"{low} to {high}")
            cpu, ratio = in_time(timing.milliseconds(name, kind="cpu")), timing.ratio(ORIGINAL, name)
            shown.add_row(TITLES[task], label(name), *cells, cpu, "–" if ratio is None else f"{ratio:.2f}")
    return shown


def stage_figure(found: Found) -> Figure:
    """The port's learner step by stage."""
    stages = found.stage_rows()[::-1]
    drawing = Figure(figsize=(7.0, 0.28 * len(stages) + 0.9), layout="constrained")
    axes = drawing.subplots()
    bars = axes.barh([row["stage"] for row in stages], [row["milliseconds"] for row in stages], color=COLOUR)
    axes.bar_label(bars, [f"{row['milliseconds']:.1f} ms, {row['share']:.0%}" for row in stages], padding=3, fontsize=8)
    axes.set_xlabel("median milliseconds of the port's learner step", fontsize=9)
    axes.margins(x=0.22)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return drawing


def growth_figure(found: Found) -> Figure:
    """How the port's learner step's cost grows, an axis in each panel; both scales are logarithmic."""
    table = [growth.row() for growth in found.growth]
    by_axis = {axis: own for axis in AXES if (own := [row for row in table if row["axis"] == axis])}
    drawing = Figure(figsize=(2.9 * len(by_axis), 3.0), layout="constrained")
    panels = drawing.subplots(1, len(by_axis), sharey=True, squeeze=False)[0]
    for panel, (axis, own) in zip(panels, by_axis.items(), strict=True):
        wall, low, high, cpu = ([row[name] for row in own] for name in PLOTTED)
        values = [row["value"] for row in own]
        panel.loglog(values, wall, "o-", color=COLOUR, lw=1.6, ms=4, label=PORT)
        panel.fill_between(values, low, high, color=COLOUR, alpha=0.18, lw=0)
        panel.loglog(values, cpu, "--", color=COLOUR, lw=1.0, alpha=0.8, label=f"{PORT}, processor time")
        panel.set_xticks(values, [str(value) for value in values])
        panel.set_xticks([], minor=True)
        panel.set_xlabel(AXES[axis], fontsize=9)
        panel.set_title(f"processor time ~ {axis}^{exponent(own):.2f}", fontsize=9)
        panel.grid(color="#999999", alpha=0.3, lw=0.6)
        panel.tick_params(labelsize=8)
    panels[0].set_ylabel("milliseconds of a learner step", fontsize=9)
    panels[0].legend(frameon=False, fontsize=8)
    return drawing


def write_data(found: Found, out: Path) -> tuple[dict[str, str], list[str]]:
    """Writes CSV files, JSON and pictures; returns the pictures for the page and the files' names."""
    out.mkdir(parents=True, exist_ok=True)
    tables = {"speed": rows(found), "speed_stages": found.stage_rows() if found.stages else []}
    tables["speed_growth"] = [growth.row() for growth in found.growth]
    figures = {"speed_stages": stage_figure, "speed_growth": growth_figure}
    images, files = {}, ["speed.json"]
    write_atomically(out / "speed.json", canonical(found.as_json()).encode())
    for name, table in tables.items():
        if table:
            write_atomically(out / f"{name}.csv", pd.DataFrame(table).to_csv(index=False).encode())
            files.append(f"{name}.csv")
        if table and name in figures:
            drawing = figures[name](found)
            images[name] = page.picture(drawing)
            drawing.savefig(out / f"{name}.png", dpi=130)
            files.append(f"{name}.png")
    return images, files


def badge(found: Found) -> str:
    """The verdict in a word or two."""
    timing: Timing | None = found.timings.get("learner_step")
    ratio = timing.ratio(ORIGINAL) if timing else None
    return "port only" if ratio is None else f"learner {ratio:.2f} times as fast"


def section_of(found: Found, command: str, out: Path) -> page.Section:
    """The section and its files. Speed is not parity, so the section carries no verdict."""
    images, files = write_data(found, out)
    body = page.render(
        "speed.html.j2", found=found, rows=rows(found), images=images, titles=TITLES, label=label, in_time=in_time
    )
    machine = found.machine
    return page.Section(
        name="speed",
        title=TITLE,
        verdict=in_words(found),
        is_equal=all(goal.is_reached for goal in found.goals()),
        command=command,
        body=body,
        provenance=[
            ("threads", f"{machine['threads']} per implementation, on {machine['processors']} processors"),
            ("load", f"{machine['load_before']} before and {machine['load_after']} after (1-minute average)"),
            ("weights timed with", found.weights),
            ("size", machine["size"]),
        ],
        files=files,
        kind="beside",
        badge=badge(found),
    )
