"""`python -m parity ci`: the gate of a repository: check, tests, what changed, and a summary as GitHub shows it."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from parity.ci import badge, gate, github
from parity.ci.summary import Report
from parity.command_line import ExitCode, write_json
from parity.commands import check, compare, diagnose
from parity.compare import NO_NUMBERS, Row
from parity.errors import CannotRun, FixtureError, NothingCompared
from parity.files import write_atomically
from parity.goldens.check import load as load_case
from parity.goldens.compared import What, changes, read
from parity.goldens.store import Store
from parity.implementation import load
from parity.live import repro
from parity.sketch import SKETCH_WIDTH

HELP = "run the gate in CI: check, tests, the change against a base, and a summary for GitHub"
EXAMPLE = "python -m parity ci --impl my_adapter:implementation --base base/parity.json --out parity-results"
RESULT, JUNIT, SUMMARY = "parity.json", "junit.xml", "summary.md"
WORST_FIRST = (ExitCode.COULD_NOT_RUN, ExitCode.DIFFERENT, ExitCode.NOTHING_COMPARED, ExitCode.EQUAL)
MOST_ANNOTATIONS = 10  # of a level; GitHub shows no more of a step
LARGEST_REPRO = 5000  # numbers among the inputs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options: those of `check`, and where results are."""
    check.add_arguments(parser)
    parser.add_argument("--base", type=Path, metavar="FILE", help="parity.json of the base; need not be there")
    parser.add_argument("--out", type=Path, default=Path("parity-results"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--without-tests", action="store_true", help="leave out `pytest --pyargs parity`")


def run(args: argparse.Namespace) -> int:
    """The worst exit code of check and tests; what changed against the base is shown, and fails nothing."""
    args.out.mkdir(parents=True, exist_ok=True)
    asked, args.json, junit = args.json, args.out / RESULT, args.out / JUNIT
    for left_over in (args.json, junit):
        left_over.unlink(missing_ok=True)
    try:
        code, printed = _captured(lambda: check.run(args))
        print(printed, end="", flush=True)
        code = min(code, code if args.without_tests else gate.run(args, junit), key=WORST_FIRST.index)
        report = _report(args, Report(code, printed, gate.in_words(junit)))
        write_json(asked, report.check)
    except Exception as error:  # the command line makes a sentence of it; the summary must have it too
        is_empty = isinstance(error, NothingCompared)
        _publish(args, Report(ExitCode.NOTHING_COMPARED if is_empty else ExitCode.COULD_NOT_RUN, str(error)))
        github.annotate("error", "disco-parity gave no verdict", str(error))
        raise
    _publish(args, report)
    _annotate(args, report)
    _write_repros(args, report)
    return report.code


def _captured(command: Callable[[], int]) -> tuple[int, str]:
    """What a command returns, and what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        return command(), printed.getvalue()


def _report(args: argparse.Namespace, report: Report) -> Report:
    """Adds what is in the result of `check`, what changed against the base, and a diagnosis."""
    head = read(args.json)
    report = replace(report, check=json.loads(args.json.read_text(encoding="utf-8")), rows=head.rows)
    if args.base is not None and args.base.is_file():
        try:
            base = read(args.base)
            found = changes(base.rows, head.rows)
            cells = reversed(compare.by_layer(found))  # of a layer with several kinds of change, the worst stays
            by_layer = {layer: f"{what}: {ratio}" for what, layer, _, _, ratio, _ in cells}
            report = replace(report, changes=by_layer, compared="\n".join(compare.in_markdown(base, head, found)))
        except CannotRun as error:  # of another version, say
            report = replace(report, compared=f"No comparison: {error}")
    return replace(report, diagnosis=_diagnosis(args)) if report.different else report


def _diagnosis(args: argparse.Namespace) -> str:
    try:
        lines = _captured(lambda: diagnose.run(argparse.Namespace(**{**vars(args), "json": None})))[1].splitlines()
        return "\n".join(fill(line, 116, subsequent_indent=" " * 11) for line in lines[1:])  # the first is the heading
    except (CannotRun, FixtureError) as error:
        return f"No diagnosis: {error}"
    except Exception as error:  # whatever it is, the verdict must not be lost with it
        return f"The diagnosis failed with {type(error).__name__}: {error}"


def _publish(args: argparse.Namespace, report: Report) -> None:
    """Writes summary, badge and outputs, here and where GitHub looks for them."""
    text, goldens = report.markdown(), report.check.get("goldens", "")
    write_atomically(args.out / SUMMARY, text.encode())
    badge.write(args.out, report.verdict, report.share, goldens)
    github.append(github.SUMMARY, github.cut(text))
    outputs = {"verdict": report.verdict, "goldens": goldens, "different": len(report.different)}
    outputs |= {"result": args.json} if report.check else {}
    github.append(github.OUTPUT, "".join(f"{name}={value}\n" for name, value in outputs.items()))
    print(f"{report.headline()}. The summary is {args.out / SUMMARY}")


def _annotate(args: argparse.Namespace, report: Report) -> None:
    """One annotation for each layer that differs, in data-flow order, and for each that is less exact than it was."""
    implementation = load(args.impl)
    for layer, rows in list(report.different.items())[:MOST_ANNOTATIONS]:
        message = max(rows, key=lambda row: row.ratio).sentence()
        title = f"{layer}: {len(rows)} comparisons differ"
        github.annotate("error", title, message, github.place_of(implementation, layer))
    shrunk = [layer for layer, change in (report.changes or {}).items() if change.startswith(What.SHRUNK)]
    for layer in [layer for layer in shrunk if layer not in report.different][:MOST_ANNOTATIONS]:
        title, place = f"{layer}: still equal, but less exact", github.place_of(implementation, layer)
        github.annotate("warning", title, (report.changes or {})[layer], place)


def _write_repros(args: argparse.Namespace, report: Report) -> None:
    """A file for each layer that differs, on the smallest recorded case whose numbers differ."""
    store = Store()
    for layer, different in report.different.items():
        rows = [row for row in different if not _has_no_numbers(row)]
        goldens = {case: load_case(store, layer, case) for case in {row.case for row in rows}}
        sizes = {case: sum(value.size for value in golden.inputs.values()) for case, golden in goldens.items()}
        row = min(rows, key=lambda row: sizes[row.case], default=None)
        if row is not None and sizes[row.case] <= LARGEST_REPRO:
            repro.write(goldens[row.case], row, args.impl, args.out / "repro")


def _has_no_numbers(row: Row) -> bool:
    """Whether there is no answer to compare, or the golden has only a sketch of it."""
    return row.elements == SKETCH_WIDTH or (row.problem is not None and row.problem.kind in NO_NUMBERS)
