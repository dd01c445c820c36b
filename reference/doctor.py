"""One screen on what this machine has of the original, and what is missing.

Exit code 0: there is a reference, and all is as it should be. 1: something differs (a
modified original, versions other than the lock's, a wrong weights file). 2: there is no reference.

Example:
    python -m reference doctor
    python -m reference doctor --json doctor.json
"""

import argparse
import dataclasses
import importlib.metadata
import json
import pathlib
import platform
import re
import textwrap
from typing import Any

from parity import weights
from parity.command_line import write_json
from reference import identity

ROOT = pathlib.Path(__file__).resolve().parents[1]
WIDTH = 100
MOST_MISMATCHES = 6


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A package whose installed version is not the locked one; `installed` is None where it is absent."""

    package: str
    locked: str
    installed: str | None


@dataclasses.dataclass(frozen=True)
class Findings:
    """What the doctor found.

    Attributes:
        reference: what a check would take for the truth: `original`, `goldens` or `nothing`.
        original: the installed `disco_rl`.
        pins: number of packages in the lock; 0 where there is no lock.
        mismatches: packages that are not as locked.
        weights: the weights file, or None.
        weights_error: why there is none.
        weights_wrong: whether a file was found and refused.
        fixtures_commit: commit that the goldens were recorded from; None where there are none.
        fixtures_error: why there are none.
    """

    reference: str
    original: identity.Identity
    pins: int
    mismatches: tuple[Mismatch, ...]
    weights: weights.Weights | None
    weights_error: str | None
    weights_wrong: bool
    fixtures_commit: str | None
    fixtures_error: str | None

    @property
    def exit_code(self) -> int:
        """0 all well, 1 something differs, 2 no reference."""
        if self.reference == "nothing":
            return 2
        recorded_elsewhere = self.fixtures_commit not in (None, self.original.commit)
        strange = self.original.state in ("modified", "other")
        return int(strange or bool(self.mismatches) or self.weights_wrong or recorded_elsewhere)


def read_lock(path: pathlib.Path) -> dict[str, str]:
    """Returns the pins of a lock file, `{package: version}`; empty where there is no file."""
    if not path.is_file():
        return {}
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return dict(line.split("==", 1) for line in lines if line)


def compare_versions(pins: dict[str, str]) -> tuple[Mismatch, ...]:
    """Returns the pins that are not met; a local suffix such as `+cpu` is the same release."""
    mismatches = []
    for package, locked in sorted(pins.items()):
        installed = _installed_version(package)
        if installed is None or installed.partition("+")[0] != locked:
            mismatches.append(Mismatch(package, locked, installed))
    return tuple(mismatches)


def _installed_version(package: str) -> str | None:
    """Returns the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def read_fixtures(folder: pathlib.Path) -> tuple[str | None, str | None]:
    """Returns the commit that the goldens were recorded from, or None and why it is not known."""
    manifest = folder / "manifest.json"
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        return str(content["original"]["commit"]), None
    except FileNotFoundError:
        return None, f"{folder.name}/manifest.json is not there"
    except (KeyError, TypeError):
        return None, f"{folder.name}/manifest.json names no commit of the original"
    except (OSError, ValueError) as error:
        return None, f"{folder.name}/manifest.json cannot be read: {error}"


def examine(root: pathlib.Path = ROOT) -> Findings:
    """Looks at this machine; imports nothing of the original and uses no network."""
    original = identity.identify()
    commit, fixtures_error = read_fixtures((root / "parity" / "fixtures").resolve())
    pins = read_lock(root / "requirements.lock")
    verified, error = None, None
    try:
        verified = weights.find_weights(download=False)
    except weights.WeightsError as caught:
        error = caught
    return Findings(
        reference="original" if original.is_runnable else "goldens" if commit else "nothing",
        original=original,
        pins=len(pins),
        mismatches=compare_versions(pins),
        weights=verified,
        weights_error=None if error is None else str(error),
        weights_wrong=error is not None and not isinstance(error, weights.WeightsMissingError),
        fixtures_commit=commit,
        fixtures_error=fixtures_error,
    )


def remedies(findings: Findings) -> list[tuple[str, str]]:
    """Returns what is missing or wrong, each with the command that mends it."""
    todo = []
    if findings.original.state == "other":
        todo.append(("something else bears the original's name", "pip uninstall disco-rl; make original"))
    elif findings.original.state != "genuine":
        todo.append((f"the original is {findings.original.state}", "make original (offline: SRC=PATH)"))
    if findings.mismatches:
        todo.append(("versions differ from the lock", "pip install --no-deps -r requirements.lock"))
    if findings.weights is None:
        wrong = "the weights file is wrong" if findings.weights_wrong else "the weights are not here"
        todo.append((wrong, f"{weights.MEND} (or {weights.VARIABLE}=FILE)"))
    if findings.fixtures_commit != findings.original.commit:
        todo.append(("the goldens are missing or of another commit", "git checkout -- fixtures"))
    return todo


def render(findings: Findings) -> str:
    """Returns the findings as a screen of text."""
    rows = [("reference", _reference_line(findings)), ("original", _original_line(findings.original))]
    rows.append(("versions", _versions_line(findings)))
    rows += [("", _mismatch_line(mismatch)) for mismatch in findings.mismatches[:MOST_MISMATCHES]]
    rows += [("weights", _weights_line(findings)), ("goldens", _fixtures_line(findings))]
    todo = remedies(findings)
    rows += [("to mend" if index == 0 else "", f"{what}: {how}") for index, (what, how) in enumerate(todo)]
    if not todo:
        rows.append(("to mend", "nothing"))
    return "\n".join(_wrap(label, text) for label, text in rows)


def _reference_line(findings: Findings) -> str:
    """Says which reference a check would use."""
    if findings.reference == "original":
        return "the original, live" + (", MODIFIED" if findings.original.state == "modified" else "")
    if findings.reference == "goldens":
        return "recorded goldens (the original itself is not installed)"
    return "nothing: there is neither the original nor a recording of it"


def _original_line(original: identity.Identity) -> str:
    """Says what is installed as `disco_rl`."""
    if original.state == "genuine":
        return f"genuine, commit {original.commit}"
    return f"{original.state}: {original.message}"


def _versions_line(findings: Findings) -> str:
    """Says how many pins are met."""
    if not findings.pins:
        return f"Python {platform.python_version()}; no requirements.lock here to compare with"
    met = findings.pins - len(findings.mismatches)
    rest = len(findings.mismatches) - MOST_MISMATCHES
    more = f" (the first {MOST_MISMATCHES} of {len(findings.mismatches)} others:)" if rest > 0 else ""
    return f"Python {platform.python_version()}; {met} of {findings.pins} packages as locked{more}"


def _mismatch_line(mismatch: Mismatch) -> str:
    """Says how one package differs."""
    return f"{mismatch.package}: locked {mismatch.locked}, installed {mismatch.installed or 'not at all'}"


def _weights_line(findings: Findings) -> str:
    """Says which weights were found."""
    file = findings.weights
    if file is None:
        return findings.weights_error or "none"
    return f"{file.path} (from {file.source}), sha256 {file.sha256[:12]}… verified"


def _fixtures_line(findings: Findings) -> str:
    """Says what the goldens were recorded from."""
    if findings.fixtures_commit is None:
        return findings.fixtures_error or "none"
    same = "the same commit" if findings.fixtures_commit == findings.original.commit else "ANOTHER commit"
    return f"recorded from {findings.fixtures_commit[:7]}, {same}"


def _wrap(label: str, text: str) -> str:
    """Lays out one row: a label, then text that is wrapped, and cut after two lines."""
    lines = textwrap.wrap(re.sub(r"\s+", " ", text), WIDTH - 12, max_lines=2, placeholder=" …")
    return "\n".join(f"{label if index == 0 else '':<11} {line}" for index, line in enumerate(lines))


def as_json(findings: Findings) -> dict[str, Any]:
    """Returns the findings as plain values."""
    plain = dataclasses.asdict(findings)
    plain["original"] = findings.original.as_json()
    if findings.weights is not None:
        plain["weights"]["path"] = str(findings.weights.path)
    plain["remedies"] = [{"what": what, "command": how} for what, how in remedies(findings)]
    return plain | {"exit_code": findings.exit_code}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `python -m reference doctor`."""
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the findings here")


def run(args: argparse.Namespace) -> int:
    """Prints the findings; returns the exit code."""
    findings = examine()
    print(render(findings))
    write_json(args.json, as_json(findings))
    return findings.exit_code
