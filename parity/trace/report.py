"""`python -m parity trace`: the error along the data flow of one whole learner step, tap by tap.

Two errors stand beside each other. A layer's own error: it is given what the original's layers gave (teacher forcing).
Its error in the chain: it is given what the candidate's own layers before it gave, so that it inherits theirs. The
first layer with an error of its own is where to look; what comes after it inherits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from rich.table import Table

from parity.compare import Row
from parity.errors import CannotRun
from parity.goldens.judge import Judge
from parity.goldens.store import Golden, Store
from parity.goldens.table import worst
from parity.implementation import Implementation
from parity.layers import REGISTRY
from parity.layers.spec import Arrays, Settings, upstream
from parity.trace.data_flow import trace

CASE = "teacher_forced"
ROOT = "agent/learner_step"


@dataclass(frozen=True)
class Tap:
    """One layer on the way.

    Attributes:
        layer: its name.
        own: its worst row, teacher-forced; None if the candidate does not provide it.
        inherited: its worst error relative to the output's scale in the candidate's own chain; None if it did not run.
    """

    layer: str
    own: Row | None
    inherited: float | None

    @property
    def differs(self) -> bool:
        """Whether it has an error of its own."""
        return self.own is not None and not self.own.equal


def taps(store: Store, candidate: Implementation) -> list[Tap]:
    """Errors of every traced layer, in data-flow order."""
    goldens = {layer: store.load(layer, CASE) for layer in store.layers() if CASE in store.cases(layer)}
    chain = _own_chain(goldens, candidate)
    judge = Judge(candidate, ("float64",))
    found = []
    for layer, golden in goldens.items():
        own = judge.rows(replace(golden, vjps={})) if layer in candidate.layers else []
        inherited = worst(judge.rows_of(chain[layer], golden, "value", "float64")) if layer in chain else None
        found.append(Tap(layer, worst(own), inherited.max_rel if inherited else None))
    return found


def _own_chain(goldens: dict[str, Golden], candidate: Implementation) -> dict[str, Arrays]:
    """Outputs of each layer when the candidate feeds itself; the recorded original plays a layer without an answer."""
    outputs: dict[str, Arrays] = {}

    judge = Judge(candidate, ("float64",))

    def run(layer: str, inputs: Arrays, settings: Settings) -> Arrays:
        if layer in candidate.layers and (answer := judge.outputs(layer, inputs, settings)):
            outputs[layer] = answer
            return answer
        if layer not in goldens:
            raise CannotRun(f"{candidate.name} gives no answer for {layer}, and it was not recorded on this way.")
        return goldens[layer].outputs

    root = goldens[ROOT]
    trace(run, root.inputs, {**REGISTRY[ROOT].settings, **root.settings})
    return outputs


def first_divergence(found: list[Tap]) -> str:
    """One sentence: which layer is the first to differ by an error of its own."""
    differing = [tap.layer for tap in found if tap.differs]
    if not differing:
        return "No layer differs by an error of its own."
    first = differing[0]
    feeding = upstream(first) & {tap.layer for tap in found}
    bad = sorted(feeding & set(differing))
    missing = sorted(feeding & {tap.layer for tap in found if tap.own is None})
    rest = "all that feeds it is equal" if not bad else f"of what feeds it, {', '.join(bad)} differs as well"
    if not bad and missing:
        rest = f"of what feeds it, all that is provided is equal (not provided: {', '.join(missing)})"
    return f"The first layer that differs is {first}; {rest}."


FLOOR = 1e-18


def share(error: float) -> float:
    """Where an error stands between 1e-18 (0) and 1 (1) on a logarithmic scale."""
    return float(1.0 - np.log10(min(max(error, FLOOR), 1.0)) / np.log10(FLOOR))


def bar(error: float | None, width: int = 6) -> str:
    """An error as a bar."""
    if error is None:
        return ""
    return "█" * round(width * share(error)) or "▏"


def terminal_table(found: list[Tap]) -> Table:
    """The table of `python -m parity trace`: numbers, and a bar for each error from 1e-18 to 1."""
    table = Table(box=None, pad_edge=False)
    for heading in ("layer", "own error", "", "in chain", "", "verdict"):
        table.add_column(heading, no_wrap=True)
    for tap in found:
        own = tap.own.max_rel if tap.own is not None else None
        verdict = "not provided" if tap.own is None else "DIFFERS" if tap.differs else "equal"
        cells = [f"{error:.1e}" if error is not None else "–" for error in (own, tap.inherited)]
        style = "red" if tap.differs else None
        table.add_row(tap.layer, cells[0], bar(own), cells[1], bar(tap.inherited), verdict, style=style)
    return table


def picture(found: list[Tap]) -> str:
    """The same as an SVG: each layer's own error (filled) and its error in the chain (outline), 1e-18 to 1."""
    row, left, right = 16, 190, 420

    def x(error: float) -> float:
        return left + right * share(error)

    lines = []
    for power in range(-18, 1, 3):
        at = x(10.0**power)
        lines.append(f'<line x1="{at:.0f}" x2="{at:.0f}" y1="20" y2="{24 + row * len(found)}" stroke="#ccc"/>')
        lines.append(f'<text x="{at:.0f}" y="14" text-anchor="middle">1e{power}</text>')
    for i, tap in enumerate(found):
        y = 32 + row * i
        colour = "#c0392b" if tap.differs else "#2a78d6"
        lines.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end" fill="{colour}">{tap.layer}</text>')
        if tap.inherited is not None:
            lines.append(f'<circle cx="{x(tap.inherited):.1f}" cy="{y}" r="5" fill="none" stroke="#777"/>')
        if tap.own is not None:
            lines.append(f'<circle cx="{x(tap.own.max_rel):.1f}" cy="{y}" r="3.5" fill="{colour}"/>')
    legend = "filled: the layer's own error, of its output's scale (red: it differs); outline: in the candidate's chain"
    lines.append(f'<text x="8" y="{46 + row * len(found)}">{legend}</text>')
    size = f'width="{left + right + 30}" height="{56 + row * len(found)}"'
    style = 'font-family="sans-serif" font-size="11" fill="#444"'
    body = "\n".join(lines)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n<rect {size} fill="white"/>\n{body}\n</svg>\n'
