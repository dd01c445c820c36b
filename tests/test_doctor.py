"""The doctor says on one screen what is there, what is not, and what mends it."""

import argparse
import dataclasses
import json
import subprocess
import sys

import pytest

from parity import weights
from reference import doctor, identity

COMMIT = identity.load_table().commit
GENUINE = identity.Identity("genuine", COMMIT, None, (), (), (), "It is the original.")
MODIFIED = dataclasses.replace(
    GENUINE,
    state="modified",
    differing=tuple(f"folder/file_{index}.py" for index in range(20)),
    message="The installed disco_rl is not that of the commit: " + ", ".join(["folder/a_file.py"] * 20),
)
ABSENT = dataclasses.replace(GENUINE, state="absent", message="The original is not installed.")
OTHER = dataclasses.replace(GENUINE, state="other", message="An unrelated control library.")
WELL = doctor.Findings("original", GENUINE, 70, (), None, "No weights.", False, COMMIT, None)
MANY = tuple(doctor.Mismatch(f"package-{index}", "1.0", None) for index in range(70))


def _but(**changes):
    return dataclasses.replace(WELL, **changes)


WORST = _but(
    original=MODIFIED,
    mismatches=MANY,
    weights_error="/a/very/long/path/" + "x" * 80 + "/disco_103.npz is refused: " + "damaged " * 30,
    weights_wrong=True,
    fixtures_commit=None,
    fixtures_error="fixtures/manifest.json cannot be read: " + "strange " * 30,
)


@pytest.mark.parametrize("findings", [WELL, WORST, _but(original=OTHER)], ids=["well", "worst", "other"])
def test_it_fits_on_one_screen(findings):
    lines = doctor.render(findings).splitlines()
    assert len(lines) <= 24
    assert max(len(line) for line in lines) <= 100


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        (WELL, 0),
        (_but(original=ABSENT, reference="goldens"), 0),
        (_but(original=MODIFIED), 1),
        (_but(original=OTHER, reference="goldens"), 1),
        (_but(mismatches=MANY[:1]), 1),
        (_but(weights_wrong=True), 1),
        (_but(fixtures_commit="f" * 40), 1),
        (_but(original=ABSENT, reference="nothing", fixtures_commit=None), 2),
    ],
    ids=["well", "goldens_only", "modified", "other", "version", "weights", "other_recording", "nothing"],
)
def test_exit_codes(findings, code):
    assert findings.exit_code == code


def test_it_says_who_speaks():
    assert "the original, live" in doctor.render(WELL)
    assert "MODIFIED" in doctor.render(_but(original=MODIFIED))
    assert "recorded goldens" in doctor.render(_but(original=ABSENT, reference="goldens"))


def test_each_fault_has_a_command_that_mends_it():
    commands = " ".join(command for _, command in doctor.remedies(WORST))
    assert "make original" in commands
    assert "requirements.lock" in commands
    assert weights.MEND in commands
    assert "pip uninstall disco-rl" in " ".join(how for _, how in doctor.remedies(_but(original=OTHER)))
    assert doctor.remedies(_but(weights=weights.Weights(doctor.ROOT, "path", "0" * 64))) == []


@pytest.mark.parametrize(
    ("content", "commit", "reason"),
    [
        (json.dumps({"original": {"commit": COMMIT}}), COMMIT, None),
        (None, None, "is not there"),
        ("{}", None, "names no commit"),
        ("[1]", None, "names no commit"),
        ("{", None, "cannot be read"),
    ],
    ids=["good", "none", "no_commit", "a_list", "not_json"],
)
def test_the_manifest_is_read_with_care(content, commit, reason, tmp_path):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    found, why = doctor.read_fixtures(tmp_path)
    assert found == commit
    assert (why is None) == (reason is None) and (reason or "") in (why or "")


def test_json_tells_what_the_screen_tells(tmp_path, capsys):
    code = doctor.run(argparse.Namespace(json=tmp_path / "doctor.json"))
    written = json.loads((tmp_path / "doctor.json").read_text())
    assert written["exit_code"] == code
    assert written["original"]["state"] in capsys.readouterr().out
    assert written["pins"] > 60


@pytest.mark.parametrize("command", ["doctor", "weights"])
def test_help_has_an_example(command):
    done = _reference(command, "--help")
    assert done.returncode == 0
    assert f"python -m reference {command}" in done.stdout.split("Example:")[1]


def test_an_unknown_command_could_not_run():
    done = _reference("cure")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def _reference(*arguments):
    command = [sys.executable, "-m", "reference", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=doctor.ROOT, check=False)
