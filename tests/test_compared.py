"""`parity compare`: what turned red, whose margin shrinks, what is better, new or gone, and what is no such file."""

import json
from dataclasses import replace

import pytest

from parity.__main__ import main
from parity.compare import Problem, ProblemKind, Row
from parity.goldens.compared import FORMAT, What, changes, read

RIGHT, WRONG = "tests.toy:right", "tests.toy:implementation"


def row(ratio=0.05, case="plain", output="q_target", **more):
    return Row(
        "values/retrace", case, output, "value", "float64", ratio=ratio, sigmas=ratio * 8, equal=ratio <= 1, **more
    )


NAN = replace(row(float("inf")), problem=Problem(ProblemKind.NOT_FINITE, "NaN at [0].", "NaN"))


@pytest.mark.parametrize(
    ("base", "head", "what", "fails"),
    [
        ([row(0.05)], [row(2.0)], [What.TURNED_RED], True),
        ([row(0.05)], [NAN], [What.TURNED_RED], True),
        ([row(0.05)], [row(0.9)], [What.SHRUNK], True),
        ([row(2.0)], [row(21.0)], [What.SHRUNK], True),
        ([row(2.0)], [NAN], [What.SHRUNK], True),
        ([row(0.05)], [row(0.2)], [What.WORSE], False),
        ([row(0.05)], [row(0.06)], [], False),
        ([row(0.0)], [row(0.09)], [What.WORSE], False),  # less than a hundredth of the tolerance counts as that
        ([row(0.2)], [row(0.01)], [What.BETTER], False),
        ([row(2.0)], [row(0.2)], [What.TURNED_GREEN], False),
        ([NAN], [NAN], [], False),
        ([NAN], [row(2.0)], [What.BETTER], False),
        ([row()], [row(), row(case="other")], [What.NEW], False),
        ([row()], [row(), row(5.0, case="other")], [What.TURNED_RED], True),
        ([row(), row(case="other")], [row()], [What.GONE], False),
        ([row(), row(2.0, "b")], [row(2.0), row(0.1, "b")], [What.TURNED_RED, What.TURNED_GREEN], True),
    ],
)
def test_each_change_is_called_by_its_name(base, head, what, fails):
    found = changes(base, head)
    assert [change.what for change in found] == what
    assert any(change.fails for change in found) == fails


def test_the_factor_is_an_option():
    assert [change.what for change in changes([row(0.05)], [row(0.2)], factor=3)] == [What.SHRUNK]


def test_a_row_survives_the_file():
    for each in (row(0.5, index=(1, 2), ref=1.0, got=2.0), NAN):
        again = Row.from_json(json.loads(json.dumps(each.as_json())))
        assert (again, again.problem) == (each, each.problem)


@pytest.fixture
def checked(tmp_path, capsys):
    """Checks an implementation and returns the file."""

    def check(name, *layers):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        main(["check", *layers, "--impl", name, "--json", str(path)])
        capsys.readouterr()
        return str(path)

    return check


def test_a_mistake_turns_red_and_a_mended_one_green(checked, capsys):
    right, wrong = checked(RIGHT, "values/retrace", "ops/kl"), checked(WRONG, "values/retrace", "ops/kl")
    assert main(["compare", right, wrong]) == 1
    said = capsys.readouterr().out
    assert "turned red  values/retrace  q_target (float64) and 1 more" in said
    assert "ops/kl" not in said
    assert main(["compare", wrong, right]) == 0
    assert "2 turned green" in capsys.readouterr().out
    assert main(["compare", right, right]) == 0
    assert "Of 4 outputs in both: none changed." in capsys.readouterr().out


def test_what_is_gone_is_listed_and_fails_if_strict(checked, capsys):
    both, one = checked(RIGHT, "values/retrace", "ops/kl"), checked(RIGHT, "ops/kl")
    assert main(["compare", both, one]) == 0
    assert "gone    values/retrace" in capsys.readouterr().out
    assert main(["compare", both, one, "--strict"]) == 1
    assert main(["compare", one, both, "--strict"]) == 0
    assert main(["compare", one, checked(RIGHT, "values/retrace")]) == 3
    assert "nothing was compared" in capsys.readouterr().out


def test_markdown_and_json(checked, capsys):
    right, wrong = checked(RIGHT, "values/retrace"), checked(WRONG, "values/retrace")
    main(["compare", right, wrong, "--format", "markdown"])
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in table} == {7}
    assert table[2].startswith("| turned red | values/retrace | q_target (float64) and 1 more |")
    main(["compare", right, wrong, "--format", "json"])
    result = json.loads(capsys.readouterr().out)
    assert result["fails"]
    assert [change["change"] for change in result["changes"]] == ["turned red", "turned red"]
    assert result["changes"][0]["base"]["equal"]


GOOD = {"format": FORMAT, "implementation": "x", "goldens": "0", "comparisons": [row().as_json()]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "nonsense",
        "[" * 100_000,
        '{"comparisons": []}',
        json.dumps(GOOD | {"format": "other"}),
        json.dumps(GOOD | {"comparisons": 3}),
        json.dumps(GOOD | {"comparisons": [[]]}),
        json.dumps(GOOD | {"comparisons": [{**row().as_json(), "ratio": "large"}]}),
        json.dumps(GOOD | {"comparisons": [{**row().as_json(), "problem_kind": "mood"}]}),
        json.dumps(GOOD | {"comparisons": [{**row().as_json(), "ratio": float("nan")}]}),
    ],
)
def test_another_file_is_refused_with_a_sentence(text, tmp_path, capsys):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(GOOD))
    bad.write_text(text)
    assert read(good).rows == [row()]
    for files in ([good, bad], [bad, good], [good, tmp_path], [good, tmp_path / "absent"]):
        assert main(["compare", *map(str, files)]) == 2
        assert capsys.readouterr().err.startswith("parity: /")


@pytest.mark.parametrize("factor", ["1", "0", "nan", "inf", "-3", "many"])
def test_a_factor_that_is_none_is_refused(factor, capsys):
    with pytest.raises(SystemExit) as end:
        main(["compare", "a", "b", "--factor", factor])
    assert end.value.code == 2
