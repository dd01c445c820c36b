"""The files around the code say what is true of it."""

import re
import tomllib

import yaml

from reports.__main__ import SECTIONS
from tests.helpers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def read_yaml(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_every_path_of_the_guide_is_there():
    paths = set(re.findall(r"`([\w./]+/[\w./]*)`", GUIDE))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_module_and_target_of_the_guide_is_there():
    modules = set(re.findall(r"python -m ((?:parity|reference|reports)[\w.]*)", GUIDE))
    assert {"reference", "parity", "reports.bugs"} <= modules
    assert all((ROOT / module.replace(".", "/") / "__main__.py").is_file() for module in modules)
    targets = set(re.findall(r"\bmake ([a-z]+)", GUIDE))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [target for target in targets if f"\n{target}: " not in makefile] == []


def test_a_report_has_what_the_guide_says():
    for name in SECTIONS:
        text = (ROOT / "reports" / name / "command.py").read_text(encoding="utf-8")
        assert "def section(" in text and "def main(" in text and "TITLE" in text, name


def test_the_versions_agree():
    version = PROJECT["version"].partition(".dev")[0]
    assert read_yaml("CITATION.cff")["version"] == version
    assert re.search(rf"^## .*\b{re.escape(version)}$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)


def test_ci_runs_every_python_that_the_project_promises():
    jobs = read_yaml(".github/workflows/parity.yml")["jobs"]
    pythons = jobs["parity"]["strategy"]["matrix"]["python"]
    assert [f"Programming Language :: Python :: {python}" in PROJECT["classifiers"] for python in pythons] == [True] * 3
    assert f">={pythons[0]}" == PROJECT["requires-python"]
    steps = [
        step.get("run", "")
        for job in read_yaml(".github/workflows/deeper.yml")["jobs"].values()
        for step in job["steps"]
    ]
    assert "make newest" in steps
