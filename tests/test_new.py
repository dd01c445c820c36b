"""`python -m parity new`: templates that run at once, and what they say of the layers."""

import re
import subprocess
import sys

import pytest

from parity.__main__ import main
from parity.commands import new
from parity.implementation import load
from parity.layers import REGISTRY
from tests.helpers import ROOT
from tests.test_bridge import EXAMPLE, checked, compiled

FRAMEWORKS = list(new.FRAMEWORKS)
LAYER = "moving_average/update"
UPDATE = """
    d, values = settings["decay"], {x}["values"]
    means = {{"state/moment1": values.mean(), "state/moment2": (values * values).mean()}}
    state = {{name: d * {x}[name] + (1 - d) * mean for name, mean in means.items()}}
    return {{**state, "state/decay_product": {x}["state/decay_product"] * d}}"""
IN_C = """  if (is_vjp) exit(1);
  int size = setting("T") * setting("B");
#define UPDATE(real, type)                                                                            \\
  real d = setting("decay"), sums[2] = {0, 0}, *x = input("values");                                  \\
  for (int i = 0; i < size; i++) sums[0] += x[i], sums[1] += x[i] * x[i];                             \\
  for (int i = 0; i < 2; i++) {                                                                       \\
    const char *name = i ? "state/moment2" : "state/moment1";                                         \\
    *(real *)output(name, type, 0, NULL) = d * *(real *)input(name) + (1 - d) * sums[i] / size;       \\
  }                                                                                                   \\
  *(real *)output("state/decay_product", type, 0, NULL) = d * *(real *)input("state/decay_product");
  if (is("\\"dtype\\":\\"float64\\"")) { UPDATE(double, "F64") } else { UPDATE(float, "F32") }
"""
BODIES = {
    "torch": UPDATE.format(x="x"),
    "jax": UPDATE.format(x="x"),
    "numpy": UPDATE.format(x="inputs").replace('s["decay"]', 's["decay"] * np.ones((), dtype)'),
    "cmd": IN_C,
}


def written(framework, folder, *options):
    """The path of a fresh file."""
    path = folder / f"fresh_{framework}{new.FRAMEWORKS[framework][0]}"
    assert main(["new", str(path), "--framework", framework, *options]) == 0
    return path


def filled(framework, text):
    """The template with one layer filled in and announced."""
    function = LAYER.replace("/", "_")
    before, stub, after = re.split(rf"((?:def|static void) {function}\(.*?\n(?=\n))", text, maxsplit=1, flags=re.DOTALL)
    empty = "  (void)is_vjp, exit(1);\n" if framework == "cmd" else "    raise NotImplementedError\n"
    assert stub.count(empty) == 1
    text = before + stub.replace(empty, BODIES[framework].lstrip("\n") + "\n") + after
    if framework == "cmd":
        return text.replace('#define LAYERS ""', f'#define LAYERS "{LAYER}"')
    return re.sub(rf'# (@.*"{LAYER}")', r"\1", text)


def loaded(path, monkeypatch):
    """The implementation in a file."""
    if path.suffix == ".c":
        return load(f"cmd:{compiled(path, path.parent, '-Wno-unused-function')}")
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return load(f"{path.stem}:implementation")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_fresh_file_runs_and_provides_nothing_yet(framework, tmp_path, monkeypatch, capsys):
    path = written(framework, tmp_path, "--layers", "all")
    assert sum(name.replace("/", "_") + "(" in path.read_text() for name in REGISTRY) == len(REGISTRY)
    fresh = loaded(path, monkeypatch)
    assert (fresh.name, len(fresh.layers)) == (path.stem, 0)
    monkeypatch.setattr("parity.commands.check.load", lambda name: fresh)
    assert main(["check"]) == 2
    assert f"{path.stem} provides no layer" in capsys.readouterr().err


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_layer_that_is_filled_in_is_equal_and_a_mistake_in_it_is_different(framework, tmp_path, monkeypatch):
    path = written(framework, tmp_path, "--layers", "essentials")
    text = filled(framework, path.read_text())
    path.write_text(text)
    outcome = checked(loaded(path, monkeypatch), LAYER)
    assert [row.sentence() for row in outcome.different] == [] and len(outcome.rows) >= 30
    assert bool(outcome.without_gradients) == (framework in ("numpy", "cmd"))
    wrong = path.with_stem(path.stem + "_wrong")
    assert text.count("(1 - d)") == 1
    wrong.write_text(text.replace("(1 - d)", "d"))
    different = checked(loaded(wrong, monkeypatch), LAYER).different
    assert {"state/moment1", "state/moment2"} == {row.output for row in different if row.kind == "value"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_logs_may_be_left_out(framework, tmp_path, monkeypatch):
    path = written(framework, tmp_path, "--layers", "agent/loss", "ops/kl")
    path.write_text(re.sub(r"# @", "@", path.read_text()))
    declared = loaded(path, monkeypatch).optional_outputs
    assert list(declared["agent/loss"]) == ["log/*"] and not declared.get("ops/kl")


def test_essentials_are_the_default_and_names_can_be_chosen(tmp_path, capsys):
    essentials = new.knowledge()["essentials"]
    assert 12 <= len(essentials) <= 16 and essentials == [name for name in REGISTRY if name in essentials]
    text = written("torch", tmp_path).read_text()
    assert re.findall(r'layer\("([\w/]+)"', text) == essentials
    assert f"with {len(essentials)} layers to fill in" in capsys.readouterr().out
    text = written("jax", tmp_path, "--layers", "values/retrace", "ops/kl").read_text()
    assert re.findall(r'layer\("([\w/]+)"', text) == ["ops/kl", "values/retrace"]
    assert "lstm/lstm/linear" not in text


def names_of(layer):
    """All names of a layer, and parts of them."""
    settings = layer.settings
    whole = {*layer.inputs(settings), *layer.outputs(settings), *settings}
    return whole | {name.rpartition("/")[2] for name in whole}


@pytest.mark.parametrize("name", new.knowledge()["notes"])
def test_notes_name_what_is_there(name):
    named = re.findall(r"`([^`]+)`", new.knowledge()["notes"][name])
    assert [one for one in named if one not in names_of(REGISTRY[name])] == []


def test_every_essential_layer_has_notes_and_shows_noise_and_shapes(tmp_path):
    assert set(new.knowledge()["essentials"]) <= set(new.knowledge()["notes"])
    text = written("torch", tmp_path).read_text()
    for line in ("linear_0/w [12, 10] float in [0, 1)", "rewards [T, B] float (VJP)", "actions [T+1, B] int in [0, A)"):
        assert line in text
    assert max(map(len, text.splitlines())) <= 120


def protocol(text):
    """The parts of a C file that every program has."""
    start, end = text.index("#include"), text.index("/* The layers")
    return text[start:end] + text[text.index("/* One request") :]


def test_the_example_and_the_template_in_c_have_the_same_protocol():
    assert protocol(EXAMPLE.read_text()) == protocol((new.TEMPLATES / "cmd.txt").read_text())


@pytest.mark.parametrize(
    ("file", "framework", "said"),
    [
        ("no-name.py", "torch", "no-name.py is no name for --framework torch; choose one like my_port.py."),
        ("mine.py", "cmd", "mine.py is no name for --framework cmd; choose one like my_port.c."),
        ("mine.c", "numpy", "choose one like my_port.py."),
    ],
)
def test_a_file_of_another_kind_is_refused(file, framework, said, tmp_path, capsys):
    assert main(["new", str(tmp_path / file), "--framework", framework]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / file).exists()


def test_a_file_is_not_overwritten_and_a_layer_must_exist(tmp_path, capsys):
    path = written("numpy", tmp_path)
    assert main(["new", str(path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["new", str(tmp_path / "other.py"), "--layers", "ops/twohot"]) == 2
    assert "Did you mean ops/two_hot" in capsys.readouterr().err


def test_the_file_is_loaded_from_the_folder_that_it_is_in(tmp_path):
    written("numpy", tmp_path)
    command = [sys.executable, "-m", "parity", "check", "--impl", "fresh_numpy:implementation"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "fresh_numpy provides no layer" in done.stderr
