"""The stand-in: it covers the registry, equals the goldens, and knows nothing of the original or of the port.

All its goldens are compared by `python -m parity check --impl standin`; here it is the first cases of each layer, so
that it takes seconds.
"""

import ast
import dataclasses
import importlib.util
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from parity.goldens.check import Judge, injected_error_is_found, load, rows_expected
from parity.goldens.store import Store
from parity.implementation import KNOWN
from parity.implementation import load as load_implementation
from parity.layers import REGISTRY
from parity.live.comparison import WITHOUT_GRADIENTS
from reference.jax_runtime import JaxImplementation, on_host
from reference.standin import elementary, implementation, layers
from tests.helpers import ROOT, run_without

SOURCES = sorted((ROOT / "reference" / "standin").glob("*.py"))
UNKNOWN_TO_IT = {"disco_rl", "parity", "port", "reports", "tests", "torch"}
MAY_IMPORT = {"distrax", "haiku", "jax", "numpy", "optax", "rlax", "reference"} | set(sys.stdlib_module_names)
REFERENCE = re.compile(r"Reference: (disco_rl)/(\S+)::(\S+)")

# Layers whose VJP takes many seconds to compile; what they are made of is judged with its gradients here, and they
# are by the whole check.
VALUES_ONLY = ("agent/learner_step", "agent/loss", "disco/unroll_meta_net", "meta/whole")


@pytest.fixture(scope="module")
def store():
    return Store()


def quick_cases():
    """The first two cases of each layer that are stored whole; one where each takes seconds.

    `pytest parity/` does it for layers without gradients, whose programs it compiles as well.
    """
    for layer in REGISTRY.values():
        if layer.name in WITHOUT_GRADIENTS:
            continue
        stored = [case.name for case in layer.cases if case.stored]
        yield from ((layer.name, case) for case in stored[: 1 if layer.name in VALUES_ONLY else 2])


def golden_of(store, layer, case):
    golden = load(store, layer, case)
    if layer not in VALUES_ONLY:
        return golden
    return dataclasses.replace(golden, vjps={})


def test_it_provides_every_layer_of_the_registry_and_no_other():
    assert set(implementation.layers) == set(REGISTRY)
    assert load_implementation("standin") is implementation
    assert KNOWN["standin"] == "reference.standin:implementation"


@pytest.mark.parametrize(("layer", "case"), [pytest.param(*c, id=f"{c[0]}[{c[1]}]") for c in quick_cases()])
def test_it_equals_the_original(store, layer, case):
    golden = golden_of(store, layer, case)
    assert injected_error_is_found(golden)
    rows = list(Judge(implementation).rows(golden))
    assert [row.sentence() for row in rows if not row.equal] == []
    assert len(rows) == rows_expected(golden) > 0


def test_enough_is_compared_here():
    cases = list(quick_cases())
    assert {layer for layer, _ in cases} == set(REGISTRY) - WITHOUT_GRADIENTS
    assert len(WITHOUT_GRADIENTS) == 4
    assert len(cases) >= 100


@pytest.mark.parametrize(
    ("layer", "wrong"),
    [
        ("values/retrace", lambda x, s: {"q_target": jnp.roll(layers.retrace(x, s), 1, axis=0)}),
        ("transforms/stop_grad", lambda x, s: {"out": x["x"]}),
        ("moving_average/update", lambda x, s: layers.ELEMENTARY["moving_average/update"](x, {**s, "decay": 0.98})),
        ("ops/lookup", lambda x, s: {"out": elementary.lookup(x["table"], x["index"]) + 1e-11}),
    ],
    ids=["shifted_in_time", "gradient_not_stopped", "other_decay", "off_by_1e-11"],
)
def test_a_layer_that_is_wrong_is_found(store, layer, wrong):
    broken = JaxImplementation("broken", "one layer of the stand-in, wrong", {layer: wrong})
    rows = list(Judge(broken).rows(load(store, layer, "plain")))
    assert any(not row.equal for row in rows)


def imported(source):
    """Top-level packages that a module's text imports, and what it takes from `reference`."""
    names, own = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        names |= {module.split(".")[0] for module in modules}
        own |= {module for module in modules if module.split(".")[0] == "reference"}
    return names, own


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_it_imports_the_jax_stack_and_itself_only(path):
    names, own = imported(path.read_text(encoding="utf-8"))
    assert names - {"__future__"} <= MAY_IMPORT
    assert not names & UNKNOWN_TO_IT
    shared = [f"reference.{name}" for name in ("jax_runtime", "devices", "flat_dict")]  # how layers are run
    assert all(module in shared or module.startswith("reference.standin") for module in own)


def test_an_import_of_the_original_would_be_seen():
    names, own = imported("def f():\n    from disco_rl import utils\n    import reference.original.values\n")
    assert names & UNKNOWN_TO_IT == {"disco_rl"}
    assert own == {"reference.original.values"}
    assert len(SOURCES) >= 7


ENTROPY = """
import numpy as np
from reference.standin import implementation
logits = np.array([[[0.0, 1.0], [2.0, 0.0]]])
out = implementation.run("ops/entropy", {"p_logits": logits}, {}, "float64")["out"]
print(*(float(value) for value in out.reshape(-1)))
"""


def test_it_runs_where_the_original_the_port_and_torch_are_not_installed():
    done = run_without(UNKNOWN_TO_IT - {"parity"}, ENTROPY)  # which measures sigma, for whoever runs layers
    assert done.returncode == 0, done.stderr
    probabilities = [1.0 / (1.0 + np.exp(-gap)) for gap in (1.0, 2.0)]
    expected = [-(p * np.log(p) + (1.0 - p) * np.log(1.0 - p)) for p in probabilities]
    np.testing.assert_allclose([float(value) for value in done.stdout.split()], expected, rtol=1e-13)


def test_the_blocking_blocks():
    done = run_without({"rlax"}, ENTROPY)
    assert done.returncode == 1
    assert "No module named 'rlax' (blocked)" in done.stderr


def references():
    return sorted({match for path in SOURCES for match in REFERENCE.findall(path.read_text(encoding="utf-8"))})


@pytest.mark.parametrize(("package", "file", "symbol"), references())
def test_what_it_refers_to_in_the_original_exists(package, file, symbol):
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip("disco_rl is not installed; `make original` brings it")
    body = ast.parse((pathlib.Path(spec.submodule_search_locations[0]) / file).read_text()).body
    for name in symbol.split("."):
        found = [node for node in body if getattr(node, "name", None) == name]
        assert found, f"{file} has no {symbol}"
        body = getattr(found[0], "body", [])


def test_it_says_what_it_states():
    assert len(references()) >= 30


@pytest.mark.parametrize("is_on_host", [False, True])
def test_what_is_not_compiled_computes_in_jax_all_the_same(is_on_host):
    seen = []

    def layer(inputs, s):
        seen.append(type(inputs["x"]))
        return inputs

    made = JaxImplementation("made", "up", {"a/layer": on_host(layer) if is_on_host else layer})
    outputs = (made if is_on_host else made.eagerly).run("a/layer", {"x": np.ones(2)}, {}, "float32")
    assert issubclass(seen[0], jax.Array)
    assert outputs["x"].dtype == np.float32
