"""The job summary: a verdict, a table by layer with what changed against a base, and details that fold away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from parity.compare import Row
from parity.goldens.table import LayerSummary, columns_of, summarise
from parity.layers import REGISTRY
from parity.tolerance import C

VERDICTS = {0: "equal", 1: "different", 3: "nothing compared"}  # by exit code; all else is that it could not run
COULD_NOT_RUN = "could not run"
SIGNS = {"equal": "✔", "different": "✘"}


@dataclass(frozen=True)
class Report:
    """What a run of the gate came to.

    Attributes:
        code: exit code of the gate.
        printed: what `check` printed, or why it could not run.
        tests: what pytest came to, in words.
        check: what `check --json` wrote; empty if it could not run.
        rows: its comparisons.
        changes: of layers against the base, in words; None without a base.
        compared: the comparison with the base, as Markdown.
        diagnosis: what `diagnose` printed; empty where nothing differs.
    """

    code: int
    printed: str
    tests: str = ""
    check: dict[str, Any] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    changes: dict[str, str] | None = None
    compared: str = ""
    diagnosis: str = ""

    @property
    def verdict(self) -> str:
        """The verdict in a word or two."""
        return VERDICTS.get(self.code, COULD_NOT_RUN)

    @cached_property
    def different(self) -> dict[str, list[Row]]:
        """By layer, in data-flow order: the comparisons that differ and are not accepted as known."""
        by_layer: dict[str, list[Row]] = {}
        for row, values in zip(self.rows, self.check.get("comparisons", ()), strict=True):
            if not (row.equal or values["accepted"]):
                by_layer.setdefault(row.layer, []).append(row)
        return by_layer

    @cached_property
    def layers(self) -> list[LayerSummary]:
        """What was compared, by layer."""
        return summarise(list(self.rows))

    @property
    def share(self) -> float:
        """The share of all layers on which the verdict holds."""
        return (len(self.different) or len(self.layers)) / len(REGISTRY)

    def markdown(self) -> str:
        """The whole summary."""
        wrong = [layer for layer in self.layers if layer.layer in self.different]
        right = [layer for layer in self.layers if layer.layer not in self.different]
        missing = [layer for layer in self.check.get("not_provided", ()) if layer in REGISTRY]
        parts = [f"## {SIGNS.get(self.verdict, '!')} {self.headline()}", *self._facts(), *self._table(wrong)]
        parts += ["### Diagnosis", verbatim(self.diagnosis)] if self.diagnosis else []
        parts += ["### Against the base", self.compared] if self.compared else []
        if right:
            parts += folded(f"{len(right)} layers without a new difference", self._table(right))
        if missing:
            parts += folded(f"{len(missing)} layers not provided", [", ".join(f"`{name}`" for name in missing)])
        if not self.check:
            parts.append(self.printed)
        else:
            parts += folded("<code>python -m parity check</code>", [verbatim(self.printed)])
        return "\n\n".join(parts) + "\n"

    def headline(self) -> str:
        """The verdict in a sentence."""
        name, compared = self.check.get("implementation", "disco-parity"), len(self.layers)
        if self.verdict == "equal":
            return f"{name} equals Disco in all {compared} layers compared"
        if self.different:
            return f"{name} differs from Disco in {len(self.different)} of {compared} layers"
        reasons = {"different": "the gate failed, and no recorded comparison is new"}
        return f"{name}: {reasons.get(self.verdict, self.verdict)}"

    def _facts(self) -> list[str]:
        """What was compared with what, as a list."""
        facts = {"tests": self.tests}
        if check := self.check:
            largest = max((row.sigmas for row in self.rows if row.equal), default=0.0)
            accepted, layers = sum(values["accepted"] for values in check["comparisons"]), len(self.layers)
            facts = {
                "candidate": f"`{check['implementation']}`, {check['description']}",
                "reference": f"disco_rl, commit {check['original'][:7]}; goldens `{check['goldens'][:7]}`",
                "coverage": f"{layers} of {len(REGISTRY)} layers ({layers / len(REGISTRY):.0%})",
                "comparisons": f"{len(self.rows):,}, of which {sum(map(len, self.different.values())):,} differ",
                "as expected": f"{accepted:,} more differ" if accepted else "",
                "largest error where equal": f"{largest:.2g} of {C:g} sigmas",
                "not run": f"{len(check['skipped'])} cases, without Disco103's weights" if check["skipped"] else "",
                **facts,
            }
        return ["\n".join(f"- **{name}**: {fact}" for name, fact in facts.items() if fact)]

    def _table(self, layers: Iterable[LayerSummary]) -> list[str]:
        """Worst errors by layer, in sigmas; for those that have no number, what is wrong."""
        columns = columns_of(self.rows)
        titles = [f"VJP {dtype}" if kind == "vjp" else dtype for kind, dtype in columns]
        change = [] if self.changes is None else ["of the tolerance, base -> head"]
        rows = [
            [f"`{s.layer}`", f"{s.different} of {s.comparisons}", *(in_sigmas(s.worst[column]) for column in columns)]
            + [(self.changes or {}).get(s.layer, "–")] * len(change)
            for s in layers
        ]
        return ["\n".join(table(("layer", "differ", *titles, *change), rows))] if rows else []


def in_sigmas(row: Row | None) -> str:
    """The worst error of a layer's outputs."""
    if row is None:
        return "–"
    text = str(row.problem.kind) if row.problem else f"{row.sigmas:.2g}\N{NO-BREAK SPACE}σ"
    return text if row.equal else f"**{text}**"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table of Markdown."""
    lines = [titles, ["---"] * len(titles), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def folded(title: str, parts: Iterable[str]) -> list[str]:
    """Parts of a text below a title that opens them."""
    return [f"<details><summary>{title}</summary>", *parts, "</details>"]


def verbatim(text: str) -> str:
    """Text as it was printed."""
    return f"````text\n{text.rstrip()}\n````"
