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
import numpy as np
from parity.implementation import load
warnings.filterwarnings("error")
warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
reference = load("standin")
if len(sys.argv) > 1:
    reference.keep_programs(Path(sys.argv[1]))
x = {"x": np.random.default_rng(0).normal(size=(5, 7))}
outs, grads = reference.run_and_vjp("ops/signed_parabolic", x, {"eps": 1e-3}, "float64", {"out": x["x"]}, ["x"])
print(outs["out"].tobytes().hex(), grads["x"].tobytes().hex())
"""


def computed(*given, **environment):
    """The bits of a layer and its VJP, as a fresh process has them."""
    command = [sys.executable, "-c", CODE, *map(str, given)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def programs(folder):
    """Name -> content and time of what is kept."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*-cache")}


def test_the_next_process_finds_what_was_compiled_and_gives_the_same_bits(tmp_path):
    compiled = computed()
    assert computed(tmp_path) == compiled
    kept = programs(tmp_path)
    assert kept
    assert computed(tmp_path) == compiled
    assert programs(tmp_path) == kept
    for path in tmp_path.rglob("*-cache"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert computed(tmp_path) == compiled  # what is damaged is compiled anew


def test_a_folder_that_the_caller_has_chosen_is_used(tmp_path):
    computed(tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))
    assert not (tmp_path / "ours").exists()


def test_live_tests_keep_their_programs_in_the_cache_of_pytest(tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-o", f"cache_dir={tmp_path}", "parity/test_live.py"]
    chosen = ["-k", "test_live and ops/signed_parabolic"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "PYTEST_XDIST"))}
    done = subprocess.run([*command, *chosen], cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert programs(tmp_path / "d" / "disco-parity-programs")
