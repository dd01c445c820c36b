"""What JAX compiled for the live checks is kept for the next run, and never decides a number."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="`pip install 'disco-parity[jax]'` brings JAX")
ROOT = pathlib.Path(__file__).resolve().parents[1]
CODE = """
import sys, warnings
from pathlib import Path
import jax.monitoring
import numpy as np
from parity.implementation import load
warnings.filterwarnings("error", "Error (reading|writing) persistent compilation cache entry")
found = []
jax.monitoring.register_event_listener(lambda event, **more: found.append(event) if event.endswith("cache_hits") else 0)
reference = load("standin")
if len(sys.argv) > 1:
    reference.keep_programs(Path(sys.argv[1]))
x = {"x": np.random.default_rng(0).normal(size=(5, 7))}
outs, grads = reference.run_and_vjp("ops/signed_parabolic", x, {"eps": 1e-3}, "float64", {"out": x["x"]}, ["x"])
print(len(found), outs["out"].tobytes().hex(), grads["x"].tobytes().hex())
"""
LIVE = [sys.executable, "-m", "pytest", "-q", "-n", "0", "parity/test_live.py", "-k", "test_live and signed_parabolic"]


def run(command, **environment):
    """A command in a process of its own, without the caller's settings of JAX."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "PYTEST_"))}
    return subprocess.run(command, cwd=ROOT, env={**clean, **environment}, capture_output=True, text=True, check=False)


def computed(*given, code=CODE, **environment):
    """How many programs a fresh process found, and the bits of a layer and its VJP."""
    done = run([sys.executable, "-c", code, *map(str, given)], **environment)
    assert done.returncode == 0, done.stderr
    found, *bits = done.stdout.split()
    return int(found), bits


def programs(folder):
    """What is kept there."""
    return list(folder.rglob("*-cache"))


def test_the_next_process_finds_what_was_compiled_and_gives_the_same_bits(tmp_path):
    nothing, compiled = computed()
    assert nothing == 0
    assert computed(tmp_path) == (0, compiled)
    found, bits = computed(tmp_path)
    assert found > 0 and bits == compiled
    for path in programs(tmp_path):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    forgiving = CODE.replace('"error"', '"ignore"')
    assert computed(tmp_path, code=forgiving) == (0, compiled)  # what is damaged is compiled anew


def test_a_folder_that_the_caller_has_chosen_is_used(tmp_path):
    chosen = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "theirs"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    computed(tmp_path / "ours", **chosen)
    assert programs(tmp_path / "theirs") and not (tmp_path / "ours").exists()


def test_live_tests_keep_their_programs_in_the_cache_of_pytest(tmp_path):
    done = run([*LIVE, "-o", f"cache_dir={tmp_path}"])
    assert done.returncode == 0, done.stdout
    kept = programs(tmp_path / "d" / "disco-parity-programs")
    assert kept
    for path in kept:
        path.write_bytes(b"")
    assert run([*LIVE, "-o", f"cache_dir={tmp_path}"]).returncode == 0


def test_live_tests_run_where_nothing_can_be_kept(tmp_path):
    (tmp_path / "file").write_text("no folder")
    done = run([*LIVE, "-o", f"cache_dir={tmp_path / 'file'}", "-W", "default::pytest.PytestCacheWarning"])
    assert done.returncode == 0, done.stdout
