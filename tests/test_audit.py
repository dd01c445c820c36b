"""The audit of somebody else's port, without that port: a stand-in package plays its part."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity.compare import compare, failed
from parity.implementation import KNOWN, CannotRun
from parity.layers import REGISTRY
from parity.store import Accuracy
from reports import audit
from reports.adapters import bench, release
from reports.adapters.causes import Cause, corrected_copy
from reports.adapters.known_disco_torch import CAUSES

ROOT = Path(__file__).resolve().parent.parent
ADAPTER = ROOT / "reports" / "adapters" / "disco_torch"

EPSILON = Cause("epsilon", "No epsilon", "utils.py", ((r"EPSILON = 0", "EPSILON = 1"),), "there", "says", "means")
INDEX = Cause("index", "Another index", "utils.py", ((r"INDEX = 2", "INDEX = 1"),), "there", "says", "means")
ELSEWHERE = Cause("elsewhere", "Not here", "utils.py", ((r"NOWHERE", "x"),), "there", "says", "means")

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
    return compare((layer, "plain", output), kind, dtype, np.ones(1), given, Accuracy(1.0, 0.0, 1e-8))


def made(version: str, wrong: dict[str, float], provided: list[str], **more) -> release.Release:
    """A release in which the given layers have the given values instead of 1."""
    values = {layer: wrong.get(layer, 1.0) for layer in provided}
    fields = {
        **{"findings": [], "left_over": [], "repros": {}, "diagnoses": {}, "skipped": {}, "without_gradients": []},
        "not_provided": [name for name in REGISTRY if name not in provided],
        "description": f"disco-torch {version}",
        "rows": [row(layer, value) for layer, value in values.items()],
    }
    return release.Release(version=version, provided=provided, **(fields | more))


def test_every_layer_named_by_the_adapter_is_in_the_registry():
    groups = "|".join(sorted({name.split("/")[0] for name in REGISTRY}))
    text = "\n".join((ADAPTER / f"{name}.py").read_text() for name in ("elementary", "values", "metanet", "learning"))
    named = set(re.findall(rf'"((?:{groups})/[a-z_]+)": [_lm]', text))
    assert len(named) > 25
    assert named <= set(REGISTRY)
    assert KNOWN["disco_torch"] == "reports.adapters.disco_torch:implementation"


def test_a_release_without_a_trainer_provides_fewer_layers(tmp_path):
    code = "from reports.adapters.disco_torch import implementation; print(*implementation.layers)"
    first = in_process(fake_package(tmp_path / "a"), code).split()
    trainer = "class DiscoTrainer: ...\n"
    second = in_process(fake_package(tmp_path / "b", trainer=trainer), code).split()
    third = in_process(fake_package(tmp_path / "c", trainer=trainer + "class ClippedAdam: ...\n"), code).split()
    assert set(second) - set(first) == {"optim/update", "agent/loss", "agent/learner_step", "agent/learner_steps"}
    assert set(third) - set(second) == {"optim/adam"}
    assert set(third) <= set(REGISTRY)


def test_the_adapter_calls_the_package_as_it_is(tmp_path):
    code = """
import numpy as np
from reports.adapters.disco_torch import implementation as it
x = np.array([[1.0, -3.0]])
print(it.run("ops/signed_hyperbolic", {"x": x}, {}, "float64")["out"].tolist())
print(it.vjp("ops/signed_hyperbolic", {"x": x}, {}, "float64", {"out": np.ones((1, 2))}, ["x"])["x"].tolist())
print(it.run("ops/signed_hyperbolic", {"x": x}, {}, "float32")["out"].dtype)
"""
    assert in_process(fake_package(tmp_path), code).split("\n")[:3] == ["[[2.0, -6.0]]", "[[2.0, 2.0]]", "float32"]


def test_an_output_that_is_not_given_is_not_called_different():
    absent = failed(("disco/agent_loss", "plain", "log/y"), "value", "float64", "is missing; the layer gave ['loss'].")
    rows = [row("disco/agent_loss", 1.0, "loss"), absent]
    found = made("1.0", {}, ["disco/agent_loss"], rows=rows)
    assert found.different_layers() == []
    assert found.missing_outputs() == {"disco/agent_loss": ["log/y"]}
    assert found.state("disco/agent_loss") == "equal"
    assert found.state("nets/agent") == "not provided"


def test_states_tell_values_from_gradients_and_precisions():
    rows = [row("ops/kl", 2.0, kind="vjp"), row("ops/two_hot", 1.0 + 1e-10), row("ops/two_hot", 1.0, dtype="float32")]
    rows += [row("ops/lookup", 1.5), row("ops/lookup", 1.5, dtype="float32")]
    found = made("1.0", {}, ["ops/kl", "ops/two_hot", "ops/lookup"], rows=rows)
    assert found.state("ops/kl") == "gradients only"
    assert found.state("ops/two_hot") == "values in float64 only"
    assert found.state("ops/lookup") == "values"


def test_the_first_divergence_has_nothing_different_upstream():
    provided = ["ops/two_hot", "values/q_and_v", "values/retrace", "values/estimate_q"]
    found = made("1.0", {"values/retrace": 2.0, "values/estimate_q": 2.0}, provided)
    sentence = audit.first_divergence(found)
    assert "the first layer that differs is values/retrace" in sentence
    assert "values/q_and_v" in sentence and "values/estimate_q" not in sentence
    assert audit.first_divergence(made("1.0", {}, provided)) == "No layer differs."


def test_movement_between_releases_is_told():
    older = made("0.1", {"ops/kl": 2.0, "ops/lookup": 2.0}, ["ops/kl", "ops/lookup", "ops/two_hot"])
    newer = made("0.2", {"ops/kl": 2.0, "ops/two_hot": 2.0}, ["ops/kl", "ops/lookup", "ops/two_hot", "nets/mlp"])
    assert audit.movement(older, newer) == [
        "Equal now: ops/lookup.",
        "Different now: ops/two_hot.",
        "Different as before: ops/kl.",
        "New, and equal: nets/mlp.",
    ]


def fake_bench(name: str, folder: Path, *options: str) -> dict:
    """Judges the fake package: two layers, one wrong by its epsilon, the other by its index and the epsilon."""
    scope: dict[str, int] = {}
    exec((folder / "disco_torch" / "utils.py").read_text(), scope)
    epsilon, index = scope["EPSILON"], scope["INDEX"]
    rows = [row("moving_average/normalize", float(epsilon)), row("values/retrace", float(epsilon + index - 1))]
    found = {"rows": [bench.row_as_dict(r) for r in rows], "folder": str(folder / "disco_torch")}
    provided = ["moving_average/normalize", "values/retrace"]
    names = {key: {} for key in ("repros", "diagnoses", "skipped")}
    rest = {"provided": provided, "not_provided": [n for n in REGISTRY if n not in provided], "without_gradients": []}
    return {**found, **names, **rest, "description": "disco-torch"}


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "bench", fake_bench)
    monkeypatch.setattr(release, "small_cases", lambda rows: [])
    fake_package(tmp_path / "1.0", utils="EPSILON = 0\nINDEX = 2\n")
    fake_package(tmp_path / "2.0", utils="EPSILON = 1\n\nINDEX = 2\n")
    return tmp_path


def test_a_cause_is_named_only_where_it_alone_makes_the_difference(fakes, tmp_path):
    found = release.examine("disco_torch", "1.0", fakes / "1.0", (EPSILON, INDEX, ELSEWHERE), tmp_path / "out")
    acting = {finding.cause.name: list(finding.rows) for finding in found.findings}
    assert acting == {"epsilon": ["moving_average/normalize", "values/retrace"], "index": ["values/retrace"]}
    assert found.findings[1].place == "disco_torch/utils.py:2"
    assert found.findings[1].line == "INDEX = 2"
    assert found.left_over == []
    newer = release.examine("disco_torch", "2.0", fakes / "2.0", (EPSILON, INDEX), tmp_path / "out")
    assert [finding.cause.name for finding in newer.findings] == ["index"]


def test_what_no_known_cause_explains_is_left_over(fakes, tmp_path):
    found = release.examine("disco_torch", "1.0", fakes / "1.0", (EPSILON,), tmp_path / "out")
    assert [r.layer for r in found.left_over] == ["values/retrace"]


def test_a_corrected_copy_leaves_the_package_alone(tmp_path):
    folder = fake_package(tmp_path / "1.0", utils="EPSILON = 0\r\nINDEX = 2\r\n")
    before = (folder / "disco_torch" / "utils.py").read_bytes()
    copy = corrected_copy(folder / "disco_torch", [INDEX], tmp_path / "copy")
    assert (copy / "disco_torch" / "utils.py").read_text() == "EPSILON = 0\nINDEX = 1\n"
    assert (folder / "disco_torch" / "utils.py").read_bytes() == before


def test_the_page_says_what_differs_and_what_moved(fakes, tmp_path, monkeypatch):
    manifest = {"original": {"repository": "there", "commit": "c0ffee"}}
    monkeypatch.setattr(audit, "Store", lambda: type("Store", (), {"manifest": manifest}))
    monkeypatch.setattr("reports.adapters.known_disco_torch.CAUSES", (EPSILON, INDEX))
    monkeypatch.setattr("reports.page.reference_in_words", lambda: "nothing")
    out = tmp_path / "out"
    code = audit.main(["disco_torch", "--from", str(fakes), "--versions", "1.0,2.0", "--out", str(out)])
    assert code == 1
    html = (out / "index.html").read_text()
    assert f"disco-torch 2.0 provides 2 of {len(REGISTRY)} layers: 1 equal to the original, 1 different." in html
    assert "disco_torch/utils.py:3" in html and "Another index" in html
    assert "From 1.0 to 2.0" in html and "Equal now: moving_average/normalize." in html
    assert "nothing is left unexplained" in html
    written = json.loads((out / "audit.json").read_text())
    assert [r["version"] for r in written] == ["1.0", "2.0"]
    assert (out / "audit.csv").is_file() and (out / "audit.png").is_file()


def test_missing_packages_are_a_sentence_with_a_command(tmp_path, capsys):
    assert audit.main(["disco_torch", "--versions", "9.9", "--from", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "pip install --no-deps --target" in said and "Traceback" not in said
    assert audit.main(["disco_torch", "--versions", "9.9"]) == 2
    with pytest.raises(CannotRun, match="no release"):
        release.find_packages("disco_torch", tmp_path, [])


def test_rows_survive_the_way_between_processes():
    rows = [row("ops/kl", 2.0), failed(("ops/kl", "plain", "out"), "vjp", "float64", "raised ValueError: no")]
    assert [bench.row_from_dict(json.loads(json.dumps(bench.row_as_dict(r)))) for r in rows] == rows


def test_causes_have_names_of_their_own_and_quote_at_most_a_fragment():
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)
    assert all("\n" not in pattern for cause in CAUSES for pattern, _ in cause.edits)
