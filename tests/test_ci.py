"""`python -m parity ci`, in the environment that GitHub gives a step; and the action and workflow that run it."""

import importlib
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import yaml

from parity.__main__ import main, parser
from parity.ci import badge, gate, github
from parity.commands import check
from parity.goldens.store import Store
from parity.plugin import OPTIONS
from tests import toy
from tests.helpers import ROOT

WRONG, RIGHT = "values/retrace", "ops/lookup"


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """What a step of GitHub's has: a workspace, and files for summary and outputs, which it adds to."""
    for variable in (github.SUMMARY, github.OUTPUT):
        (tmp_path / variable).write_text("before\n")
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.setenv(github.WORKSPACE, str(ROOT))
    return tmp_path


def ci(folder, attribute, *arguments, layers=(WRONG, RIGHT)):
    out = folder / "out"
    return main(["ci", *layers, "--impl", f"tests.toy:{attribute}", "--without-tests", "--out", str(out), *arguments])


def outputs(runner):
    before, *lines = (runner / github.OUTPUT).read_text().splitlines()
    assert before == "before"
    return dict(line.split("=", 1) for line in lines)


def annotations(printed):
    return [line for line in printed.splitlines() if line.startswith("::")]


def base_of(folder, attribute, *layers):
    path = folder / "base.json"
    main(["check", *layers, "--impl", f"tests.toy:{attribute}", "--json", str(path)])
    return path


def test_a_difference_is_in_summary_outputs_annotation_badge_and_repro(runner, capsys):
    base = base_of(runner, "right", WRONG, RIGHT)
    capsys.readouterr()
    assert ci(runner, "implementation", "--base", str(base)) == 1
    summary = (runner / github.SUMMARY).read_text()
    assert summary.startswith("before\n## ✘ toy differs from Disco in 1 of 2 layers")
    assert (runner / "out" / "summary.md").read_text() == summary.removeprefix("before\n")
    row = next(line for line in summary.splitlines() if line.startswith(f"| `{WRONG}`"))
    assert row.startswith("| `values/retrace` | 26 of 32 | **1.8e+16\N{NO-BREAK SPACE}σ** |")
    assert row.endswith("| turned red: 0.02 -> 1.5e+14 |")
    assert "retrace_index_too_late" in summary.partition("### Diagnosis")[2].partition("### Against the base")[0]
    assert outputs(runner) == {
        "verdict": "different",
        "goldens": Store().manifest["digest"],
        "different": "1",
        "result": str(runner / "out" / "parity.json"),
    }
    (line,) = annotations(capsys.readouterr().out)
    at = toy.retrace.__code__.co_firstlineno
    assert line.startswith(
        f"::error title=values/retrace%3A 26 comparisons differ,file=tests/toy.py,line={at}::values/"
    )
    assert json.loads((runner / "out" / "badge.json").read_text())["message"].startswith("different on 1% of layers")
    (repro,) = (runner / "out" / "repro").iterdir()
    assert subprocess.run([sys.executable, repro], cwd=ROOT, capture_output=True, check=False).returncode == 1


def test_equal_layers_have_no_annotation_and_no_diagnosis(runner, capsys):
    assert ci(runner, "right", layers=[WRONG, RIGHT, "ops/entropy"]) == 0
    summary = (runner / github.SUMMARY).read_text()
    assert "## ✔ toy equals Disco in all 2 layers compared" in summary and "1 layers not provided" in summary
    assert "### " not in summary
    assert outputs(runner)["verdict"] == "equal"
    assert annotations(capsys.readouterr().out) == [] and not (runner / "out" / "repro").exists()


def test_what_is_known_is_counted_and_neither_fails_nor_is_annotated(runner, capsys):
    known = runner / "known.toml"
    entry = {"layer": WRONG, "output": "q_target", "at_least": 0.1, "at_most": 5.0, "reason": "known"}
    known.write_text("[[divergence]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items()))
    assert ci(runner, "implementation", "--expected", str(known)) == 0
    summary = (runner / github.SUMMARY).read_text()
    assert "**as expected**: 26 more differ" in summary and "Diagnosis" not in summary
    assert annotations(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("content", "said"), [(None, ""), ("{}", "No comparison: "), ('{"format": "of next year"}', "of next year")]
)
def test_a_base_that_is_not_there_or_of_another_version_fails_nothing(content, said, runner):
    base = runner / "base.json"
    if content is not None:
        base.write_text(content)
    assert ci(runner, "right", "--base", str(base)) == 0
    summary = (runner / github.SUMMARY).read_text()
    assert said in summary and ("Against the base" in summary) == bool(said)


def test_a_margin_that_shrinks_is_a_warning(runner, capsys):
    base = base_of(runner, "right", "ops/kl")
    content = json.loads(base.read_text())
    for row in content["comparisons"]:
        row |= {"ratio": 0.0, "sigmas": 0.0}
    base.write_text(json.dumps(content))
    capsys.readouterr()
    assert ci(runner, "right", "--base", str(base), layers=["ops/kl"]) == 0
    (line,) = annotations(capsys.readouterr().out)
    assert line.startswith("::warning title=ops/kl%3A still equal%2C but less exact,file=tests/toy.py,line=")


def test_what_could_not_run_is_in_the_summary_too(runner, capsys):
    assert ci(runner, "nothing") == 2
    captured = capsys.readouterr()
    sentence = "Module tests.toy has no 'nothing'. Did you mean tests.toy:implementation?"
    assert (runner / github.SUMMARY).read_text().endswith(f"\n\n{sentence}\n") and sentence in captured.err
    assert outputs(runner)["verdict"] == "could not run" and "result" not in outputs(runner)
    assert annotations(captured.out) == [f"::error title=disco-parity gave no verdict::{sentence}"]
    assert json.loads((runner / "out" / "badge.json").read_text())["color"] == badge.GREY


def test_nothing_compared_is_not_equal(runner):
    assert ci(runner, "right", layers=["ops/entropy"]) == 3
    assert outputs(runner)["verdict"] == "nothing compared" and "result" not in outputs(runner)  # nor a base for others
    assert ": nothing compared\n" in (runner / github.SUMMARY).read_text()


def test_a_check_that_leaves_no_result_could_not_run(runner, monkeypatch):
    monkeypatch.setattr("parity.commands.check.run", lambda args: 2)
    assert ci(runner, "right") == 2
    assert outputs(runner)["verdict"] == "could not run"


def test_json_is_written_where_it_is_asked_for_too(runner):
    asked = runner / "asked.json"
    assert ci(runner, "right", "--json", str(asked)) == 0
    assert json.loads(asked.read_text()) == json.loads((runner / "out" / "parity.json").read_text())


def test_a_result_of_an_earlier_run_is_not_taken_for_one_of_this(runner):
    assert ci(runner, "right") == 0
    assert ci(runner, "nothing") == 2
    assert not (runner / "out" / "parity.json").exists()


def test_outside_of_a_runner_nothing_is_annotated(tmp_path, monkeypatch, capsys):
    for variable in (github.SUMMARY, github.OUTPUT, github.WORKSPACE):
        monkeypatch.delenv(variable, raising=False)
    assert ci(tmp_path, "implementation") == 1
    assert annotations(capsys.readouterr().out) == []


def test_the_tests_of_the_package_are_part_of_the_gate(runner, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(runner)  # what tests write, they write there
    out = runner / "out"
    options = ["--impl", "tests.toy:implementation", "--out", str(out)]
    assert main(["ci", WRONG, *options]) == 1
    tests = ElementTree.parse(out / "junit.xml").findall(".//testcase")
    assert len(tests) > 16 and all(WRONG in test.get("name") for test in tests)
    assert re.search(r"\*\*tests\*\*: \d+ passed, 1\d failed", (runner / github.SUMMARY).read_text())


def test_pytest_gets_the_options_of_check(monkeypatch, tmp_path):
    called = []
    done = SimpleNamespace(returncode=5)
    monkeypatch.setattr(subprocess, "run", lambda command, check: [called.append(command), done][1])
    values = {"impl": "a:b", "device": "meta", "expected": "known.toml", "precision": "tf32"}
    options = [part for name, value in values.items() for part in (f"--{name}", value)]
    args = parser().parse_args(["ci", WRONG, RIGHT, "--strict", *options])
    assert gate.run(args, tmp_path / "junit.xml") == 3
    (command,) = called
    assert {f"--parity-{name}={value}" for name, value in values.items()} | {"--parity-strict"} <= set(command)
    assert command[command.index("-k") + 1] == f"{WRONG} or {RIGHT}"
    assert {*values, "strict"} <= OPTIONS.keys()


JUNIT = """<testsuites><testsuite>
<testcase name="test_golden[ops/kl[plain]]"/><testcase name="test_golden[ops/kl[A2]]"><failure message="x"/></testcase>
<testcase name="test_live[ops/kl]"><properties/><failure message="x"/></testcase>
<testcase name="test_live[ops/entropy]"><error message="x"/></testcase><testcase name="x"><skipped/></testcase>
</testsuite></testsuites>"""


def test_failures_of_tests_are_named_but_for_goldens_which_have_a_table(tmp_path):
    assert gate.in_words(tmp_path / "junit.xml") == ""
    (tmp_path / "junit.xml").write_text(JUNIT)
    words = (
        "1 passed, 2 failed, 1 could not run, 1 skipped; besides goldens: `test_live[ops/kl]`, `test_live[ops/entropy]`"
    )
    assert gate.in_words(tmp_path / "junit.xml") == words


@pytest.mark.parametrize(("codes", "worst"), [((0, 1), 1), ((1, 2), 2), ((0, 3), 3), ((1, 3), 1), ((0, 0), 0)])
def test_the_exit_code_is_the_worst_of_check_and_tests(codes, worst, runner, monkeypatch):
    run = check.run
    monkeypatch.setattr(check, "run", lambda args: [run(args), codes[0]][1])
    monkeypatch.setattr(gate, "run", lambda args, junit: codes[1])
    assert main(["ci", RIGHT, "--impl", "tests.toy:right", "--out", str(runner / "out")]) == worst


def test_a_summary_that_github_would_refuse_is_cut():
    assert github.cut("short") == "short"
    long = github.cut("σ" * github.MOST_BYTES)
    assert len(long.encode()) < github.MOST_BYTES + 100 and long.endswith("summary.md has it.\n")


def test_characters_with_a_meaning_are_escaped(runner, capsys):
    github.annotate("error", "a:b,c", "50%\nof it: all", ("x,y.py", 3))
    assert capsys.readouterr().out == "::error title=a%3Ab%2Cc,file=x%2Cy.py,line=3::50%25%0Aof it: all\n"


ADAPTER = """from math import sqrt
class Listed:
    name, description = "listed", ""
    layers = {'values/retrace', "ops/kl"}
    def run(self, layer, inputs, settings, dtype):
        return {} if layer != "ops/two_hot" else sqrt
"""


@pytest.mark.parametrize(("layer", "line"), [("values/retrace", 4), ("ops/two_hot", 6), ("ops/entropy", 2)])
def test_without_functions_a_layer_is_where_its_name_stands_or_at_the_class(layer, line, tmp_path, monkeypatch):
    monkeypatch.setenv(github.WORKSPACE, str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"sub_{line}").mkdir()
    (tmp_path / f"sub_{line}" / "listed.py").write_text(ADAPTER)
    implementation = importlib.import_module(f"sub_{line}.listed").Listed()
    assert github.place_of(implementation, layer) == (f"sub_{line}/listed.py", line)


def test_an_adapter_outside_of_the_workspace_has_no_place(tmp_path, monkeypatch):
    monkeypatch.setenv(github.WORKSPACE, str(tmp_path))
    assert github.place_of(toy.implementation, WRONG) is None


@pytest.mark.parametrize(("verdict", "colour"), [*badge.COLOURS.items(), ("nothing compared", badge.GREY)])
def test_a_badge_says_verdict_share_and_goldens(verdict, colour, tmp_path):
    badge.write(tmp_path, verdict, 0.474, "f0080706709a")
    words = f"{verdict} on 47% of layers · goldens f008070"
    endpoint = json.loads((tmp_path / "badge.json").read_text())
    assert endpoint == {"schemaVersion": 1, "label": "Disco parity", "message": words, "color": colour}
    texts = [each.text for each in ElementTree.parse(tmp_path / "badge.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["Disco parity", words] and colour in (tmp_path / "badge.svg").read_text()


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


ACTION, CALLED = read_yaml(".github/actions/parity/action.yml"), read_yaml(".github/workflows/gate.yml")
STEPS = ACTION["runs"]["steps"]
CALLED_STEPS = CALLED["jobs"]["gate"]["steps"]
INPUTS_OF_CALL = CALLED[True]["workflow_call"]["inputs"]  # YAML reads `on` as true


def expressions(content):
    """What stands between `${{` and `}}`, and in conditions."""
    text = json.dumps(content)
    return " ".join([*re.findall(r"\$\{\{(.*?)\}\}", text), *re.findall(r'"if": "(.*?)"', text)])


def test_the_action_has_the_shape_of_a_composite_one():
    assert ACTION.keys() == {"name", "description", "branding", "inputs", "outputs", "runs"}
    assert ACTION["runs"].keys() == {"using", "steps"} and ACTION["runs"]["using"] == "composite"
    for step in STEPS:
        assert ("uses" in step) != (step.get("shell") == "bash" and "run" in step), step["name"]
        assert step.keys() <= {"name", "id", "if", "shell", "env", "run", "uses", "with", "working-directory"}


@pytest.mark.parametrize(
    ("inputs", "steps"), [(ACTION["inputs"], STEPS), (INPUTS_OF_CALL, CALLED_STEPS)], ids=["action", "workflow"]
)
def test_every_input_is_described_and_used_and_none_else(inputs, steps):
    assert set(re.findall(r"inputs\.([\w-]+)", expressions(steps))) == inputs.keys()
    assert all(each["description"] and ("default" in each) != each.get("required", False) for each in inputs.values())


def test_steps_that_are_referred_to_come_before():
    for content, steps in ((ACTION["outputs"], STEPS), (CALLED["jobs"]["gate"]["outputs"], CALLED_STEPS)):
        known = set()
        for step in [*steps, content]:
            assert set(re.findall(r"steps\.(\w+)", expressions(step))) <= known
            known |= {step["id"]} if "id" in step else set()


def test_no_input_is_pasted_into_a_script():
    assert [step for step in [*STEPS, *CALLED_STEPS] if "${{" in step.get("run", "")] == []


def test_the_workflow_passes_all_inputs_of_the_action_on():
    passed = CALLED_STEPS[-1]["with"]
    assert passed == {name: f"${{{{ inputs.{name} }}}}" for name in ACTION["inputs"]}
    own = INPUTS_OF_CALL.keys() - ACTION["inputs"].keys()
    assert own == {"python", "install"}
    defaults = {name: str(INPUTS_OF_CALL[name].get("default")).lower() for name in passed}
    assert defaults == {name: str(each.get("default")).lower() for name, each in ACTION["inputs"].items()}


def test_other_actions_are_pinned_to_a_version():
    used = [step["uses"] for step in [*STEPS, *CALLED_STEPS] if "uses" in step]
    assert [name for name in used if not re.fullmatch(r"actions/[\w/-]+@v\d+|\$/\.github/actions/parity", name)] == []


def run_step(step_id, folder, **environment):
    """Runs a step's script as GitHub does, with a Python that keeps its arguments."""
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > called\n')
    python.chmod(0o755)
    (step,) = [step for step in STEPS if step.get("id") == step_id]
    asked = step.get("env", {}).keys()
    assert asked == environment.keys(), asked
    variables = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "GITHUB_WORKSPACE": "/work space", **environment}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    subprocess.run(command, cwd=folder, env=variables, check=True)
    return (folder / "called").read_text().splitlines()


ASKED = {"IMPLEMENTATION": "my adapter:implementation", "LAYERS": "", "EXPECTED": "", "STRICT": "false"}


@pytest.mark.parametrize(
    ("asked", "layers", "expected", "strict"),
    [
        ({}, [], None, False),
        ({"LAYERS": "a/b c/d", "EXPECTED": "known $x.toml", "STRICT": "true"}, ["a/b", "c/d"], "known $x.toml", True),
    ],
)
def test_the_gate_s_step_gives_the_command_what_it_asks_for(asked, layers, expected, strict, tmp_path):
    module, *arguments = run_step("gate", tmp_path, **{**ASKED, **asked})[1:]
    args = parser().parse_args(arguments)
    assert (module, args.command, args.layers, args.strict) == ("parity", "ci", layers, strict)
    assert args.impl == "my adapter:implementation" and str(args.base) == "/work space/.disco-parity-base/parity.json"
    assert (str(args.out), args.expected and str(args.expected)) == ("parity-results", expected)


def test_the_digest_s_step_reads_the_manifest(tmp_path):
    (step,) = [step for step in STEPS if step.get("id") == "goldens"]
    variables = {
        **os.environ,
        "GITHUB_ACTION_PATH": str(ROOT / ".github/actions/parity"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    variables["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], env=variables, check=True)
    assert (tmp_path / "output").read_text() == f"digest={Store().manifest['digest']}\n"
