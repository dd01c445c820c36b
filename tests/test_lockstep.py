"""Lockstep: a life beside a tape is compared action for action, and what differs is told, quickly and at its place."""

import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from parity.errors import CannotRun, FixtureError
from parity.goldens.store import manifest_bytes
from parity.mutants import Edit, catalogue, edits_of
from parity.runs import side_by_side, spec, trace
from parity.runs.lockstep import Comparison, compare, drift_ratio
from parity.runs.side_by_side import Piece, run_all
from parity.runs.trace import FirstDifference, pack, unpack
from parity.runs.trace_store import TapeStore
from port.evaluate.eval_loop import EvalConfig
from reports.lockstep import command, port_run
from reports.lockstep.verdict import DRIFT_LIMIT, Group, Lived, Verdict
from tests.pieces import double

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
LIVES = {kind: spec.life(kind, 3, SIZES, **SMALL) for kind in ("embedded", "actor_critic")}
SLOWER = Edit("port.optimizers", "* -learning_rate for name", "* -(0.8 * learning_rate) for name")
PROVENANCE = {"original": {"repository": "here", "commit": "none"}, "packages": {"jax": "0"}}


def first_params(life):
    agent = port_run.agent_of(life)
    state = agent.initial_learner_state(torch.Generator().manual_seed(life.seed), torch.float32)
    return port_run.importlib.import_module("port.weights").agent_params_to_original(state.params, agent.config)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Tapes as the original would make them, made by the port itself: they show what the machinery sees."""
    store = TapeStore(tmp_path_factory.mktemp("tapes"))
    store.begin(PROVENANCE)
    for life in LIVES.values():
        params = first_params(life)
        store.write_params(life, params)
        for dtype in ("float32", "float64"):
            tape = port_run.live(life, dtype, params)
            moved = port_run.live(life, dtype, trace.moved(params, dtype, 1), tape)
            store.write(tape)
            store.write(dataclasses.replace(moved, direction=1))
    return store


@pytest.fixture
def copy(recorded, tmp_path):
    """A copy that tests may damage."""
    for path in recorded.root.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return TapeStore(tmp_path)


def plan(store, tmp_path, **changes):
    if "steps" in changes:
        changes["steps"] = dict.fromkeys(spec.KINDS, changes["steps"])
    return command.Plan(store, jobs=0, kept=tmp_path / "kept", **changes)


# The verdict


def test_a_process_that_has_loaded_torch_already_computes_with_one_thread_too(monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        side_by_side._one_thread_each()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_where_no_bar_is_seen_a_line_now_and_then_tells_how_far_things_are(is_terminal, capsys):
    now = [0.0]
    progress = Progress(console=Console(file=io.StringIO(), force_interactive=is_terminal), auto_refresh=False)
    lines = side_by_side.Lines(progress, lambda: now[0])
    first, second, _ = (progress.add_task(name, total=9) for name in ("first", "second", "third"))
    progress.update(first, completed=9)
    progress.update(second, completed=4)
    for seconds in (side_by_side.SAY_EVERY - 1, side_by_side.SAY_EVERY, side_by_side.SAY_EVERY + 1):
        now[0] = seconds
        lines.say()
    said = capsys.readouterr().err
    assert said == ("" if is_terminal else "second: 4 of 9; 1 of 3 ended, 15 s so far\n")


def test_the_same_life_is_in_lockstep(recorded, tmp_path):
    verdict = command.run(plan(recorded, tmp_path))
    assert verdict.is_equal
    assert [(group.kind, group.dtype) for group in verdict.groups] == [
        *(("embedded", "float32"), ("embedded", "float64"), ("actor_critic", "float32"), ("actor_critic", "float64"))
    ]
    assert all(group.actions == 14 * 9 * 2 for group in verdict.groups)
    assert all(np.isinf(group.first) for group in verdict.groups)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_shifted_retrace_is_told(recorded, tmp_path, dtype):
    bug = catalogue()["retrace_index_too_late"]
    chosen = plan(recorded, tmp_path, kinds=["embedded"], dtypes=[dtype], edits=bug.edits)
    (group,) = command.run(chosen).groups
    assert not group.is_equal
    assert group.ratio > 1e3 * DRIFT_LIMIT


def test_lost_updates_are_told_as_soon_as_one_is_lost(recorded, tmp_path):
    chosen = plan(recorded, tmp_path, kinds=["embedded"], edits=edits_of(["slower"]))
    assert [group.is_equal for group in command.run(chosen).groups] == [False, False]


def test_lives_are_cut_by_their_kind(recorded, tmp_path):
    chosen = dataclasses.replace(plan(recorded, tmp_path, dtypes=["float64"]), steps={"embedded": 5})
    assert [one.port.steps for one in command.run(chosen).lived] == [5, 14]


@pytest.mark.parametrize("steps", ["0", "-3"])
def test_a_life_of_no_steps_is_refused(tmp_path, capsys, steps):
    assert command.main(["--steps", steps, "--out", str(tmp_path)]) == 2
    assert "--steps takes at least 1" in capsys.readouterr().err


def test_a_mistake_that_the_catalogue_does_not_know_is_named():
    with pytest.raises(CannotRun, match="No mistake is called 'slow'"):
        edits_of(["slow"])


@pytest.mark.parametrize("kind", LIVES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_learning_rate_20_percent_smaller_is_told_after_a_few_learner_steps(recorded, tmp_path, kind, dtype):
    chosen = plan(recorded, tmp_path, kinds=[kind], dtypes=[dtype], edits=(SLOWER,), steps=4)
    (group,) = command.run(chosen).groups
    assert not group.is_equal
    assert group.ratio > 1e3 * DRIFT_LIMIT


def compared(first=None, drift=1e-6, dtype="float32", steps=10):
    place = None if first is None else FirstDifference(first, 0, 0)
    every = np.full(steps, drift)
    return Comparison("tape", dtype, steps, 1, place, every, every, np.ones(steps, bool))


def group(firsts, own_firsts, dtype="float32", drift=1e-6):
    each = zip(firsts, own_firsts, strict=True)
    return Group(
        "kind", dtype, [Lived("kind", "a", dtype, compared(f, drift), {"moved 1": compared(o)}) for f, o in each]
    )


@pytest.mark.parametrize(
    ("firsts", "own_firsts", "is_equal"),
    [
        ([5], [5], True),
        ([4], [5], True),  # one life: by chance
        ([1], [5], False),  # but not in half the time
        ([None], [5], True),
        ([5], [None], False),
        ([None], [None], True),
        ([1, 6, 7], [2, 5, 7], True),  # earlier in one life, not in the median
        ([5, 5, 6, 6], [7, 7, 8, 9], False),  # earlier in every one
    ],
)
def test_float32_may_part_no_earlier_than_the_original_from_itself_in_the_median(firsts, own_firsts, is_equal):
    assert group(firsts, own_firsts).is_equal is is_equal


def test_what_parts_earlier_by_chance_is_told():
    assert "(that the port's is earlier has a chance of 0.50 to be luck)" in group([4], [5]).sentence()
    assert "luck" not in group([5], [5]).sentence()


def test_the_original_s_life_in_float64_is_shown_and_does_not_count():
    of = Group("kind", "float32", [Lived("kind", "a", "float32", compared(1), {"moved 1": compared(8)}, compared(0))])
    assert not of.is_equal
    assert of.own_first == 9


def test_float64_may_not_part_at_all_unless_the_original_parts_from_itself():
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
    with pytest.raises(CannotRun, match="has no moved tape"):
        Verdict([Lived("kind", "a", "float64", compared(), {})], {}, 0.0)


# Where the first difference is


def test_an_altered_action_is_found_at_its_place(recorded):
    ref = recorded.load("embedded_seed3", "float64")
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


def test_a_life_ends_some_steps_after_the_first_difference(recorded, monkeypatch):
    monkeypatch.setattr(trace, "STEPS_AFTER", 2)
    life, ref = LIVES["embedded"], recorded.load("embedded_seed3", "float64")
    actions = ref.actions.copy()
    actions[3, 2, 1] = (actions[3, 2, 1] + 1) % 3
    got = port_run.live(life, "float64", recorded.params(life.name), dataclasses.replace(ref, actions=actions))
    assert got.first[:3] == (3, 2, 1)
    assert got.first.margin > 0
    assert got.steps == 6


def test_other_noise_than_the_tapes_is_an_error(recorded):
    life, ref = LIVES["actor_critic"], recorded.load("actor_critic_seed3", "float64")
    with pytest.raises(FixtureError, match="noise of step 0"):
        port_run.live(life, "float64", recorded.params(life.name), dataclasses.replace(ref, noise=ref.noise + 1))


def test_drift_is_estimated_from_sketches():
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(30):
        step = rng.normal(size=5000)
        estimates.append(np.linalg.norm(trace.sketch(step, trace.SKETCH_WIDTH)) / np.linalg.norm(step))
    assert np.mean(estimates) == pytest.approx(1.0, abs=0.1)
    assert np.ptp(estimates) < 1.2


def test_moving_by_one_unit_moves_every_parameter_and_hardly():
    params = {"w": np.linspace(-1, 1, 9, dtype=np.float32)}
    for dtype in ("float32", "float64"):
        moved = trace.moved(params, dtype, 1)["w"].astype(dtype)
        assert (moved != params["w"]).all()
        assert np.abs(moved - params["w"]).max() <= np.finfo(dtype).eps
        assert (moved != trace.moved(params, dtype, 2)["w"].astype(dtype)).any()
    assert trace.moved(params, "float32", 0) is params


# Files


def test_actions_are_packed_four_to_a_byte():
    actions = np.random.default_rng(0).integers(0, 4, (3, 5, 7)).astype(np.uint8)
    assert len(pack(actions)) == 27
    assert np.array_equal(unpack(pack(actions), actions.shape), actions)
    with pytest.raises(ValueError, match="below 4"):
        pack(np.array([4], np.uint8))


def test_a_tape_is_read_as_it_was_written(recorded):
    tape = recorded.load("embedded_seed3", "float32", 1)
    again = trace.tape_from(trace.tape_bytes(tape), tape.life, tape.dtype, tape.direction)
    assert tape.life == LIVES["embedded"]
    assert trace.tape_bytes(again) == trace.tape_bytes(tape)
    parted = dataclasses.replace(tape, first=FirstDifference(3, 2, 1, 0.5))
    assert trace.tape_from(trace.tape_bytes(parted), tape.life, tape.dtype, 1).first == (3, 2, 1, 0.5)


@pytest.mark.parametrize("file", ["embedded_seed3.params", "embedded_seed3.float32"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_flipped_byte_is_refused(copy, file, share):
    path = copy.root / f"{file}.safetensors"
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(FixtureError, match=f"{file}.*damaged"):
        copy.params("embedded_seed3")
        copy.load("embedded_seed3", "float32")


def test_a_changed_manifest_is_refused(copy):
    content = json.loads(copy.path.read_text())
    content["lives"]["embedded_seed3"]["life"]["seed"] = 4
    copy.path.write_text(json.dumps(content))
    with pytest.raises(FixtureError, match="digest does not fit"):
        copy.lives()
    copy.path.write_bytes(manifest_bytes({**content, "format": 99}))
    with pytest.raises(FixtureError, match="format 99"):
        copy.lives()


def test_what_is_missing_is_named(copy, tmp_path):
    with pytest.raises(FixtureError, match=r"no tape embedded_seed3\.float32\.moved2"):
        copy.load("embedded_seed3", "float32", 2)
    (copy.root / "embedded_seed3.float32.safetensors").unlink()
    with pytest.raises(FixtureError, match="is missing"):
        copy.load("embedded_seed3", "float32")
    with pytest.raises(FixtureError, match="there are no tapes"):
        TapeStore(tmp_path / "nowhere").lives()


def test_tapes_of_another_origin_are_not_mixed(copy):
    copy.begin(PROVENANCE)
    with pytest.raises(FixtureError, match="recorded with other packages"):
        copy.begin({**PROVENANCE, "packages": {"jax": "1"}})


def test_another_life_under_the_same_name_starts_over(copy):
    longer = spec.life("embedded", 3, SIZES, **{**SMALL, "num_steps": 15})
    assert copy.has(LIVES["embedded"], "float32")
    assert not copy.has(longer, "float32")
    copy.write_params(longer, copy.params("embedded_seed3"))
    assert not copy.has(LIVES["embedded"], "float32")
    assert not (copy.root / "embedded_seed3.float32.safetensors").exists()
    assert copy.has(LIVES["actor_critic"], "float32")


def test_a_finished_life_is_not_lived_again(recorded, tmp_path, monkeypatch):
    chosen = plan(recorded, tmp_path, kinds=["embedded"], steps=6)
    before = command.run(chosen)
    monkeypatch.setattr(port_run, "live", None)
    again = command.run(chosen)
    assert [one.port.drift.tobytes() for one in again.lived] == [one.port.drift.tobytes() for one in before.lived]
    with pytest.raises(TypeError):  # a changed port lives anew
        command.run(dataclasses.replace(chosen, edits=(SLOWER,)))


# Commands


def run_main(store, out, *more):
    return command.main(["--tapes", str(store.root), "--out", str(out), "--jobs", "0", "--steps", "5", *more])


def test_the_command_leaves_page_picture_and_data(recorded, tmp_path, capsys):
    assert run_main(recorded, tmp_path, "--json", str(tmp_path / "mine.json")) == 0
    summary = json.loads((tmp_path / "mine.json").read_text())
    assert summary["equal"] and len(summary["groups"]) == 4
    assert summary == json.loads((tmp_path / "lockstep.json").read_text())
    assert len((tmp_path / "lockstep.csv").read_text().splitlines()) == 1 + 4 * 5
    assert (tmp_path / "lockstep.png").stat().st_size > 10_000
    html = (tmp_path / "index.html").read_text()
    assert "In lockstep with the original" in html and "recorded on tape" in html
    assert "in lockstep." in capsys.readouterr().out


def test_the_command_says_no_with_a_planted_mistake(recorded, tmp_path, capsys):
    assert run_main(recorded, tmp_path, "--kinds", "embedded", "--plant", "retrace_index_too_late") == 1
    assert "different in embedded in float32, embedded in float64" in capsys.readouterr().out


def test_the_command_that_cannot_run_says_why(recorded, tmp_path, capsys):
    assert run_main(recorded, tmp_path, "--kinds", "disco103") == 2
    assert "no tape of such a life" in capsys.readouterr().err
    assert command.main(["--tapes", str(tmp_path / "nowhere"), "--out", str(tmp_path)]) == 2
    assert "there are no tapes" in capsys.readouterr().err


def test_lives_whose_weights_are_missing_are_named(recorded, tmp_path, monkeypatch):
    def missing(life):
        if life.rule == "disco":
            raise command.WeightsMissing("no weights here")

    monkeypatch.setattr(command, "meta_params", missing)
    verdict = command.run(plan(recorded, tmp_path, steps=4))
    assert verdict.skipped == {"embedded_seed3": "no weights here"}
    assert {one.kind for one in verdict.lived} == {"actor_critic"}


def test_the_loop_is_the_ports():
    ours = {f.name: f.default for f in dataclasses.fields(spec.Loop)}
    assert ours == {f.name: f.default for f in dataclasses.fields(EvalConfig) if f.name != "seed"}


def test_weights_of_other_sizes_are_refused():
    with pytest.raises(FixtureError, match="not the sizes of the weights embedded"):
        spec.meta_params(spec.life("embedded", 0, {"H": 7}))


def test_pieces_are_worked_on_in_processes():
    pieces = [Piece(f"piece {i}", 1, (i,)) for i in range(3)]
    assert sorted(run_all(double, pieces, 2)) == sorted(run_all(double, pieces, 0)) == [0, 2, 4]


def test_pieces_that_take_fewer_steps_than_they_may_are_told_as_ended(monkeypatch, capsys):
    monkeypatch.setattr(side_by_side, "SAY_EVERY", 0.0)
    assert sorted(run_all(double, [Piece(f"piece {i}", 5, (i,)) for i in range(3)], 2)) == [0, 2, 4]
    assert "3 of 3 ended" in capsys.readouterr().err


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

    life = LIVES["actor_critic"]
    ours = port_run.OriginalNoise(life, torch.float64, port_run.importlib.import_module("port.environments"))
    key = jax.random.PRNGKey(life.seed)
    for _, theirs in zip(range(3), closed_loop.noise(life), strict=False):
        ours.rollout()
        assert np.array_equal(ours.last, theirs)
        key, actor_key, _ = jax.random.split(key, 3)
        step_keys = jax.random.split(jax.random.split(actor_key, 1)[0], life.loop.rollout_length)
        drawn = np.stack([jax.random.gumbel(step_key, (1, 2, 3))[0] for step_key in step_keys])
        np.testing.assert_allclose(theirs, drawn, rtol=3e-6, atol=1e-6)


def test_the_recorder_resumes_and_the_port_lives_what_it_recorded(closed_loop, tmp_path, monkeypatch):
    from reference.record import traces

    life = LIVES[
        "actor_critic"
    ]  # Disco takes too long to compile here; tests/test_evaluation_original.py lives with it

    monkeypatch.setattr(traces, "refuse_the_port", lambda: None)  # torch is loaded here
    store = TapeStore(tmp_path / "tapes")
    assert traces.record(store, [life], ("float64",), 1, 0) == 2
    assert traces.record(store, [life], ("float64",), 1, 0) == 0
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
