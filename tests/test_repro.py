"""Repro files: they are Python whatever an error said, and call an implementation whatever it is called."""

import ast
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parity.compare import Problem, ProblemKind, failed
from parity.live import repro
from tests import made

AWKWARD = ['"', '"""', "\\", "\\N{x}", "\\u12", "\n", "\r", "\0", "\ud800", "\u2028", "{x}", "é"]
TEXT = st.lists(st.sampled_from(AWKWARD) | st.text(st.characters(), max_size=4), max_size=6).map("".join)
ADAPTER = """
class Adapter:
    def run(self, layer, inputs, settings, dtype):
        return {"out": inputs["x"], "more": inputs["x"]}


mine = Adapter()
"""


def row_of(output, problem):
    return failed((made.LAYER, "plain", output), "value", "float64", problem)


@settings(derandomize=True, database=None, max_examples=100, suppress_health_check=list(HealthCheck), deadline=None)
@given(TEXT, TEXT, st.sampled_from(["out", "extra", 'ex"tra\\' * 60]))
@example('a"""b\\', "\0", "out")
def test_a_file_parses_whatever_an_error_said(tmp_path, text, name, output):
    row = row_of(output, Problem(ProblemKind.RAISED, f"raised ValueError: {text}", "ValueError"))
    tree = ast.parse(repro.write(made.golden(), row, f"{name}:{name}", tmp_path).read_bytes())
    assert ast.get_docstring(tree, clean=False).startswith(row.sentence())


@pytest.mark.parametrize(("output", "said"), [("out", "DIFFERENT"), ("more", "expected the shape (0,)")])
def test_a_file_calls_an_implementation_whose_name_is_no_identifier(tmp_path, output, said):
    (tmp_path / "my-adapter.py").write_text(ADAPTER)
    row = row_of(output, Problem(ProblemKind.EXTRA, "is not an output of this layer."))
    path = repro.write(made.golden(1.0), row, "my-adapter:mine", tmp_path)
    done = subprocess.run([sys.executable, path.name], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "") and said in done.stdout
