"""`python -m parity ci`: the gate of a repository: check, tests, what changed, and a summary as GitHub shows it."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

from parity.ci import badge, gate, github
from parity.ci.summary import Report
from parity.commands import check, compare, diagnose
from parity.compare import NO_NUMBERS, Row
from parity.errors import CannotRun, FixtureError
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
WORST_FIRST = (2, 1, 3, 0)  # exit codes
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
    args.json, junit = args.json or args.out / RESULT, args.out / JUNIT
    for left_over in (args.json, junit):
        left_over.unlink(missing_ok=True)
    try:
        code, printed = _captured(lambda: check.run(args))
    except Exception as error:  # `exit_code` makes a sentence of it; the summary must have it too
        _publish(args, Report(2, {}, [], None, "", "", str(error), ""))
        print(github.annotation("error", "disco-parity could not run", str(error)))
        raise
    print(printed, end="", flush=True)
    code = min(code, code if args.without_tests else gate.run(args, junit), key=WORST_FIRST.index)
    report = _report(args, code, printed, gate.in_words(junit))
    _publish(args, report)
    _annotate(args, report)
    _write_repros(args, report)
    return code


def _captured(command: Callable[[], int]) -> tuple[int, str]:
    """What a command returns, and what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        return command(), printed.getvalue()


def _report(args: argparse.Namespace, code: int, printed: str, tests_in_words: str) -> Report:
    head = read(args.json)
    by_layer, compared = None, ""
    if args.base is not None and args.base.is_file():
        try:
            base = read(args.base)
            found = changes(base.rows, head.rows)
            by_layer = {cells[1]: f"{cells[0]}: {cells[3]} σ" for cells in reversed(compare.by_layer(found))}
            compared = "\n".join(compare.in_markdown(base, head, found))
        except CannotRun as error:  # of another version, say
            compared = f"No comparison: {error}"
    diagnosis = _diagnosis(args) if any(not row.equal for row in head.rows) else ""
    check_json = json.loads(args.json.read_text(encoding="utf-8"))
    return Report(code, check_json, head.rows, by_layer, compared, tests_in_words, diagnosis, printed)


def _diagnosis(args: argparse.Namespace) -> str:
    try:
        return _captured(lambda: diagnose.run(argparse.Namespace(**{**vars(args), "json": None})))[1]
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
    outputs |= {"result": args.json} if args.json.is_file() else {}
    github.append(github.OUTPUT, "".join(f"{name}={value}\n" for name, value in outputs.items()))
    print(f"{report.headline()}. The summary is {args.out / SUMMARY}")


def _annotate(args: argparse.Namespace, report: Report) -> None:
    """Prints one annotation for each layer that differs, the first in data-flow order first."""
    if github.WORKSPACE not in os.environ:
        return
    implementation = load(args.impl)
    for layer in report.different[:MOST_ANNOTATIONS]:
        rows = [row for row in report.unexpected if row.layer == layer]
        message = max(rows, key=lambda row: row.ratio).sentence()
        place = github.place_of(implementation, layer)
        print(github.annotation("error", f"{layer}: {len(rows)} comparisons differ", message, place))
    for layer, change in list((report.changes or {}).items())[:MOST_ANNOTATIONS]:
        if layer not in report.different and change.startswith(What.SHRUNK):
            place = github.place_of(implementation, layer)
            print(github.annotation("warning", f"{layer}: still equal, but less exact", change, place))


def _write_repros(args: argparse.Namespace, report: Report) -> None:
    """A file for each layer that differs, on the smallest recorded case whose numbers differ."""
    store = Store()
    for layer in report.different:
        rows = [row for row in report.unexpected if row.layer == layer and not _has_no_numbers(row)]
        goldens = {case: load_case(store, layer, case) for case in {row.case for row in rows}}
        sizes = {case: sum(value.size for value in golden.inputs.values()) for case, golden in goldens.items()}
        row = min(rows, key=lambda row: sizes[row.case], default=None)
        if row is not None and sizes[row.case] <= LARGEST_REPRO:
            repro.write(goldens[row.case], row, args.impl, args.out / "repro")


def _has_no_numbers(row: Row) -> bool:
    """Whether there is no answer to compare, or the golden has only a sketch of it."""
    return row.elements == SKETCH_WIDTH or (row.problem is not None and row.problem.kind in NO_NUMBERS)
