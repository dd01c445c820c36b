"""The audit of somebody else's port, without that port: a stand-in package plays its part."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.util
import io
import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.compare import Problem, ProblemKind, compare, failed
from parity.errors import CannotRun
from parity.goldens.check import Outcome
from parity.implementation import KNOWN
from parity.layers import REGISTRY
from reports.audit import bench, release, repro
from reports.audit import command as audit
from reports.audit.bench import Judgement
from reports.audit.causes import REACHES, Cause, Port, Shown, corrected_copy, load_port

ROOT = Path(__file__).resolve().parent.parent
ADAPTER = ROOT / "reports" / "audit" / "disco_torch"
DISCO_TORCH = load_port("disco_torch")

SHOWN = Shown(
    *("ops/signed_hyperbolic", "plain", "out", "value", "float64"),
    "from disco_torch import utils",
    'got = utils.signed_hyperbolic_tx(x["x"])',
)


def cause(name: str, title: str, old: str, new: str, shown: Shown | None = None) -> Cause:
    return Cause(name, title, "utils.py", ((old, new),), "there", "It says.", "right", "It means.", shown=shown)


EPSILON = cause("epsilon", "No epsilon", r"EPSILON = 0", "EPSILON = 1")
INDEX = cause("index", "Another index", r"INDEX = 2", "INDEX = 1")
ELSEWHERE = cause("elsewhere", "Not here", r"NOWHERE", "x")
FORMULA = cause(
    *("formula", "Another formula", r"return x \* 2\.0"),
    "return x.sign() * ((x.abs() + 1).sqrt() - 1) + 1e-3 * x",
    shown=SHOWN,
)

MODULES = {
    "__init__": "",
    "types": "class EmaState: ...\nclass UpdateRuleInputs: ...\n",
    "transforms": "SIMPLE_TRANSFORMS = {'sign': lambda x: x.sign()}\n"
    "def apply_transform(name, x, actions, policy): return SIMPLE_TRANSFORMS[name](x)\n",
    "utils": "class MovingAverage: ...\ndef signed_hyperbolic_tx(x): return x * 2.0\n",
    "value_utils": "",
    "meta_net": "class DiscoMetaNet: ...\n",
    "load_weights": "",
    "update_rule": "class DiscoUpdateRule: ...\n",
}

SMALL_TORCH = """
import numpy
float64 = "float64"
set_default_dtype = print
class Tensor(numpy.ndarray):
    detach = numpy = lambda self: self
from_numpy = lambda array: array.view(Tensor)
"""


def fake_package(folder: Path, **more: str) -> Path:
    """A package with the module names of the real one and next to nothing in it."""
    package = folder / "disco_torch"
    package.mkdir(parents=True)
    for name, text in {**MODULES, **more}.items():
        (package / f"{name}.py").write_text(text)
    return folder


def in_process(folder: Path, code: str) -> str:
    """Runs code with the fake package importable."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    ).stdout


def row(layer: str, got: float, output: str = "out", kind: str = "value", dtype: str = "float64"):
    """A comparison of one number with 1.0."""
    given = np.array([got], dtype)
    return compare((layer, "plain", output), kind, dtype, np.ones(1), given, np.zeros(1))


def made(version: str, wrong: dict[str, float], provided: list[str], **more) -> release.Release:
    """A release in which the given layers have the given values instead of 1."""
    rows = more.pop("rows", [row(layer, wrong.get(layer, 1.0)) for layer in provided])
    judgement = Judgement(f"disco-torch {version}", provided, Outcome(rows), [])
    return release.Release(f"disco-torch {version}", version, judgement, **more)


def test_every_layer_named_by_the_adapter_is_in_the_registry():
    groups = "|".join(sorted({name.split("/")[0] for name in REGISTRY}))
    text = "\n".join((ADAPTER / f"{name}.py").read_text() for name in ("formulas", "metanet", "learning"))
    named = set(re.findall(rf'"((?:{groups})/[a-z_]+)": [_lm]', text))
    assert len(named) > 25
    assert named <= set(REGISTRY)
    assert KNOWN["disco_torch"] == "reports.audit.disco_torch:implementation"


def test_the_adapter_provides_what_a_release_has_and_calls_it_as_it_is(tmp_path):
    trainer = "class DiscoTrainer: ...\nclass ClippedAdam: ...\n"
    code = """
import json, sys, numpy as np
from reports.audit.disco_torch import implementation as it, learning
x = np.array([[1.0, -3.0]])
answer = {
    "all": sorted(it.layers),
    "run": it.run("ops/signed_hyperbolic", {"x": x}, {}, "float64")["out"].tolist(),
    "vjp": it.vjp("ops/signed_hyperbolic", {"x": x}, {}, "float64", {"out": np.ones((1, 2))}, ["x"])["x"].tolist(),
    "single": str(it.run("ops/signed_hyperbolic", {"x": x}, {}, "float32")["out"].dtype),
}
del learning.trainer.ClippedAdam
answer["second"] = sorted(learning.layers())
learning.trainer = None
answer["first"] = sorted(learning.layers())
print(json.dumps(answer))
"""
    found = json.loads(in_process(fake_package(tmp_path, trainer=trainer), code))
    assert found["run"] == [[2.0, -6.0]] and found["vjp"] == [[2.0, 2.0]] and found["single"] == "float32"
    learned = {"optim/update", "agent/loss", "agent/learner_step", "agent/learner_steps"}
    assert set(found["second"]) - set(found["first"]) == learned
    assert set(found["all"]) <= set(REGISTRY) and "optim/adam" in found["all"]


def test_an_output_that_is_not_given_is_not_called_different():
    absent = failed(
        ("disco/agent_loss", "plain", "log/y"), "value", "float64", Problem(ProblemKind.MISSING, "is missing.")
    )
    rows = [row("disco/agent_loss", 1.0, "loss"), absent]
    found = made("1.0", {}, ["disco/agent_loss"], rows=rows)
    assert found.different_layers() == []
    assert found.missing_outputs() == {"disco/agent_loss": ["log/y"]}
    assert found.state("disco/agent_loss") == "equal"
    assert found.state("nets/agent") == "not provided"


def test_states_tell_values_from_gradients_and_precisions():
    rows = [row("ops/kl", 2.0, kind="vjp"), row("ops/two_hot", 1.0 + 1e-10), row("ops/two_hot", 1.0, dtype="float32")]
    rows += [row("ops/lookup", 1.5), row("ops/lookup", 1.5, dtype="float32"), row("nets/mlp", 1.5)]
    rows += [row("nets/unroll", 1.0), row("nets/unroll", 1.001, dtype="float32")]
    found = made("1.0", {}, ["ops/kl", "ops/two_hot", "ops/lookup", "nets/mlp", "nets/unroll"], rows=rows)
    assert found.state("ops/kl") == "gradients only"
    assert found.state("ops/two_hot") == "values in float64 only"
    assert found.state("ops/lookup") == "values"
    assert found.state("nets/mlp") == "values"  # float32 was not compared, so nothing is said about it
    assert found.state("nets/unroll") == "float32 accuracy only"


def test_the_first_divergence_has_nothing_different_upstream():
    provided = ["ops/two_hot", "values/q_and_v", "values/retrace", "values/estimate_q"]
    found = made("1.0", {"values/retrace": 2.0, "values/estimate_q": 2.0}, provided)
    sentence = audit.first_divergence(found)
    assert "the first layer whose values differ is values/retrace" in sentence
    assert "values/q_and_v" in sentence and "values/estimate_q" not in sentence
    assert audit.first_divergence(made("1.0", {}, provided)) == "No layer differs."


def test_changes_between_releases_are_listed_by_cause_and_layer():
    def finding(of: Cause) -> release.Finding:
        return release.Finding(of, "disco_torch/utils.py:1", "line", {"ops/kl": row("ops/kl", 2.0)})

    older = made("0.1", {"ops/kl": 2.0, "ops/lookup": 2.0}, ["ops/kl", "ops/lookup", "ops/two_hot"])
    newer = made("0.2", {"ops/kl": 2.0, "ops/two_hot": 2.0}, ["ops/kl", "ops/lookup", "ops/two_hot", "nets/mlp"])
    older = replace(older, findings=[finding(EPSILON), finding(INDEX)])
    newer = replace(newer, findings=[finding(INDEX), finding(FORMULA)])
    assert audit.changes(older, newer) == [
        "No longer present: No epsilon.",
        "New: Another formula.",
        "Unchanged: Another index.",
        "Layers that have become equal: ops/lookup.",
        "Layers that have become different: ops/two_hot.",
        "New layers, equal: nets/mlp.",
    ]


def fake_bench(folder: Path, function, name: str, cases=None, ignored=None):
    """Judges the fake package: two layers, one wrong by its epsilon, the other by its index and the epsilon.

    A third comparison is a little off in float32 whatever is corrected.
    """
    scope: dict[str, int] = {}
    exec((folder / "disco_torch" / "utils.py").read_text(), scope)
    epsilon, index = scope["EPSILON"], scope["INDEX"]
    rows = [row("moving_average/normalize", float(epsilon)), row("values/retrace", float(epsilon + index - 1))]
    rows += [row("nets/mlp", 1.0), row("nets/mlp", 1.001, dtype="float32")]
    if function is bench.judge_cases:
        assert ignored is None or ("nets/mlp", "plain", "out", "value", "float32") in ignored
        return rows, None
    assert function is bench.judge_everything
    provided = ["moving_average/normalize", "nets/mlp", "values/retrace"]
    outcome = Outcome(rows, not_provided=[layer for layer in REGISTRY if layer not in provided])
    return Judgement("disco-torch", provided, outcome, [])


def known(*causes: Cause) -> Port:
    return replace(DISCO_TORCH, causes=causes)


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "in_own_process", fake_bench)
    fake_package(tmp_path / "1.0", utils="EPSILON = 0\nINDEX = 2\n")
    fake_package(tmp_path / "2.0", utils="EPSILON = 1\n\nINDEX = 2\n")
    return tmp_path


def test_a_cause_is_named_only_where_it_alone_makes_the_difference(fakes):
    found = release.examine(known(EPSILON, INDEX, ELSEWHERE), "1.0", fakes / "1.0")
    acting = {finding.cause.name: list(finding.rows) for finding in found.findings}
    assert acting == {"epsilon": ["moving_average/normalize", "values/retrace"], "index": ["values/retrace"]}
    assert found.findings[1].place == "disco_torch/utils.py:2"
    assert found.findings[1].line == "INDEX = 2"
    newer = release.examine(known(EPSILON, INDEX), "2.0", fakes / "2.0")
    assert [finding.cause.name for finding in newer.findings] == ["index"]


def test_what_no_known_cause_explains_is_left_over_and_laid_at_no_door(fakes):
    found = release.examine(known(EPSILON), "1.0", fakes / "1.0")
    assert [r.layer for r in found.left_over] == ["values/retrace", "nets/mlp"]
    assert [r.layer for r in found.left_over_in_float64()] == ["values/retrace"]
    assert [list(finding.rows) for finding in found.findings] == [["moving_average/normalize"]]


def test_a_corrected_copy_leaves_the_package_alone(tmp_path):
    folder = fake_package(tmp_path / "1.0", utils="EPSILON = 0\r\nINDEX = 2\r\n")
    before = (folder / "disco_torch" / "utils.py").read_bytes()
    copy = corrected_copy(folder / "disco_torch", [INDEX], tmp_path / "copy")
    assert (copy / "disco_torch" / "utils.py").read_text() == "EPSILON = 0\nINDEX = 1\n"
    assert (folder / "disco_torch" / "utils.py").read_bytes() == before
    with pytest.raises(AssertionError, match="gone after another correction"):
        corrected_copy(folder / "disco_torch", [ELSEWHERE], tmp_path / "other")


def test_a_changed_package_is_noticed(tmp_path):
    folder = fake_package(tmp_path)
    assert release.changed_files(folder / "disco_torch") == []  # no record, nothing to compare with
    text = (folder / "disco_torch" / "utils.py").read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
    record = folder / "disco_torch-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(f"disco_torch/utils.py,sha256={digest},{len(text)}\ndisco_torch-1.0.dist-info/RECORD,,\n")
    assert release.changed_files(folder / "disco_torch") == []
    (folder / "disco_torch" / "utils.py").write_text("EPSILON = 3\n")
    assert release.changed_files(folder / "disco_torch") == ["disco_torch/utils.py"]


def test_a_file_shows_its_difference_with_the_package_alone(tmp_path):
    folder = fake_package(tmp_path / "1.0")
    (folder / "torch.py").write_text(SMALL_TORCH)  # a second sooner than the real one
    path = tmp_path / "repro.py"
    path.write_text(repro.source(FORMULA, "disco_torch/utils.py:2", "1.0", "disco-torch", path.name))
    imported = {name.split(".")[0] for name in re.findall(r"^(?:from|import) (\S+)", path.read_text(), re.M)}
    assert imported == {"sys", "numpy", "torch", "disco_torch"}
    code, printed = repro.run(path, folder)
    assert code == 1 and "compared: output out, case ops/signed_hyperbolic[plain] (float64)" in printed


def test_a_file_proves_a_cause_by_ending_otherwise_once_it_is_mended(tmp_path):
    package = fake_package(tmp_path / "1.0", utils="INDEX = 2\n") / "disco_torch"
    files = {
        "proof": "from disco_torch import utils; print('here'); raise SystemExit(utils.INDEX - 1)",
        "never": "print('equal after all')",
        "always": "print('still there'); raise SystemExit(1)",
        "broken": "raise SystemExit(int('x'))",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = {name: repro.proves(tmp_path / f"{name}.py", INDEX, package) for name in files}
    assert found["proof"] == (True, "here")
    assert found["never"] == (False, "exit code 0: equal after all")
    assert found["always"] == (False, "exit code 1 after the correction: still there")
    assert not found["broken"][0] and "ValueError" in found["broken"][1]


@pytest.mark.parametrize("known_cause", [c for c in DISCO_TORCH.causes if c.shown], ids=lambda c: c.name)
def test_each_known_difference_has_a_file_that_is_python(known_cause):
    text = repro.source(known_cause, "disco_torch/x.py:1", "0.4.0", "disco-torch", "repro.py")
    ast.parse(text)
    for word in ("jax", "parity", "reports", "port"):
        assert not re.search(rf"^\s*(from|import) {word}\b", text, re.M), word
    assert known_cause.right in text and known_cause.original in text and "pip install disco-torch==0.4.0" in text


def test_the_page_says_what_differs_and_what_moved(fakes, tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "load_port", lambda name: known(EPSILON, INDEX))
    monkeypatch.setattr("reports.page.reference_in_words", lambda: "nothing")
    out, verdict = tmp_path / "out", tmp_path / "verdict.json"
    arguments = ["--from", str(fakes), "--versions", "1.0,2.0", "--out", str(out), "--json", str(verdict)]
    assert audit.main(["disco_torch", *arguments]) == 1
    html = (out / "index.html").read_text()
    assert f"disco-torch 2.0 provides 3 of {len(REGISTRY)} layers: 1 equal to the original, 2 different" in html
    assert "disco_torch/utils.py:3" in html and "Another index" in html
    assert "From 1.0 to 2.0" in html and "Layers that have become equal: moving_average/normalize." in html
    assert "Nothing is left unexplained" in html
    assert "the package leaves the agent&#39;s network to its user" in html
    written = json.loads((out / "audit.json").read_text())
    assert [r["version"] for r in written] == ["1.0", "2.0"]
    assert [c["name"] for c in written[1]["causes"]] == ["index"]
    assert json.loads(verdict.read_text())[0]["equal"] is False
    assert (out / "audit.csv").is_file() and (out / "audit.png").is_file()


def test_missing_packages_are_a_sentence_with_a_command(tmp_path, capsys, monkeypatch):
    assert audit.main(["disco_torch", "--versions", "9.9", "--from", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "pip install --no-deps --target" in said and "Traceback" not in said
    assert audit.main(["disco_torch", "--versions", "9.9"]) == 2
    with pytest.raises(CannotRun, match="no release"):
        release.find_packages(DISCO_TORCH, tmp_path, [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    capsys.readouterr()
    assert audit.main(["disco_torch", "--out", str(tmp_path / "out")]) == 2
    assert "pip install --no-deps disco-torch==0.4.0" in capsys.readouterr().err


def test_the_whole_page_does_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = audit.section("port", tmp_path)
    assert found.is_equal and "was not checked here" in found.verdict
    assert "python -m reports.audit disco_torch" in found.body
    assert list(tmp_path.iterdir()) == []


def test_rows_survive_the_way_between_processes():
    rows = [
        row("ops/kl", 2.0),
        failed(("ops/kl", "plain", "out"), "vjp", "float64", Problem(ProblemKind.CALL, "raised ValueError: no")),
    ]
    assert pickle.loads(pickle.dumps(rows)) == rows


def test_a_port_of_which_nothing_is_known_is_judged_by_its_adapter_alone(tmp_path, capsys):
    """The toy adapter's Retrace is one step too late; a process of its own imports it from the current folder."""
    verdict = tmp_path / "verdict.json"
    assert audit.main(["tests.toy:implementation", "--out", str(tmp_path), "--json", str(verdict)]) == 1
    (written,) = json.loads((tmp_path / "audit.json").read_text())
    assert written["different"] == {"values/retrace": "values"}
    assert [m["name"] for m in written["diagnoses"][0]["mistakes"]] == ["retrace_index_too_late"]
    html = (tmp_path / "index.html").read_text()
    assert "retrace_index_too_late" in html and "sigmas" in html and "What is left" not in html
    assert json.loads(verdict.read_text())[0]["equal"] is False
    assert audit.main(["tests.toy:implementation", "--versions", "1"]) == 2
    assert "imported as it is" in capsys.readouterr().err


def test_known_causes_and_reasons_are_well_formed():
    causes = DISCO_TORCH.causes
    assert len({cause.name for cause in causes}) == len(causes) == 20
    assert all("\n" not in pattern for cause in causes for pattern, _ in cause.edits)
    assert all(cause.reach in REACHES and cause.right and cause.means for cause in causes)
    assert {layer for layers in DISCO_TORCH.reasons.values() for layer in layers} <= set(REGISTRY)
    assert importlib.util.find_spec("reports.audit") and (ADAPTER / "probes.py").is_file()
    wanted = {"retrace_index", "root_epsilon", "two_hot_epsilon", "vtrace_advantage"}
    assert wanted <= {cause.name for cause in causes if cause.shown}


def test_the_figure_of_a_port_that_equals_the_original_draws_no_warning():
    audit.figure([]).savefig(io.BytesIO())
