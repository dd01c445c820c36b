"""The environment is built once, repaired where a build broke off, and a failure is one sentence."""

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture
def bootstrap():
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / ".ci" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path):
    """A project folder whose .venv has an interpreter, and nothing else."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


class Commands:
    """Stands in for running commands: notes them, and fails as it is told at the one that holds a word."""

    def __init__(self, fails_at=None, error=None):
        self.seen = []
        self.fails_at, self.error = fails_at, error

    def __call__(self, command, root, mode, explain):
        self.seen.append(command)
        if self.fails_at in command:
            raise self.error
        if "venv" in command:
            (pathlib.Path(root) / ".venv" / "bin").mkdir(parents=True)
            (pathlib.Path(root) / ".venv" / "bin" / "python").symlink_to(sys.executable)

    @property
    def made_anew(self):
        return any("venv" in command for command in self.seen)


@pytest.fixture
def build(bootstrap, project, monkeypatch):
    monkeypatch.setattr(bootstrap, "_is_usable", lambda root: True)

    def run(commands):
        monkeypatch.setattr(bootstrap, "_run", commands)
        code = bootstrap.main(["--root", str(project)])
        return code, bootstrap.is_current(str(project))

    return run


SAMPLES = {
    "no_such_version": (
        """Collecting numpy==99.0
  ERROR: Could not find a version that satisfies the requirement numpy==99.0 (from versions: 1.0, 2.4.6)
ERROR: No matching distribution found for numpy==99.0""",
        r"^numpy==99\.0: .*no such version \(the newest it has is 2\.4\.6\)",
    ),
    "no_such_package": (
        """ERROR: Could not find a version that satisfies the requirement nope==1 (from versions: none)
ERROR: No matching distribution found for nope==1""",
        r"^nope==1: .* no release of it for Python",
    ),
    "no_network": (
        """WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError()': /simple/
ERROR: Could not find a version that satisfies the requirement jax==0.8.1 (from versions: none)
ERROR: No matching distribution found for jax==0.8.1""",
        r"^jax==0\.8\.1: the package index cannot be reached",
    ),
    "full_disk": (
        """Collecting torch==2.13.0
ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device""",
        r"^torch==2\.13\.0 does not fit: .*no space left",
    ),
    "conflict": (
        "ERROR: Cannot install b==2 and a==1 because these package versions have conflicting dependencies.",
        r"^b==2 and a==1 ask for versions that exclude each other",
    ),
    "other_python": (
        "ERROR: Package 'disco-parity' requires a different Python: 3.10.1 not in '>=3.11'",
        r"^disco-parity asks for Python >=3\.11, and this one is 3\.10\.1",
    ),
    "no_wheel": (
        "Building wheels for collected packages: dm-tree\nERROR: Failed building wheel for dm-tree\n",
        r"^dm-tree has no wheel",
    ),
    "timeout": (
        "Collecting jaxlib==0.8.1\n  ReadTimeoutError: Read timed out.",
        r"^jaxlib==0\.8\.1 .*timed out",
    ),
    "something_new": (
        "Collecting chex==0.1.92\nERROR: the moon is full.",
        r"^chex==0\.1\.92 .*: the moon is full$",
    ),
    "silence": ("", r"pip said nothing"),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_pip_failures_become_one_sentence(name, bootstrap):
    output, expected = SAMPLES[name]
    sentence = bootstrap.explain_pip_failure(output)
    assert re.search(expected, sentence)
    assert "\n" not in sentence


def test_the_sentence_fits_what_pip_really_says(bootstrap):
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", "no-such-package==1.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert bootstrap.explain_pip_failure(done.stdout + done.stderr).startswith("no-such-package==1.0: ")


def test_a_finished_install_is_stamped_and_not_repeated(build):
    first, second = Commands(), Commands()
    assert build(first) == (0, True)
    assert len(first.seen) == 3 and not first.made_anew
    assert build(second) == (0, True)
    assert second.seen == []


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_another_lock_or_pyproject_installs_again(name, build, bootstrap, project):
    build(Commands())
    with open(project / name, "a") as file:
        file.write("# changed\n")
    assert not bootstrap.is_current(str(project))


def test_a_copied_venv_is_not_the_copys(build, bootstrap, project, tmp_path_factory):
    build(Commands())
    copy = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(project, copy, symlinks=True)
    assert bootstrap.is_current(str(project)) and not bootstrap.is_current(str(copy))


@pytest.mark.parametrize("fails_at", ["requirements.lock", "-e"])
def test_a_failed_install_says_why_and_leaves_no_stamp(fails_at, build, bootstrap, capsys):
    failing = Commands(fails_at, bootstrap.InstallError("numpy==99: no such version."))
    assert build(failing) == (1, False)
    assert capsys.readouterr().out.splitlines()[-1] == "numpy==99: no such version."
    mending = Commands()
    assert build(mending) == (0, True)
    assert not mending.made_anew


def test_a_failed_update_takes_the_old_stamp_away(build, bootstrap, project):
    build(Commands())
    with open(project / "requirements.lock", "a") as file:
        file.write("nope==1\n")
    assert build(Commands("requirements.lock", bootstrap.InstallError("No."))) == (1, False)
    shutil.copy(ROOT / "requirements.lock", project)
    assert not bootstrap.is_current(str(project))


@pytest.mark.parametrize("how", ["interrupted", "half_done"])
def test_an_install_that_broke_off_starts_over(how, build, bootstrap):
    error = KeyboardInterrupt() if how == "interrupted" else bootstrap.InstallError("Killed.", half_done=True)
    assert build(Commands("requirements.lock", error)) == (1, False)
    mending = Commands()
    assert build(mending) == (0, True)
    assert mending.made_anew


def test_what_was_installed_is_compiled_on_all_cores_and_what_cannot_be_stays(build, bootstrap):
    commands = Commands("compileall", bootstrap.InstallError("no Python", half_done=True))
    assert build(commands) == (0, True)
    lock = next(command for command in commands.seen if "requirements.lock" in command)
    compilation = next(command for command in commands.seen if "compileall" in command)
    assert "--no-compile" in lock and compilation[-3:-1] == ["-j", "0"]


def test_an_unusable_venv_is_made_anew(build, bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap, "_is_usable", lambda root: False)
    commands = Commands()
    build(commands)
    assert commands.made_anew


def test_usable_means_that_pip_starts(bootstrap, project):
    assert not bootstrap._is_usable(str(project / "nowhere"))
    assert bootstrap._is_usable(str(ROOT)) == (ROOT / ".venv").exists()


def test_an_old_python_gets_a_sentence(bootstrap, project, monkeypatch, capsys):
    monkeypatch.setattr(bootstrap, "OLDEST_PYTHON", (99, 0))
    assert bootstrap.main(["--root", str(project)]) == 1
    assert "needs Python" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "half_done"),
    [
        ("print('ERROR: because'); raise SystemExit(3)", False),
        ("print('Installing collected packages: numpy\\nERROR: because'); raise SystemExit(3)", True),
        ("import os; print('ERROR: because', flush=True); os.kill(os.getpid(), 9)", True),
    ],
    ids=["before_writing", "while_writing", "killed"],
)
def test_a_failed_command_keeps_its_output_and_says_how_far_it_got(code, half_done, bootstrap, project):
    with pytest.raises(bootstrap.InstallError, match="because|killed by signal 9") as caught:
        bootstrap._run([sys.executable, "-c", code], str(project), "w", bootstrap.explain_pip_failure)
    assert caught.value.half_done == half_done
    assert "ERROR: because" in (project / ".venv" / "install.log").read_text()
