"""The tolerance: its formula, what says nothing under it, and that there is no other one in the project."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from parity import tolerance
from parity.tolerance import (
    PRECISIONS,
    RECORDED,
    UNINFORMATIVE,
    C,
    K,
    computed_in,
    excess,
    floor,
    is_zero_but_for_rounding,
    scale_of,
    uninformative,
)

ROOT = Path(__file__).resolve().parents[1]


def test_the_constants_stay_small():
    assert 0 < C <= 10
    assert 0 < K <= 100
    assert K * 2.0 ** -PRECISIONS["float64"] < 1e-14


def test_the_whole_rule_fits_on_a_few_pages():
    assert len(Path(tolerance.__file__).read_text(encoding="utf-8").splitlines()) <= 150


def test_every_precision_has_a_recorded_sigma_for_values():
    assert {PRECISIONS[p] for p in PRECISIONS} == set(RECORDED["value"])
    assert set(RECORDED["vjp"]) == {PRECISIONS["float64"], PRECISIONS["float32"]}
    assert {p: computed_in(p) for p in PRECISIONS} == dict.fromkeys(PRECISIONS, "float32") | {"float64": "float64"}


def test_the_tolerance_is_the_formula():
    sigma = np.array([0.0, 1e-9, np.inf])
    for bits in (53, 24, 11, 8):
        allowed = tolerance.tolerance(sigma, 3.0, bits)
        assert allowed.tolist() == [K * 2.0**-bits * 3.0, C * 1e-9 + K * 2.0**-bits * 3.0, np.inf]


def test_the_scale_is_the_largest_finite_magnitude():
    assert scale_of(np.array([1.0, -3.0, np.inf, np.nan])) == 3.0
    assert scale_of(np.array([np.nan, -np.inf])) == scale_of(np.zeros((0, 2))) == scale_of(np.zeros(2)) == 0.0
    assert scale_of(np.array([7, 9])) == 1.0


def test_excess_is_the_c_that_an_element_needs():
    sigma, low = np.array([1e-6, 1e-6, 0.0, 0.0, np.inf]), floor(1.0, 53)
    error = np.array([low + 3e-6, 0.5 * low, 0.5 * low, 2 * low, 5.0])
    assert excess(error, sigma, 1.0, 53) == pytest.approx([3.0, 0.0, 0.0, np.inf, 0.0])


def test_an_element_says_nothing_where_rounding_moves_it_by_a_thousandth_of_the_scale():
    truth = np.array([100.0, 0.0, 1.0])
    sigma = 100.0 * UNINFORMATIVE * np.array([0.99, 1.01, 0.0])
    assert uninformative(truth, sigma).tolist() == [False, True, False]
    assert not uninformative(np.array([1, 2]), np.array([5.0, 5.0])).any()


def test_an_output_that_is_zero_but_for_rounding_says_that():
    truth = np.array([1e-17, -7e-17, 0.0])
    assert is_zero_but_for_rounding(truth, np.full(3, 1e-17))
    assert not uninformative(truth, np.full(3, 1e-17)).any()
    assert not is_zero_but_for_rounding(truth, np.array([1e-17, 8e-18, 1e-17]))
    assert uninformative(truth, np.array([1e-17, 8e-18, 1e-17])).all()


# No other tolerance

FOLDERS = ("parity", "reference", "reports")
SMALL = 0.01  # what a tolerance may look like: a number of at most this, in a comparison
TINY = 1e-5  # or a factor of at most this, which makes a scale a tolerance
ELSEWHERE = re.compile(r"(?i)^_?(assert_)?(all_?close|is_?close|approx|[ra]?_?tol|.*budget.*|tolerance_?\w*\d\w*)$")
ONLY_THERE = re.compile(r"(?i)^_?tolerance$")
DEFINES_IT = {
    "parity/tolerance.py": "the rule",
    "parity/compare.py": "`Row.tolerance`, what the rule allowed an element",
}
# Comparisons with a small number that decide nothing about numbers being equal.
ALLOWED = {
    ("parity/tolerance.py", "sigma > UNINFORMATIVE * scale_of(truth)"): "part of the rule: which elements say nothing",
    ("parity/runs/spec.py", "name in DISCO103_AGENT"): "a key of settings",
    ("parity/mutants/suspect.py", "row.max_rel <= NEAR * self.worst.max_rel"): "how well a mistake explains an error",
    ("parity/mutants/suspect.py", "distance > ROUNDING"): "which outputs a sentence counts as unexplained",
    ("parity/mutants/diagnose.py", "distance > THERE / NEAR"): "what is left for another mistake to explain",
    ("parity/test_meta_updates.py", "moved > 0.001"): "that something was learned at all",
}


def numbers(tree, most):
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) is float and 0 < node.value <= most
    ]


def small_constants(module):
    """Names at the top of a module whose value has a small number in it."""
    found = set()
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and numbers(node.value, SMALL):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return found


def names(tree):
    """Every name that is used, and those that are given to something here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.Attribute):
            yield node.attr, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or "", isinstance(node, ast.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, True
        elif isinstance(node, ast.alias):
            yield node.asname or node.name, node.asname is not None


def tolerances_in(text, path):
    """What looks like a tolerance of its own in a module."""
    module = ast.parse(text)
    constants = small_constants(module)
    for name, is_given in names(module):
        if ELSEWHERE.match(name) or (is_given and ONLY_THERE.match(name) and path not in DEFINES_IT):
            yield f"the name {name}"
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            named = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} & constants
            if (numbers(node, SMALL) or named) and (path, ast.unparse(node)) not in ALLOWED:
                yield f"the comparison {ast.unparse(node)}"
        is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if is_product and any(side in numbers(side, TINY) for side in (node.left, node.right)):
            yield f"the product {ast.unparse(node)}"
        if isinstance(node, ast.keyword) and node.arg == "allowed" and isinstance(node.value, ast.Constant):
            yield f"the argument {ast.unparse(node)}"


SOURCES = [path.relative_to(ROOT) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_there_is_no_other_tolerance(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert sorted(set(tolerances_in(text, path.as_posix()))) == []


@pytest.mark.parametrize(
    "text",
    [
        "np.allclose(a, b)",
        "np.testing.assert_allclose(a, b)",
        "math.isclose(a, b)",
        "f(a, rtol=x)",
        "def f(atol): ...",
        "tol = 3",
        "layer.tolerance64",
        "TOLERANCE = 3",
        "budget = 1",
        "abs(a - b) < 1e-12",
        "1e-6 >= abs(a - b)",
        "SLACK = 1e-9\ndef f(a): return a <= SLACK * 2",
        "LIMITS = {'a': 1e-9}\ndef f(a, b): return a <= LIMITS[b]",
        "allowed = 1e-12 * scale",
        "allowed = np.abs(x).max() * 1e-7",
        "Shown(allowed=1e-4)",
    ],
)
def test_another_tolerance_would_be_seen(text):
    assert list(tolerances_in(text, "parity/made_up.py"))


@pytest.mark.parametrize(
    "text",
    [
        "from parity.tolerance import tolerance\nallowed = tolerance(sigma, scale, 53)",
        "eps = 1e-6\ny = x / (z + eps)",
        "OPTIONS = {'learning_rate': 1e-3}",
        "axes.set_xlim(1e-18, 1)",
        "row.tolerance > 1",
        "p < 0.05",
    ],
)
def test_what_is_none_is_left_alone(text):
    assert not list(tolerances_in(text, "parity/made_up.py"))


def test_what_is_allowed_is_still_there_and_has_a_reason():
    for (path, comparison), reason in ALLOWED.items():
        found = [
            ast.unparse(node)
            for node in ast.walk(ast.parse((ROOT / path).read_text()))
            if isinstance(node, ast.Compare)
        ]
        assert reason and comparison in found, f"{path} no longer has {comparison!r}"
    assert len(SOURCES) > 100
