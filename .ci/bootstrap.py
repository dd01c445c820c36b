"""Builds `.venv` from `requirements.lock` and installs this project into it, once.

Run by the system's Python, so standard library only, and nothing that an old Python cannot parse: it must
live long enough to say that it is too old. A digest of what was installed is stamped into `.venv`
at the very end; while the stamp fits, a call costs a fraction of a second.

Example:
    python3 .ci/bootstrap.py
"""

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST_PYTHON = (3, 11)
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
INPUTS = ("requirements.lock", "pyproject.toml")
STAMP = ".disco-parity"  # in .venv: what was installed, written last
UNFINISHED = ".installing"  # in .venv: an install is under way, or was interrupted

# What pip says, and the sentence that makes of it; the first that fits wins. `{0}`, `{1}` are the groups.
PIP_FAILURES = (
    (r"No space left on device", "{package} does not fit: there is no space left on the disk"),
    (
        r"Cannot install (.+?) because these package versions have conflicting dependencies",
        "{0} ask for versions that exclude each other",
    ),
    (
        r"Package '?([\w.-]+)'? requires a different Python: (\S+) not in '?([^'\n]+)'?",
        "{0} asks for Python {2}, and this one is {1}",
    ),
    (
        r"ERROR: Failed building wheel for (\S+)",
        "{0} has no wheel for this machine, and building it failed",
    ),
    (
        r"Encountered error while generating package metadata\.\s+╰─> (.+?) from",
        "{0} could not be built",
    ),
    (
        r"DO NOT MATCH THE HASHES[\s\S]*?^\s+(\S+) from",
        "{0} came with an unexpected digest",
    ),
    (r"No matching distribution found for (\S+)", "{0}: {missing}"),
    (r"Could not install requirement (\S+) .*because of (HTTP error .+)", "{0} could not be downloaded: {1}"),
    (r"ERROR: Invalid requirement: '?([^'\n:]+)'?", "{0} in requirements.lock is not a requirement"),
    (r"ReadTimeoutError|Read timed out", "{package} could not be downloaded: the connection timed out"),
)
NO_NETWORK = re.compile(
    r"connection broken by|NewConnectionError|NameResolutionError|ProxyError|ConnectTimeout|Max retries"
)


class InstallError(Exception):
    """An install that failed, as one sentence; `half_done` where it may have left part of a package."""

    def __init__(self, sentence, half_done=False):
        super().__init__(sentence)
        self.half_done = half_done


def explain_pip_failure(log):
    """Turns pip's output into one sentence that names the package and why it failed.

    Args:
        log: everything that the failed pip printed.
    """
    collected = re.findall(r"^\s*(?:Collecting|Building wheels for collected packages:) (\S+)", log, re.M)
    package = collected[-1].rstrip(",") if collected else "a package"
    for pattern, sentence in PIP_FAILURES:
        found = re.search(pattern, log, re.M)
        if found:
            return sentence.format(*found.groups(), package=package, missing=_why_missing(log))
    errors = re.findall(r"^\s*ERROR: (.+)$", log, re.M) or [line for line in log.splitlines() if line.strip()]
    why = errors[-1].strip().rstrip(".") if errors else "pip said nothing"
    return f"{package} could not be installed: {why}"


def _why_missing(log):
    """Says why pip found no distribution: no index in reach, or no such version on it."""
    offered = re.search(r"Could not find a version .+?\(from versions: ([^)]*)\)", log)
    names = offered.group(1) if offered else "none"
    if names in ("", "none") and NO_NETWORK.search(log):
        return "the package index cannot be reached"
    if names in ("", "none"):
        return f"the package index has no release of it for Python {PYTHON} here, or cannot be reached"
    newest = names.split(",")[-1].strip()
    return f"the package index has no such version (the newest it has is {newest})"


def digest_of_inputs(root, version=None):
    """Returns the digest that the stamp of a finished install must bear.

    The folder is part of it because an editable install points there: a copied `.venv` is not the copy's.
    """
    digest = hashlib.sha256(repr((os.path.abspath(root), version or sys.version_info[:2])).encode())
    for name in INPUTS:
        with open(os.path.join(root, name), "rb") as file:
            digest.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def is_current(root):
    """Says whether `.venv` holds what the lock and `pyproject.toml` ask for."""
    try:
        with open(os.path.join(root, ".venv", STAMP)) as file:
            return file.read() == digest_of_inputs(root) and os.path.exists(venv_python(root))
    except OSError:
        return False


def venv_python(root):
    """Returns the path of the virtual environment's interpreter."""
    return os.path.join(root, ".venv", "bin", "python")


@contextlib.contextmanager
def one_at_a_time(root):
    """Keeps two bootstraps of one folder apart: the second waits, then finds the work done."""
    import fcntl

    handle = os.open(os.path.join(root, ".ci"), os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def stage(name):
    """Prints the name of a stage and, when it is over, how long it took."""
    started = time.monotonic()
    sys.stdout.write(f"{name:28} ")
    sys.stdout.flush()
    outcome = "FAILED"
    try:
        yield
        outcome = "ok"
    finally:
        print(f"{outcome:6} {time.monotonic() - started:6.1f} s")


def build(root):
    """Creates `.venv` where there is no usable one, fills it, and stamps it."""
    venv = os.path.join(root, ".venv")
    if os.path.exists(os.path.join(venv, STAMP)):
        os.remove(os.path.join(venv, STAMP))
    if os.path.exists(os.path.join(venv, UNFINISHED)) or not _is_usable(root):
        with stage("create .venv"):
            shutil.rmtree(venv, ignore_errors=True)
            _run([sys.executable, "-m", "venv", venv], root, "w", _explain_venv_failure)
    unfinished = os.path.join(venv, UNFINISHED)
    with open(unfinished, "w"):
        pass
    with stage("install requirements.lock"):
        _pip(["--no-compile", "-r", "requirements.lock"], root, "w")
        _compile(root)
    with stage("install disco-parity"):
        _pip(["--no-deps", "--no-build-isolation", "-e", "."], root, "a")
    os.remove(unfinished)
    _write_whole(os.path.join(venv, STAMP), digest_of_inputs(root))


def _is_usable(root):
    """Says whether `.venv` has this Python's version, and a pip that starts."""
    code = f"import sys, pip; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])!r})"
    try:
        return subprocess.call([venv_python(root), "-c", code], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def _pip(arguments, root, mode):
    """Runs `pip install` in `.venv`; one that fails before it writes a package leaves nothing to clear."""
    command = [venv_python(root), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    try:
        _run(command + arguments, root, mode, explain_pip_failure)
    except InstallError as error:
        if not error.half_done:
            os.remove(os.path.join(root, ".venv", UNFINISHED))
        raise


def _compile(root):
    """Compiles what was installed on all cores, where pip would take one; what is no Python of this version stays."""
    with contextlib.suppress(InstallError):
        _run(
            [venv_python(root), "-m", "compileall", "-q", "-j", "0", os.path.join(root, ".venv", "lib")], root, "a", str
        )


def _run(command, root, mode, explain):
    """Runs a command with its output in `.venv/install.log`; raises the explanation where it fails."""
    log = os.path.join(root, ".venv", "install.log")
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, mode + "b") as file:
        before = file.tell()
        code = subprocess.call(command, cwd=root, stdout=file, stderr=subprocess.STDOUT)
    if code:
        with open(log, "rb") as file:
            file.seek(before)
            output = file.read().decode("utf-8", "replace")
        why = explain(output) if code > 0 else f"The install was killed by signal {-code}"
        half_done = code < 0 or "Installing collected packages" in output
        raise InstallError(f"{why} (whole log: .venv/install.log).", half_done)


def _explain_venv_failure(output):
    """Says why `python -m venv` failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if "ensurepip" in output:
        return "This Python cannot make a .venv: it has no ensurepip (Debian: install python3-venv)"
    why = lines[-1].rstrip(".") if lines else "venv said nothing"
    return f"The .venv could not be created: {why}"


def _write_whole(path, text):
    """Writes a file so that it is there whole or not at all."""
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)


def main(argv=None):
    """Builds the environment where it is not built yet; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=ROOT, help="project folder (default: the one this file is in)")
    root = os.path.abspath(parser.parse_args(argv).root)
    if sys.version_info[:2] < OLDEST_PYTHON:
        print(f"disco-parity needs Python 3.11 or newer, and this is {PYTHON}: try make PYTHON=python3.11 test.")
        return 1
    started = time.monotonic()
    try:
        with one_at_a_time(root):
            if not is_current(root):
                build(root)
    except InstallError as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted; the next call starts over.")
        return 1
    print(f"{'environment':28} {'ready':6} {time.monotonic() - started:6.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
