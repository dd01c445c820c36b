"""What `check` prints: causes with their cases, the worst first, within forty lines; and what it can write down."""

import re
from dataclasses import replace

import numpy as np
import pytest

from parity.__main__ import main
from parity.commands.check import LAYERS, LINES, show
from parity.compare import Problem, ProblemKind, Row, compare
from parity.errors import place_of
from parity.goldens import expected
from parity.goldens.check import Outcome
from parity.goldens.findings import findings, lines
from parity.layers import REGISTRY
from tests import toy

INF = float("inf")
CALL = Problem(ProblemKind.CALL, "raised KeyError: 'x' (mine.py:3)", "KeyError", "mine.py:3")


def row(layer="ops/kl", case="plain", output="out", kind="value", dtype="float64", rel=0.0, problem=None):
    is_wrong = rel > 0 or problem is not None
    ratio = INF if problem else 1e3 * rel
    rel = INF if problem else rel
    return Row(layer, case, output, kind, dtype, rel, rel, ratio=ratio, equal=not is_wrong, problem=problem)


def headlines(rows, **options):
    return [each.headline() for each in findings([row for row in rows if not row.equal], rows, **options)]


def test_failures_are_grouped_by_layer_output_and_cause_the_worst_first():
    rows = [row(case=f"c{i}", rel=r) for i, r in enumerate((0.0, 0.2, 0.3))]
    rows += [row("values/retrace", output="q_target", rel=0.9), row("values/retrace", output="q_target", kind="vjp")]
    assert headlines(rows) == [
        "values/retrace q_target: values differ, 1 of 1 cases",
        "ops/kl out: values differ, 2 of 3 cases",
    ]


def test_a_gradient_that_is_not_stopped_is_called_that():
    one, none = np.ones(3), np.zeros(3)
    rows = [
        compare(("ops/importance_weight", f"c{i}", "pi"), "vjp", "float64", *sides, none)
        for i, sides in enumerate([(none, one), (none, 5 * one), (one, none), (one, one), (one, 2 * one)])
    ]
    assert sorted(headlines(rows)) == [
        "ops/importance_weight pi: gradient differs, 1 of 5 cases",
        "ops/importance_weight pi: gradient is zero, 1 of 5 cases",
        "ops/importance_weight pi: gradient not stopped, 2 of 5 cases",
    ]


def test_what_differs_in_float32_only_is_said_to():
    rows = [row(rel=0.1, dtype="float32"), row()]
    assert headlines(rows) == ["ops/kl out: values differ in float32 only, 1 of 1 cases"]
    assert headlines(rows[:1]) == ["ops/kl out: values differ, 1 of 1 cases"]


def test_one_exception_at_one_place_is_one_line_for_all_layers():
    rows = [row(layer, output=output, problem=CALL) for layer in ("ops/kl", "ops/entropy") for output in "ab"]
    rows.append(
        row("values/retrace", problem=replace(CALL, text="raised KeyError: 'y' (mine.py:9)", place="mine.py:9"))
    )
    assert headlines(rows) == [
        "ops/kl and 1 more layers: raised KeyError: 'x' (mine.py:3), 2 of 2 cases",
        "values/retrace: raised KeyError: 'y' (mine.py:9), 1 of 1 cases",
    ]


def test_outputs_of_a_layer_come_together_where_there_are_many():
    rows = [row(output=f"o{i}", rel=0.1 + i) for i in range(30)]
    assert headlines(rows, is_by_output=False) == ["ops/kl o29 and 29 more outputs: values differ, 1 of 1 cases"]
    assert len(lines(rows, rows, 20)) == 2
    assert len(lines(rows, rows, 100)) == 60
    assert len(lines(rows, rows, None)) == 60


@pytest.mark.parametrize("most", [3, 10, 25])
def test_lines_stay_within_their_number(most):
    rows = [row(layer, rel=0.1) for layer in list(REGISTRY)[:most] for _ in range(2)]
    for count in (1, most // 2, most - 1, most):
        chosen = [each for each in rows if each.layer in list(REGISTRY)[:count]]
        assert len(lines(chosen, chosen, most)) <= most
    assert lines(rows, rows, most)[-1] == "... and 2 more like these; --verbose shows them."


def of_many(rel):
    return [
        row(layer, f"c{case}", output, kind, dtype, rel)
        for layer in REGISTRY
        for case in range(3)
        for output in ("a", "b/c", "b/d")
        for kind in ("value", "vjp")
        for dtype in ("float64", "float32")
    ]


def test_a_check_of_all_layers_has_forty_lines_at_most(capsys):
    assert len(REGISTRY) > LINES
    outcome = Outcome(skipped={f"x{i}": "no weights" for i in range(90)}, not_provided=[f"y{i}" for i in range(90)])
    entries = [expected.Divergence(layer, "a", 0.0, 0.2, "known", "value") for layer in REGISTRY]
    for rel in (0.0, 0.1, 5.0):
        outcome.rows = of_many(rel)
        show(outcome, entries, "76 of 77", is_verbose=False)
        said = capsys.readouterr().out
        assert len(said.splitlines()) < LINES - 1  # provenance, and what --strict says
        assert ("values (9)" in said, "order is transforms/identity" in said) == (True, rel > 0)
        show(outcome, entries, "76 of 77", is_verbose=True)
        assert len(capsys.readouterr().out.splitlines()) > len(REGISTRY)
    assert "x4 and 85 more" in said


def test_few_layers_are_shown_one_by_one(capsys):
    few = list(REGISTRY)[:LAYERS]
    show(Outcome([row(layer) for layer in few]), [], "", is_verbose=False)
    said = capsys.readouterr().out
    assert all(layer in said for layer in few)


def test_what_is_accepted_is_said(capsys):
    rows = [row(rel=0.1), row("values/retrace", output="q_target", rel=0.5)]
    entries = [expected.Divergence("ops/kl", "out", 0.01, 1.0, "issue 12")]
    show(Outcome(rows), entries, "", is_verbose=False)
    said = capsys.readouterr().out
    assert "Accepted by --expected: ops/kl out, 1 comparisons, up to 0.1 of the scale (issue 12)." in said
    assert "2 different (1 of them expected)" in said
    assert "1 of 2 layers differ; the first in data-flow order is values/retrace." in said


@pytest.fixture
def written(tmp_path):
    """Writes known divergences and reads them."""

    def write(rows, entries=()):
        path = tmp_path / "known.toml"
        sentence = expected.write(path, rows, entries)
        return expected.load(path), sentence

    return write


NAN = Problem(ProblemKind.NOT_FINITE, "NaN")
WRONG = [
    [row("values/retrace", output="q_target", rel=0.3), row("values/retrace", "other", "q_target", rel=3e-13)],
    [row("values/retrace", output="q_target", rel=3.0), row("values/retrace", "other", "q_target", problem=NAN)],
    [row("values/retrace", output="q_target", problem=NAN)],
    [row("values/retrace", output="q_target", rel=0.3, dtype="float32"), row("values/retrace", output="q_target")],
    [row("values/retrace", output="rho", rel=0.3, kind="vjp")],
    [],
]


@pytest.mark.parametrize("rows", WRONG)
def test_what_is_written_is_green(written, rows):
    entries, _ = written(rows)
    assert len(entries) == (1 if rows else 0)
    assert not expected.unexpected(rows, entries)
    assert not expected.problems(rows, entries)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_what_is_written_has_bounds(written, factor):
    rows = WRONG[0]
    entries, _ = written(rows)
    other = [replace(each, max_rel=factor * each.max_rel) for each in rows]
    assert expected.problems(other, entries)
    assert bool(expected.unexpected(other, entries)) == (factor > 1)


def test_entries_are_of_one_precision_where_only_one_differs(written):
    (entry,), _ = written(WRONG[3])
    assert entry.dtype == "float32"


def test_outputs_that_all_differ_share_an_entry_and_others_do_not(written):
    names = ["params/mlp/w", "params/mlp/b", "params/head/w", "loss"]
    layer = "agent/learner_step"
    wrong = [row(layer, output=name, rel=0.1) for name in names]
    assert expected._pattern(names[0], dict.fromkeys(names, True)) == "*"
    assert expected._pattern(names[0], {**dict.fromkeys(names, True), "loss": False}) == "params/*"
    assert expected._pattern(names[0], {**dict.fromkeys(names, True), "params/head/w": False}) == "params/mlp/*"
    assert expected._pattern(names[0], {**dict.fromkeys(names, True), "params/mlp/b": False}) == "params/mlp/w"
    assert len(written(wrong)[0]) == 1


def test_a_call_that_fails_cannot_be_known(written):
    rows = [row(problem=CALL), row("values/retrace", output="q_target", rel=0.1)]
    entries, sentence = written(rows)
    assert [entry.layer for entry in entries] == ["values/retrace"]
    assert "It leaves out 1 comparisons" in sentence


def test_reasons_are_kept(written):
    known = [expected.Divergence("values/retrace", "q_target", 0.1, 1.0, 'issue "12"\\')]
    (entry,), _ = written(WRONG[0], known)
    assert entry.reason == known[0].reason


def test_the_command_writes_a_file_with_which_it_is_green(tmp_path, capsys):
    path = tmp_path / "known.toml"
    arguments = ["check", "values/retrace", "ops/kl", "--impl", "tests.toy:implementation"]
    assert main([*arguments, "--write-expected", str(path)]) == 1
    assert "known.toml has 1 entries; fill in why" in capsys.readouterr().out
    assert main([*arguments, "--expected", str(path)]) == 0
    assert "Accepted by --expected: values/retrace q_target" in capsys.readouterr().out
    assert main([*arguments[:-1], "tests.toy:right", "--expected", str(path)]) == 1


def test_an_exception_is_said_with_its_place_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "raising_adapter.py").write_text(
        "from tests import toy\n\n\ndef broken(inputs, settings, dtype):\n    return helper(inputs)\n\n\n"
        "def helper(inputs):\n    import numpy\n    return numpy.concatenate([])\n\n\n"
        "implementation = toy.Toy(**{'ops/kl': broken, 'ops/entropy': broken})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", "ops", "--impl", "raising_adapter:implementation"]) == 2
    said = capsys.readouterr().out
    assert len(re.findall(r"^\S.*raising_adapter\.py:10", said, re.M)) == 1
    assert "ops/kl and 1 more layers: raised ValueError: need at least one array to concatenate" in said


def test_the_place_is_the_innermost_of_the_adapter():
    with pytest.raises(KeyError) as raised:
        toy.retrace({}, {}, "float64")
    assert place_of(raised.value).startswith("tests/toy.py:")
