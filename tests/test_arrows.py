"""Who uses whom, as design.md draws it: read from the sources, and tried where the rest is not there."""

import subprocess
import sys

import pytest

from tests import arrows
from tests.helpers import ROOT, extras_alone, run_without

FOLDERS = ("port", "parity", "reference", "reports")
JAX_STACK = {"chex", "distrax", "haiku", "jax", "jaxlib", "jmp", "optax", "rlax"}
STDLIB = set(sys.stdlib_module_names)

# Which folder may use which. By name: where an import statement would not do, since the other may be absent.
MAY = {
    "port": set(),
    "parity": {"fixtures"},
    "reference": {"fixtures", "parity"},
    "reports": {"fixtures", "parity", "port"},
}
MAY_BY_NAME = {"reports": {"reference"}}
MAY_WITHIN = {"port.adapter": "parity.adapters"}  # a package, and the only one outside of its folder that it may use
EXCEPTIONS = {
    ("parity.implementation", "port.adapter"): "an implementation, by name: KNOWN",
    ("parity.implementation", "reference.original"): "an implementation, by name: KNOWN",
    ("parity.implementation", "reference.standin"): "an implementation, by name: KNOWN",
    ("parity.implementation", "reports.audit.disco_torch"): "an implementation, by name: KNOWN",
    ("parity.mutants", "port"): "the folder of the catalogue, which is data",
    ("parity.mutants", "port.adapter"): "the implementation that the catalogue is about",
    ("parity.commands.trace", "reports"): "reports/out, where every command writes by default",
    ("parity.test_live", "reports"): "reports/out, where every command writes by default",
}

# Lowest first: a room uses those of lower levels only. `.` is what the folder itself gives.
LEVELS = {
    "port": (
        "ops trees types",
        "storage",
        "processes distributed environments optimizers",
        "command_line",
        "input_transforms moving_average",
        "input_option",
        "config",
        "networks",
        "rollout_checks value_fns",
        "replay update_rules",
        "network",
        "strategy",
        "fast",
        "agent weights",
        "bundled",
        "agent_flags",
        "evaluate",
        "meta_train train",
        ".",
        "adapter examples",
    ),
    "parity": (
        ". errors tolerance weights",
        "files layers",
        "bridge",
        "adapters diagram implementation sigma sketch",
        "command_line compare timeout",
        "goldens",
        "ci live trace",
        "mutants",
        "commands runs",
        "plugin",
        "__main__ conftest test_goldens test_live test_meta_updates",
    ),
    "reference": (
        ". flat_dict identity monte_carlo weights",
        "doctor install jax_runtime",
        "devices",
        "original standin",
        "record",
        "__main__",
    ),
    "reports": (
        ". browser page processes",
        "bugs catch_curves guide_figures lockstep meta_gradients parity screenshot",
        "audit",
        "speed",
        "__main__",
    ),
}

# Packages of others: what `port` and `parity` may import, where, and what `reference` may not.
ALLOWED = {
    "port": STDLIB | {"numpy", "torch"},
    "parity": STDLIB | {"hypothesis", "numpy", "pytest", "rich", "safetensors", "xdist"},
}
# The commands of the port may show progress, draw and keep files, inside functions: the library is imported without.
IN_COMMANDS = {"gymnasium", "matplotlib", "rich", "safetensors"}
ALLOWED_WITHIN = {
    "port.command_line": IN_COMMANDS,
    "port.meta_train": IN_COMMANDS,
    "port.storage": IN_COMMANDS,
    "port.train": IN_COMMANDS,
    "parity.adapters.jax": {"jax"},
    "parity.adapters.torch": {"torch"},
    "parity.weights": {"pooch"},
    "parity.runs": {"dask", "distributed"},
}
FORBIDDEN = {"reference": {"torch"}}


@pytest.fixture(scope="module")
def sources():
    return {name: text for folder in FOLDERS for name, text in arrows.read_sources(ROOT, folder).items()}


def offences(sources):
    """Arrows from folder to folder that are not drawn, by module."""
    by_import = arrows.graph(sources, by_name=False)
    found = {}
    for module, uses in arrows.graph(sources).items():
        folder = module.partition(".")[0]
        across = {used for used in uses if used.partition(".")[0] in set(arrows.FOLDERS) - {folder}}
        for within, package in MAY_WITHIN.items():
            is_within = f"{module}.".startswith(f"{within}.")
            across -= {used for used in across if is_within and f"{used}.".startswith(f"{package}.")}
        named = {used for used in across - by_import[module] if (module, used) not in EXCEPTIONS}
        wrong = {used for used in named if used.partition(".")[0] not in MAY[folder] | MAY_BY_NAME.get(folder, set())}
        wrong |= {used for used in across & by_import[module] if used.partition(".")[0] not in MAY[folder]}
        found |= {module: wrong} if wrong else {}
    return found


def strangers(sources):
    """Packages of others that a module may not import."""
    found = {}
    for module, uses in arrows.graph(sources).items():
        folder, names = module.partition(".")[0], {used.partition(".")[0] for used in uses} - set(arrows.FOLDERS)
        for within, also in ALLOWED_WITHIN.items():
            names -= also if f"{module}.".startswith(f"{within}.") else set()
        wrong = names & FORBIDDEN.get(folder, set()) | (names - ALLOWED[folder] if folder in ALLOWED else set())
        found |= {module: wrong} if wrong else {}
    return found


def levels_broken(sources, folder):
    return arrows.upward(arrows.between_rooms(arrows.graph(sources), folder), LEVELS[folder])


def test_folders_use_only_those_that_they_may(sources):
    assert offences(sources) == {}


def test_every_exception_is_needed(sources):
    uses = arrows.graph(sources)
    assert [arrow for arrow in EXCEPTIONS if arrow[1] not in uses.get(arrow[0], ())] == []


def test_packages_of_others_stay_where_they_belong(sources):
    assert strangers(sources) == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_rooms_use_lower_rooms_only(folder, sources):
    assert levels_broken(sources, folder) == {}
    assert len([name for name in sources if name.startswith(f"{folder}.")]) >= 20


@pytest.mark.parametrize("folder", FOLDERS)
def test_there_is_no_cycle_between_rooms(folder, sources):
    assert arrows.cycles(arrows.between_rooms(arrows.graph(sources), folder)) == []


def test_there_is_no_cycle_between_modules(sources):
    assert arrows.cycles(arrows.graph(sources, by_name=False)) == []


INJECTED = {
    "an_import": ("parity", "import port.agent", "port.agent"),
    "an_import_in_a_function": ("parity", "def f():\n    from port import agent", "port.agent"),
    "a_relative_import": ("parity", "from ..port import agent", "port.agent"),
    "an_import_by_name": ("parity", "importlib.import_module('reference.identity')", "reference.identity"),
    "a_name_made_up": ("parity", "importlib.import_module(f'reference.{name}')", "reference"),
    "an_entry_point": ("parity", "X = 'reports.audit.bench:rows'", "reports.audit.bench"),
    "a_command": ("parity", "run([sys.executable, '-m', 'reference', 'record'])", "reference"),
    "a_command_s_module": ("parity", "run(['-m', 'reports.speed'])", "reports.speed"),
    "a_folder": ("parity", "ROOT / 'port' / 'agent.py'", "port"),
    "a_folder_joined": ("port", "ROOT.joinpath('fixtures', 'weights')", "fixtures"),
    "a_path": ("port", "OUT = Path('reports/out/train')", "reports"),
    "a_path_made_up": ("port", "Path(f'fixtures/{name}')", "fixtures"),
    "a_source_text": ("parity", "open('port/agent.py')", "port.agent"),
    "not_by_name_alone": ("reports", "from reference import identity", "reference.identity"),
    "the_adapters": ("port", "from parity.adapters.torch import graft", "parity.adapters.torch"),
    "the_tests": ("reports", "from tests import toy", "tests.toy"),
}


@pytest.mark.parametrize("name", INJECTED)
def test_an_injected_arrow_is_seen(name, sources):
    folder, text, used = INJECTED[name]
    assert offences({**sources, f"{folder}.injected": text}) == {f"{folder}.injected": {used}}


def test_the_adapter_uses_the_helpers_for_adapters_alone(sources):
    text = "from parity.adapters.torch import graft\nfrom parity.compare import compare"
    wrong = {"port.adapter.injected": {"parity.compare"}}
    assert offences({**sources, "port.adapter.injected": text}) == wrong


def test_words_of_a_message_are_no_arrow(sources):
    text = '"""See `port.agent`."""\nprint("reports.speed: no such file")\nX = "Run python -m reports.speed."'
    assert offences({**sources, "parity.injected": text}) == {}


@pytest.mark.parametrize(
    ("module", "text", "wrong"),
    [
        ("port.networks.injected", "from port import agent", {"port.networks": {"port.agent"}}),
        ("port.injected", "", {"port.injected": {"no level"}}),
        ("port.train.injected", "import_module('port.meta_train.run')", {"port.train": {"port.meta_train"}}),
        ("port.agent", "from port import adapter", {"port.agent": {"port.adapter"}}),
    ],
    ids=["upward", "no_level", "sideways_by_name", "the_adapter"],
)
def test_an_injected_use_of_a_higher_room_is_seen(module, text, wrong, sources):
    assert levels_broken({**sources, module: text}, "port") == wrong


def test_a_level_for_a_room_that_is_gone_is_seen(sources):
    kept = {name: text for name, text in sources.items() if name != "port.replay"}
    assert "replay" in levels_broken(kept, "port")


def test_an_injected_cycle_is_seen(sources):
    injected = {"port.ops": "from port.networks import nets", "port.networks.nets": "from port import ops"}
    found = arrows.cycles(arrows.between_rooms(arrows.graph({**sources, **injected}), "port"))
    assert len(found) == 1 and {"port.ops", "port.networks"} <= found[0]
    assert ["port.networks.nets" in found for found in arrows.cycles(arrows.graph({**sources, **injected}))] == [True]


@pytest.mark.parametrize(
    ("module", "text", "name"),
    [
        ("port.ops", "def f():\n    import jax.numpy as jnp", "jax"),
        ("port.ops", "from rich import print", "rich"),
        ("parity.files", "importlib.import_module('torch')", "torch"),
        ("parity.adapters.shared", "import torch", "torch"),
        ("parity.adapters.torch", "import jax", "jax"),
        ("reference.devices", "try:\n    from torch import nn\nexcept ImportError:\n    pass", "torch"),
    ],
)
def test_an_injected_stranger_is_seen(module, text, name, sources):
    assert strangers({**sources, module: text}) == {module: {name}}


LOAD_ALL = """
import importlib, pathlib
count, left_out = 0, sys.argv[2].split()
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    if path.name.startswith(("test_", "conftest", "__main__")):
        continue
    if any(path.is_relative_to(one) for one in left_out) or (sys.argv[3:] and path.stem not in sys.argv[3:]):
        continue
    parts = path.with_suffix("").parts
    importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    count += 1
print(count)
"""


@pytest.mark.parametrize(
    ("package", "left_out", "blocked", "only"),
    [
        ("port", "port/adapter", JAX_STACK | {"disco_rl", "parity", "reference"} | IN_COMMANDS, ()),
        ("port/adapter", "", JAX_STACK | {"disco_rl", "reference"} | IN_COMMANDS - {"rich", "safetensors"}, ()),
        ("parity", "parity/adapters/torch.py parity/adapters/jax.py", JAX_STACK | {"disco_rl", "port", "torch"}, ()),
        ("parity/adapters", "parity/adapters/jax.py", JAX_STACK | {"disco_rl", "port"}, ()),
        ("parity/adapters", "parity/adapters/torch.py", {"disco_rl", "port", "torch"}, ()),
        ("reference", "", JAX_STACK | {"port", "torch"}, ("identity", "weights", "doctor", "install")),
    ],
    ids=["port", "port_adapter", "parity", "torch_adapters", "jax_adapters", "doctor"],
)
def test_it_loads_where_the_others_are_not_installed(package, left_out, blocked, only):
    done = run_without(blocked, LOAD_ALL, package, left_out, *only)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3


def test_the_blocking_blocks():
    done = run_without({"torch"}, LOAD_ALL, "port", "")
    assert done.returncode == 1
    assert "No module named 'torch' (blocked)" in done.stderr


CHECK = """
from parity.__main__ import main
code = main(["check", *sys.argv[1:]])
"""


def test_goldens_are_checked_where_only_the_core_is_installed():
    blocked = extras_alone() - set(arrows.FOLDERS)
    assert {"jax", "jinja2", "matplotlib", "pandas", "scipy", "statsmodels", "torch"} <= blocked
    done = run_without(blocked, CHECK, "values/retrace", "--impl", "tests.toy:right")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 different" in done.stdout
    wrong = run_without(blocked, CHECK, "values/retrace", "--impl", "tests.toy:implementation")
    assert wrong.returncode == 1, wrong.stderr


def test_a_port_without_torch_says_what_to_install():
    done = run_without({"torch"}, CHECK, "values/retrace")
    assert done.returncode == 2
    assert "needs the module 'torch', not installed here. `pip install 'disco-parity[port]'` brings it." in done.stderr


def test_goldens_are_checked_where_there_is_no_jax():
    done = run_without(JAX_STACK | {"disco_rl"}, CHECK, "values/retrace", "meta/gate", "--impl", "port")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 different" in done.stdout


def test_importing_the_library_imports_none_of_its_commands():
    commands = ("port.evaluate.__main__", "port.train.__main__", "port.meta_train.__main__")
    code = f"import sys, port; print([name for name in {commands} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"  # else `python -m` warns that it loads the command a second time
