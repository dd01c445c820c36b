"""Installing the original: from where the project declares it, or a checkout; failures are sentences."""

import pytest

from reference import identity, install


@pytest.fixture
def pip(monkeypatch):
    """Stands in for pip: notes what it is asked for, and answers as it is told."""
    calls = []

    def run(requirement):
        calls.append(requirement)
        return run.answer

    run.answer, run.calls = (0, ""), calls
    monkeypatch.setattr(install, "_pip_install", run)
    return run


@pytest.fixture
def checkout(tmp_path):
    source = tmp_path / "checkout"
    (source / "disco_rl").mkdir(parents=True)
    (source / "disco_rl" / "__init__.py").write_text("")
    (source / "pyproject.toml").write_text('[project]\nname = "disco_rl"\n')
    return source


def test_the_requirement_is_the_declared_one():
    table = identity.load_table()
    assert install.declared_requirement() == f"disco_rl @ git+{table.repository}@{table.commit}"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("fatal: unable to access 'x': Could not resolve host: github.com", "github.com does not resolve"),
        ("fatal: unable to access 'x': Failed to connect to github.com port 443", "cannot be reached"),
        ("ERROR: Cannot find command 'git' - do you have 'git' installed", "git is not installed"),
        ("fatal: unable to access 'x': CONNECT tunnel failed, response 403", "response 403"),
        ("fatal: reference is not a tree: 9059", "reference is not a tree: 9059"),
        ("ERROR: something else.", "something else;"),
        ("", "no reason"),
    ],
)
def test_without_network_there_is_one_sentence(output, reason, pip, capsys):
    pip.answer = (1, output)
    assert install.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert reason in lines[0] and "nothing was installed" in lines[0] and "SRC=PATH" in lines[0]


def _no_folder(checkout):
    return checkout / "nowhere"


def _no_project(checkout):
    (checkout / "pyproject.toml").unlink()
    return checkout


def _other_project(checkout):
    (checkout / "pyproject.toml").write_text('[project]\nname = "disco-rl-pytorch"\n')
    return checkout


def _broken_project(checkout):
    (checkout / "pyproject.toml").write_text("[project\n")
    return checkout


def _no_package(checkout):
    (checkout / "disco_rl" / "__init__.py").unlink()
    return checkout


@pytest.mark.parametrize("spoil", [_no_folder, _no_project, _other_project, _broken_project, _no_package])
def test_a_bad_source_is_refused_before_pip_runs(spoil, checkout, pip, capsys):
    assert install.main(["--src", str(spoil(checkout))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and lines[0].startswith("SRC=")
    assert pip.calls == []


def test_a_checkout_is_installed_from_a_copy_and_left_as_it_was(checkout, pip):
    (checkout / ".git").mkdir()
    (checkout / "build").mkdir()
    before = sorted(checkout.rglob("*"))
    install.install_checkout(checkout)
    (asked,) = pip.calls
    assert str(checkout) not in asked
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize(("state", "code"), [("genuine", 0), ("modified", 1), ("other", 1)])
def test_the_verdict_comes_last(state, code, checkout, pip, capsys, monkeypatch):
    found = identity.Identity(state, "c" * 40, None, ("agent.py",), (), (), "The message.")
    monkeypatch.setattr(identity, "identify", lambda: found)
    assert install.main(["--src", str(checkout)]) == code
    assert identity.describe(found) in capsys.readouterr().out
