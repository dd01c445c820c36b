"""The commands of the Makefile and of `.ci`, tried in a copy whose interpreter is a script."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
INTERPRETER = """#!/bin/sh
echo "$*" >> calls
echo "$#" >> counts
case "$*" in
  "-m reports") mkdir -p reports/out; touch reports/out/index.html; echo "wrote reports/out/index.html" ;;
  *{failing}*) echo "the reason"; exit 1 ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    """A project with the real Makefile, an environment that is always ready, and one source file."""
    shutil.copytree(ROOT / ".ci", tmp_path / "project" / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    root = tmp_path / "project"
    shutil.copy(ROOT / "Makefile", root)
    (root / ".ci" / "bootstrap.py").write_text("print('environment ready')\n")
    for name in ("requirements.lock", "pyproject.toml", "port/source.py", "fixtures/golden.bin"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("")
    set_interpreter(root)
    return root


def set_interpreter(root, failing="no-such-word"):
    _script(root / ".venv" / "bin" / "python", INTERPRETER.replace("{failing}", failing))


def _script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def make(root, *arguments):
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", f"PYTHON={sys.executable}", *arguments]
    return subprocess.run(command, cwd=root, env=surroundings, capture_output=True, text=True, check=False)


def calls(root):
    return (root / "calls").read_text().splitlines() if (root / "calls").exists() else []


def test_test_runs_every_stage_and_says_how_long_each_took(project):
    done = make(project, "test")
    assert done.returncode == 0, done.stdout + done.stderr
    stages = ["ruff check", "ruff format", "mypy", "pytest tests/", "pytest parity/"]
    timed = [line for line in done.stdout.splitlines() if line.endswith(" s")]
    assert [line[:28].strip() for line in timed] == stages
    assert calls(project)[-2:] == ["-m pytest -q tests/", "-m pytest -q parity/"]


@pytest.mark.parametrize("stage", ["ruff check", "ruff format", "mypy", "tests/", "parity/"])
def test_a_failed_stage_shows_its_output_and_stops(stage, project):
    set_interpreter(project, failing=f'"{stage}"')
    done = make(project, "test")
    assert done.returncode != 0
    assert "FAILED" in done.stdout and "the reason" in done.stdout
    assert stage in calls(project)[-1]


def test_jobs_go_to_xdist(project):
    make(project, "test", "JOBS=2")
    assert calls(project)[-1] == "-m pytest -q -n 2 parity/"


def test_report_is_made_once(project):
    first = make(project, "report")
    assert "wrote reports/out/index.html" in first.stdout
    second = make(project, "report")
    assert second.returncode == 0 and "reports/out/index.html is up to date" in second.stdout
    assert len(calls(project)) == 1


@pytest.mark.parametrize("name", ["port/source.py", "fixtures/golden.bin", "requirements.lock"])
def test_report_is_made_again_when_something_it_rests_on_changed(name, project):
    make(project, "report")
    page = project / "reports" / "out" / "index.html"
    later = page.stat().st_mtime + 5
    os.utime(project / name, (later, later))
    assert "up to date" not in make(project, "report").stdout
    assert len(calls(project)) == 2


def test_a_failed_report_fails(project):
    (project / "reports" / "out").mkdir(parents=True)
    _script(project / ".venv" / "bin" / "python", "#!/bin/sh\nexit 1\n")
    assert make(project, "report").returncode != 0


def test_a_report_that_is_not_good_is_made_again(project):
    _script(
        project / ".venv" / "bin" / "python", INTERPRETER.replace("{failing}", "x").replace("wrote", "bad") + "exit 1"
    )
    for times in (1, 2):
        assert make(project, "report").returncode != 0
        assert len(calls(project)) == times


def test_browser_is_installed_by_the_project(project):
    assert make(project, "browser").returncode == 0
    assert calls(project) == ["-m reports.browser"]


def test_original_hands_on_the_source(project):
    make(project, "original")
    make(project, "original", "SRC=some where")
    assert calls(project) == ["-m reference.install", "-m reference.install --src some where"]
    assert (project / "counts").read_text().split() == ["2", "4"]  # the blank in the path splits nothing


def test_help_lists_every_target(project):
    listed = make(project).stdout
    assert all(f"  {target} " in listed for target in ("test", "report", "original", "lint", "clean"))


@pytest.mark.parametrize(
    ("given", "present", "expected"),
    [(None, True, "{beside}"), (None, False, "unset"), ("mine.npz", True, "mine.npz")],
    ids=["beside_the_project", "nowhere", "already_set"],
)
def test_ci_names_the_weights_that_lie_beside_the_project(given, present, expected, project):
    beside = project.parent / "shared" / "weights" / "disco_103.npz"
    if present:
        beside.parent.mkdir(parents=True)
        beside.write_bytes(b"")
    fake = project.parent / "bin"
    _script(fake / "make", '#!/bin/sh\necho "$1 ${DISCO103_WEIGHTS-unset}"\n')
    surroundings = os.environ | {"PATH": f"{fake}:{os.environ['PATH']}"}
    surroundings.pop("DISCO103_WEIGHTS", None)
    if given:
        surroundings["DISCO103_WEIGHTS"] = given
    done = subprocess.run([project / ".ci" / "run"], env=surroundings, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"test {expected.format(beside=beside)}"


def test_ci_goes_on_without_a_browser(project):
    fake = project.parent / "bin"
    _script(fake / "make", '#!/bin/sh\necho "$1"\n[ "$1" = test ]\n')
    surroundings = os.environ | {"PATH": f"{fake}:{os.environ['PATH']}"}
    done = subprocess.run([project / ".ci" / "run"], env=surroundings, capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.returncode) == (["browser", "test"], 0)
