"""Lockstep: a run is compared with a trace action by action, and what differs is found quickly and at its place."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from parity.errors import CannotRun, FixtureError
from parity.goldens import manifests
from parity.mutants import Edit, catalogue, edits_of
from parity.runs import spec, trace
from parity.runs.lockstep import Comparison, compare, drift_ratio
from parity.runs.runner import Runner, Workers
from parity.runs.trace import FirstDifference, pack, unpack
from parity.runs.trace_store import TraceStore
from port.evaluate.eval_loop import EvalConfig
from reports.lockstep import command, port_run
from reports.lockstep.verdict import DRIFT_LIMIT, ComparedRun, Group, Verdict

SMALL = {
    "num_steps": 14,
    "batch_size": 4,
    "rollout_length": 9,
    "replay_ratio": 2,
    "capacity": 7,
    "rows": 5,
    "columns": 4,
}
SIZES = {"dense": (8,), "head_mlp_hiddens": (4,), "lstm_size": 4}
IN_PROCESS = Workers(0)
SPECS = {name: spec.preset(name, 3, SIZES, **SMALL) for name in ("bundled", "actor_critic")}
SLOWER = Edit("port.optimizers", "* -learning_rate for name", "* -(0.8 * learning_rate) for name")
PROVENANCE = {"original": {"repository": "here", "commit": "none"}, "packages": {"jax": "0"}}


def first_params(run):
    agent = port_run.adapter()[0](run.settings)
    state = agent.initial_learner_state(torch.Generator().manual_seed(run.seed), torch.float32)
    return port_run.importlib.import_module("port.weights").agent_params_to_original(state.params, agent.config)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Traces as the original would leave them, recorded of the port itself: they show what the machinery sees."""
    store = TraceStore(tmp_path_factory.mktemp("traces"))
    store.begin(PROVENANCE)
    for run in SPECS.values():
        params = first_params(run)
        store.write_params(run, params)
        for dtype in ("float32", "float64"):
            unchanged = port_run.run(run, dtype, params)
            perturbed = port_run.run(run, dtype, trace.perturbed(params, dtype, 1), unchanged)
            store.write(unchanged)
            store.write(dataclasses.replace(perturbed, direction=1))
    return store


@pytest.fixture
def copy(recorded, tmp_path):
    """A copy that tests may damage."""
    for path in recorded.root.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return TraceStore(tmp_path)


def plan(store, tmp_path, **changes):
    if "steps" in changes:
        changes["steps"] = dict.fromkeys(spec.PRESETS, changes["steps"])
    return command.Plan(store, workers=IN_PROCESS, folder=tmp_path / "kept", **changes)


# The verdict


def test_the_same_run_is_in_lockstep(recorded, tmp_path):
    verdict = command.run(plan(recorded, tmp_path))
    assert verdict.is_equal
    assert [(group.preset, group.dtype) for group in verdict.groups] == [
        *(("bundled", "float32"), ("bundled", "float64"), ("actor_critic", "float32"), ("actor_critic", "float64"))
    ]
    assert all(group.actions == 14 * 9 * 2 for group in verdict.groups)
    assert all(np.isinf(group.first) for group in verdict.groups)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_shifted_retrace_is_told(recorded, tmp_path, dtype):
    mutant = catalogue()["retrace_index_too_late"]
    chosen = plan(recorded, tmp_path, presets=["bundled"], dtypes=[dtype], edits=mutant.edits)
    (group,) = command.run(chosen).groups
    assert not group.is_equal
    assert group.ratio > 1e3 * DRIFT_LIMIT


def test_lost_updates_are_told_as_soon_as_one_is_lost(recorded, tmp_path):
    chosen = plan(recorded, tmp_path, presets=["bundled"], edits=edits_of(["slower"]))
    assert [group.is_equal for group in command.run(chosen).groups] == [False, False]


def test_runs_are_cut_by_their_preset(recorded, tmp_path):
    chosen = dataclasses.replace(plan(recorded, tmp_path, dtypes=["float64"]), steps={"bundled": 5})
    assert [one.port.steps for one in command.run(chosen).runs] == [5, 14]


@pytest.mark.parametrize("steps", ["0", "-3"])
def test_a_run_of_no_steps_is_refused(tmp_path, capsys, steps):
    assert command.main(["--steps", steps, "--out", str(tmp_path)]) == 2
    assert "--steps takes at least 1" in capsys.readouterr().err


def test_a_mistake_that_the_catalogue_does_not_know_is_named():
    with pytest.raises(CannotRun, match="No mutant is called 'slow'"):
        edits_of(["slow"])


@pytest.mark.parametrize("preset", SPECS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_learning_rate_20_percent_smaller_is_told_after_a_few_learner_steps(recorded, tmp_path, preset, dtype):
    chosen = plan(recorded, tmp_path, presets=[preset], dtypes=[dtype], edits=(SLOWER,), steps=4)
    (group,) = command.run(chosen).groups
    assert not group.is_equal
    assert group.ratio > 1e3 * DRIFT_LIMIT


def compared(first=None, drift=1e-6, dtype="float32", steps=10):
    place = None if first is None else FirstDifference(first, 0, 0)
    every = np.full(steps, drift)
    return Comparison("trace", dtype, 1, place, every, every)


def group(firsts, own_firsts, dtype="float32", drift=1e-6):
    each = zip(firsts, own_firsts, strict=True)
    return Group(
        "preset",
        dtype,
        [ComparedRun("preset", "a", dtype, compared(f, drift), {"perturbed 1": compared(o)}) for f, o in each],
    )


@pytest.mark.parametrize(
    ("firsts", "own_firsts", "is_equal"),
    [
        ([5], [5], True),
        ([4], [5], True),  # one run: by chance
        ([1], [5], False),  # but not in half the time
        ([None], [5], True),
        ([5], [None], False),
        ([None], [None], True),
        ([1, 6, 7], [2, 5, 7], True),  # earlier in one run, not in the median
        ([5, 5, 6, 6], [7, 7, 8, 9], False),  # earlier in every one
    ],
)
def test_float32_may_diverge_no_earlier_than_the_original_from_itself_in_the_median(firsts, own_firsts, is_equal):
    assert group(firsts, own_firsts).is_equal is is_equal


def test_what_diverges_earlier_by_chance_is_told():
    assert "(earlier by chance with a probability of 0.50)" in group([4], [5]).sentence()
    assert "chance" not in group([5], [5]).sentence()


@pytest.mark.parametrize(("first", "is_equal"), [(5, True), (3, True), (1, False), (None, True)])
def test_in_float32_the_original_s_own_rounding_is_the_yardstick_not_a_perturbed_start(first, is_equal):
    run = ComparedRun("preset", "a", "float32", compared(first), {"perturbed 1": compared(20)}, compared(5))
    group = Group("preset", "float32", [run])
    assert group.is_equal is is_equal
    assert group.own_first == 6
    assert "the original against its own float64 run: step 6" in group.sentence()


def test_float64_may_not_part_at_all_unless_the_original_diverges_from_itself():
    assert not group([9], [None], "float64").is_equal
    assert not group([None, None, 9], [None, None, None], "float64").is_equal
    assert group([None], [7], "float64").is_equal
    assert group([5], [7], "float64").is_equal
    assert not group([2], [7], "float64").is_equal


def test_a_drift_beyond_the_limit_is_different_although_no_action_differs():
    assert group([None], [None], drift=0.9 * DRIFT_LIMIT * 1e-6).is_equal
    assert not group([None], [None], drift=1.1 * DRIFT_LIMIT * 1e-6).is_equal


def test_drift_is_judged_only_while_all_act_alike():
    own = compared(first=5)
    port = dataclasses.replace(own, first=None, drift=np.where(np.arange(10) < 5, 1e-6, 1.0))
    assert drift_ratio(port, [own]) == pytest.approx(1.0)


def test_nothing_learned_is_no_verdict(recorded, tmp_path):
    with pytest.raises(CannotRun, match="nothing is learned in 1 steps"):
        command.run(plan(recorded, tmp_path, steps=1))


def test_nothing_to_judge_by_is_no_verdict():
    with pytest.raises(CannotRun, match="has no perturbed trace"):
        Verdict([ComparedRun("preset", "a", "float64", compared())], {}, 0.0)


# Where the first difference is


def test_an_altered_action_is_found_at_its_place(recorded):
    ref = recorded.load("bundled_seed3", "float64")
    actions = ref.actions.copy()
    actions[6, 4, 1] = (actions[6, 4, 1] + 1) % 3
    actions[7] = 0
    found = compare(ref, dataclasses.replace(ref, actions=actions))
    assert found.first[:3] == (6, 4, 1)
    assert found.actions == (6 * 9 + 4) * 2 + 1
    assert found.together == 6


def test_the_margin_at_the_first_difference_is_the_gap_of_the_two_best():
    perturbed = np.array([[[0.0, 1.0, 0.75]]])
    assert trace.first_difference(2, np.array([[1]]), np.array([[2]]), perturbed) == (2, 0, 0, 0.25)
    assert trace.first_difference(2, np.array([[1]]), np.array([[1]]), perturbed) is None


def test_a_run_ends_some_steps_after_the_first_difference(recorded, monkeypatch):
    monkeypatch.setattr(trace, "STEPS_AFTER", 2)
    run, ref = SPECS["bundled"], recorded.load("bundled_seed3", "float64")
    actions = ref.actions.copy()
    actions[3, 2, 1] = (actions[3, 2, 1] + 1) % 3
    got = port_run.run(run, "float64", recorded.params(run.name), dataclasses.replace(ref, actions=actions))
    assert got.first[:3] == (3, 2, 1)
    assert got.first.margin > 0
    assert got.steps == 6


def test_other_noise_than_the_traces_is_an_error(recorded):
    run, ref = SPECS["actor_critic"], recorded.load("actor_critic_seed3", "float64")
    with pytest.raises(FixtureError, match="noise of step 0"):
        port_run.run(run, "float64", recorded.params(run.name), dataclasses.replace(ref, noise=ref.noise + 1))


def test_drift_is_estimated_from_sketches():
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(30):
        step = rng.normal(size=5000)
        estimates.append(np.linalg.norm(trace.sketch(step, trace.SKETCH_WIDTH)) / np.linalg.norm(step))
    assert np.mean(estimates) == pytest.approx(1.0, abs=0.1)
    assert np.ptp(estimates) < 1.2


def test_perturbing_by_one_unit_changes_every_parameter_and_hardly():
    params = {"w": np.linspace(-1, 1, 9, dtype=np.float32)}
    for dtype in ("float32", "float64"):
        perturbed = trace.perturbed(params, dtype, 1)["w"].astype(dtype)
        assert (perturbed != params["w"]).all()
        assert np.abs(perturbed - params["w"]).max() <= np.finfo(dtype).eps
        assert (perturbed != trace.perturbed(params, dtype, 2)["w"].astype(dtype)).any()
    assert trace.perturbed(params, "float32", 0) is params


def test_a_perturbation_does_not_depend_on_the_order_of_parameters():
    params = {name: np.ones(5, np.float32) for name in "abc"}
    one, other = (trace.perturbed(dict(order), "float64", 1) for order in (params.items(), reversed(params.items())))
    assert all((one[name] == other[name]).all() for name in params)


# Files


def test_actions_are_packed_four_to_a_byte():
    actions = np.random.default_rng(0).integers(0, 4, (3, 5, 7)).astype(np.uint8)
    assert len(pack(actions)) == 27
    assert np.array_equal(unpack(pack(actions), actions.shape), actions)
    with pytest.raises(ValueError, match="below 4"):
        pack(np.array([4], np.uint8))


def test_a_trace_is_read_as_it_was_written(recorded):
    read = recorded.load("bundled_seed3", "float32", 1)
    again = trace.trace_from(trace.trace_bytes(read), read.spec, read.dtype, read.direction)
    assert read.spec == SPECS["bundled"]
    assert trace.trace_bytes(again) == trace.trace_bytes(read)
    diverged = dataclasses.replace(read, first=FirstDifference(3, 2, 1, 0.5))
    assert trace.trace_from(trace.trace_bytes(diverged), read.spec, read.dtype, 1).first == (3, 2, 1, 0.5)


@pytest.mark.parametrize("file", ["bundled_seed3.params", "bundled_seed3.float32"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_flipped_byte_is_refused(copy, file, share):
    path = copy.root / f"{file}.safetensors"
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(FixtureError, match=f"{file}.*damaged"):
        copy.params("bundled_seed3")
        copy.load("bundled_seed3", "float32")


def test_a_changed_manifest_is_refused(copy):
    content = json.loads(copy.path.read_text())
    content["runs"]["bundled_seed3"]["spec"]["seed"] = 4
    copy.path.write_text(json.dumps(content))
    with pytest.raises(FixtureError, match="digest does not fit"):
        copy.specs()
    copy.path.write_bytes(manifests.as_bytes({**content, "format": 99}))
    with pytest.raises(FixtureError, match="format 99"):
        copy.specs()


def test_what_is_missing_is_named(copy, tmp_path):
    with pytest.raises(FixtureError, match=r"no trace bundled_seed3\.float32\.perturbed2"):
        copy.load("bundled_seed3", "float32", 2)
    (copy.root / "bundled_seed3.float32.safetensors").unlink()
    with pytest.raises(FixtureError, match="is missing"):
        copy.load("bundled_seed3", "float32")
    with pytest.raises(FixtureError, match="there are no traces"):
        TraceStore(tmp_path / "nowhere").specs()


def test_traces_of_another_origin_are_not_mixed(copy):
    copy.begin(PROVENANCE)
    with pytest.raises(FixtureError, match="recorded with other packages"):
        copy.begin({**PROVENANCE, "packages": {"jax": "1"}})


def test_another_run_under_the_same_name_starts_over(copy):
    longer = spec.preset("bundled", 3, SIZES, **{**SMALL, "num_steps": 15})
    assert copy.has(SPECS["bundled"], "float32")
    assert not copy.has(longer, "float32")
    copy.write_params(longer, copy.params("bundled_seed3"))
    assert not copy.has(SPECS["bundled"], "float32")
    assert not (copy.root / "bundled_seed3.float32.safetensors").exists()
    assert copy.has(SPECS["actor_critic"], "float32")


def test_a_run_that_has_ended_is_not_repeated(recorded, tmp_path, monkeypatch):
    chosen = plan(recorded, tmp_path, presets=["bundled"], steps=6)
    before = command.run(chosen)
    monkeypatch.setattr(port_run, "run", None)
    again = command.run(chosen)
    assert [one.port.drift.tobytes() for one in again.runs] == [one.port.drift.tobytes() for one in before.runs]
    with pytest.raises(TypeError):  # a changed port runs anew
        command.run(dataclasses.replace(chosen, edits=(SLOWER,)))


# Commands


def run_main(store, out, *more):
    return command.main(["--traces", str(store.root), "--out", str(out), "--jobs", "0", "--steps", "5", *more])


def test_the_command_leaves_page_picture_and_data(recorded, tmp_path, capsys):
    assert run_main(recorded, tmp_path, "--json", str(tmp_path / "mine.json")) == 0
    summary = json.loads((tmp_path / "mine.json").read_text())
    assert summary["equal"] and len(summary["groups"]) == 4
    assert summary == json.loads((tmp_path / "lockstep.json").read_text())
    assert len((tmp_path / "lockstep.csv").read_text().splitlines()) == 1 + 4 * 5
    assert (tmp_path / "lockstep.png").stat().st_size > 10_000
    html = (tmp_path / "index.html").read_text()
    assert "In lockstep with the original" in html and "from recorded traces" in html
    assert "in lockstep." in capsys.readouterr().out


def test_the_command_says_no_with_a_mutant(recorded, tmp_path, capsys):
    assert run_main(recorded, tmp_path, "--presets", "bundled", "--mutants", "retrace_index_too_late") == 1
    assert "different in bundled in float32, bundled in float64" in capsys.readouterr().out


def test_the_command_that_cannot_run_says_why(recorded, tmp_path, capsys):
    assert run_main(recorded, tmp_path, "--presets", "disco103") == 2
    assert "no trace of such a run" in capsys.readouterr().err
    assert command.main(["--traces", str(tmp_path / "nowhere"), "--out", str(tmp_path)]) == 2
    assert "there are no traces" in capsys.readouterr().err


def test_runs_whose_weights_are_missing_are_named(recorded, tmp_path, monkeypatch):
    def missing(run):
        if run.weights:
            raise command.WeightsMissing("no weights here")
        return {}

    monkeypatch.setattr(spec.RunSpec, "meta_params", missing)
    verdict = command.run(plan(recorded, tmp_path, steps=4))
    assert verdict.skipped == {"bundled_seed3": "no weights here"}
    assert {one.preset for one in verdict.runs} == {"actor_critic"}


def test_the_loop_is_the_ports():
    ours = {f.name: f.default for f in dataclasses.fields(spec.Loop)}
    assert ours == {f.name: f.default for f in dataclasses.fields(EvalConfig) if f.name != "seed"}


def test_weights_of_other_sizes_are_refused():
    with pytest.raises(FixtureError, match="not the sizes of the weights bundled"):
        spec.preset("bundled", 0, {"hidden_size": 7}).meta_params()


# With the original


@pytest.fixture
def closed_loop(monkeypatch):
    pytest.importorskip("disco_rl", reason="the original is not installed; `make original` brings it")
    from reference import jax_runtime
    from reference.original import eval_loop

    known = {name: value for name, value in jax_runtime.QUICK.items() if jax_runtime.is_known(name)}
    monkeypatch.setattr(eval_loop, "COMPILER_OPTIONS", known)
    return eval_loop


def test_noise_without_jax_is_that_of_jax(closed_loop):
    import jax

    run = SPECS["actor_critic"]
    ours = port_run.OriginalNoise(run, torch.float64, port_run.importlib.import_module("port.environments"))
    key = jax.random.PRNGKey(run.seed)
    for _, theirs in zip(range(3), closed_loop.noise(run), strict=False):
        ours.rollout()
        assert np.array_equal(ours.last, theirs)
        key, actor_key, _ = jax.random.split(key, 3)
        step_keys = jax.random.split(jax.random.split(actor_key, 1)[0], run.loop.rollout_length)
        drawn = np.stack([jax.random.gumbel(step_key, (1, 2, 3))[0] for step_key in step_keys])
        np.testing.assert_allclose(theirs, drawn, rtol=3e-6, atol=1e-6)


def test_the_recorder_resumes_and_the_port_repeats_what_it_recorded(closed_loop, tmp_path, monkeypatch):
    from reference.record import traces

    run = SPECS["actor_critic"]  # Disco takes too long to compile here; tests/test_evaluation_original.py runs it
    monkeypatch.setattr(traces, "refuse_the_port", lambda: None)  # torch is loaded here
    store, variants = TraceStore(tmp_path / "traces"), [traces.Variant(run, "float64", k) for k in range(2)]
    assert traces.record(store, variants, Runner(IN_PROCESS)) == 2
    assert traces.record(store, variants, Runner(IN_PROCESS)) == 0
    verdict = command.run(plan(store, tmp_path))
    (group,) = verdict.groups
    assert group.is_equal
    assert group.actions == 14 * 9 * 2
    assert group.worst_loss < 1e-10
    assert not command.run(plan(store, tmp_path, edits=(SLOWER,), steps=4)).is_equal


def test_the_recorder_refuses_to_run_beside_torch(closed_loop):
    from reference.record import traces

    with pytest.raises(SystemExit, match="Not recorded: this process has loaded torch"):
        traces.refuse_the_port()
