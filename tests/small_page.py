"""A page with a section of every sort, made in a second: real templates, a few layers of the port, made-up runs."""

import types

import numpy as np
from markupsafe import Markup

from parity.goldens.store import Store
from parity.mutants import catalogue
from parity.mutants.tiers import NOT_RUN, Kill
from parity.runs.curves import Curve
from parity.runs.lockstep import Comparison
from parity.runs.spec import Loop, RunSpec
from parity.runs.trace import FirstDifference
from reports import page
from reports.bugs import command as bugs
from reports.catch_curves import command as catch_curves
from reports.catch_curves import statistics
from reports.catch_curves.figures import Group, Panel
from reports.lockstep import section as lockstep_page
from reports.lockstep.verdict import ComparedRun, Verdict
from reports.parity import command as parity

LAYERS = ("ops/kl", "ops/two_hot", "moving_average/normalize", "values/retrace")
ORIGINAL = {"original": {"repository": "https://github.com/google-deepmind/disco_rl", "commit": "0" * 40}}
CELLS = ("12", "1,200", "–", "-5", "1.5e-3 0.9", "7", "0", "inf")
NAMES = ("b10", "b9", "a", "d", "c", "f", "e", "g")
TABLE = """<div class="wide"><table id="numbers">
<thead><tr><th>name</th><th class="number">size</th></tr></thead><tbody>{}</tbody></table></div>"""


def few_layers(monkeypatch, out):
    """The parity section, of a few layers."""
    monkeypatch.setattr(Store, "layers", lambda self: list(LAYERS))
    return parity.section("port", out)


def kill_matrix(out):
    """The kill matrix of every fortieth mutant."""
    kills = []
    for mutant in list(catalogue().values())[::40]:
        tiers = {"values": mutant.layer, "gradients": "", "learner_steps": mutant.layer, "live": NOT_RUN}
        kills.append(Kill(mutant.name, mutant.layer, tiers, {"values": "the check"}, {}, {"values": 0.25}))
    return bugs.section_of(bugs.Matrix(kills, 12.0, bugs.LEFT_OUT), out)


def _compared(dtype, first=None, drift=1e-6, steps=20):
    place = None if first is None else FirstDifference(first, 0, 0, 1e-7)
    rising = drift * np.arange(1.0, steps + 1)
    return Comparison(f"bundled_seed0.{dtype}", dtype, 58 * steps, place, rising, rising)


def compared(out):
    """Lockstep, with a port that diverges too early: the one section that is different."""
    runs = [
        ComparedRun("bundled", "bundled_seed0", dtype, _compared(dtype, first), {"perturbed 1": _compared(dtype, own)})
        for dtype, first, own in (("float64", 3, None), ("float32", 4, 9))
    ]
    store = types.SimpleNamespace(manifest={**ORIGINAL, "packages": {"jax": "0.8.1"}})
    verdict = Verdict(runs, {"disco103_seed0": "Disco103's weights were not found."}, 3.0)
    return lockstep_page.section_of(verdict, store.manifest, "python -m reports.lockstep --quick", out)


def _curve(seed, steps=60):
    caught = np.random.default_rng(seed).random((steps, 20)) < np.linspace(0.1, 0.9, steps)[:, None]
    return Curve.of((58 * i, row, 1.0 + 0.01 * row[0]) for i, row in enumerate(caught.tolist(), start=1))


def learned(out):
    """Curves of two who learn the same."""
    spec = RunSpec("toy", "toy", None, 0, {"learning_rate": 0.1}, Loop(num_steps=60, batch_size=4, replay_ratio=2))
    ref, groups = {seed: _curve(seed) for seed in range(6)}, []
    for name, seeds in (("port", range(10, 16)), ("disco_torch", range(20, 24))):
        mine = {seed: _curve(seed) for seed in seeds}
        groups.append(Group(name, mine, statistics.judge(list(mine.values()), list(ref.values()))))
    recorded = types.SimpleNamespace(manifest={"curves": {"toy": {**ORIGINAL, "packages": {"jax": "0.8.1"}}}})
    command = "python -m reports.catch_curves --impl port"
    return catch_curves.make_section([Panel(spec, ref, groups)], "port", recorded, command, out)


def numbers(out):
    """A table that is hard to sort, and text that is hard to break, about a port of others."""
    rows = Markup("").join(
        Markup("<tr><td>{}</td><td class='number'>{}</td></tr>").format(*row) for row in zip(NAMES, CELLS, strict=True)
    )
    body = Markup(TABLE).format(rows) + Markup("<p><code>{}</code></p><pre>{}</pre>").format("long_" * 40, "wide " * 60)
    (out / "numbers.csv").write_text("size\n12\n")
    return page.Section(
        "audit", "A port of others", "5 layers differ.", True, "make it", body, [], ["numbers.csv"], "beside"
    )


def make(monkeypatch, out):
    """All sections, and one that could not run."""
    gone = page.not_run("speed", "Speed", "python -m reports.speed", "There is no original; `make original` brings it.")
    made = [few_layers(monkeypatch, out), compared(out), learned(out), kill_matrix(out), numbers(out), gone]
    assert len({section.state for section in made}) == 4
    return made
