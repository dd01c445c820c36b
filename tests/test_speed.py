"""Speed: what timings come to in figures and words, that turns are taken, and that the slower one is seen as slower."""

import json
import math
import os

import numpy as np
import pandas as pd
import pytest
import torch

from parity.errors import CannotRun
from port.fast import omp
from reports import page
from reports.speed import command, section, workload
from reports.speed import port as speed_port
from reports.speed import worker as speed_worker
from reports.speed.stages import ORDER, REST, Stopwatch
from reports.speed.summary import Found, Goal, Growth, Timing, exponent, in_words
from reports.speed.worker import Bench, Worker
from reports.speed.workload import Sample, Work
from tests.slow_sides import Clock, Side

TINY = {"dense": (8,), "head_mlp_hiddens": (4,), "lstm_size": 4, "num_bins": 5, "prediction_size": 6}
TINY |= {"hidden_size": 4, "meta_hidden_size": 4}
LOOP = {"rollout_length": 6, "batch_size": 4, "replay_ratio": 2, "capacity": 8, "rows": 5, "columns": 4}
MACHINE = {"threads": 1, "processors": 2, "load_before": "0.1", "load_after": "0.2", "size": "T = 5, B = 4"}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    from port import weights
    from port.adapter.curves import agent_config
    from port.networks import init

    setting = workload.evaluation(tmp_path_factory.mktemp("weights") / "w.npz", TINY, **LOOP)
    config = agent_config(setting).meta_net
    meta_params = init.init_meta_params(config, torch.Generator().manual_seed(0), torch.float32)
    weights.save_npz(setting.file, meta_params, config)
    given = Work(setting)
    batch = workload.batch(setting, given.num_actions, 0)
    return Work(setting, params=speed_port.initial_params(given), rollout=batch)


def benches(**seconds):
    clock = Clock()
    return {name: Bench(Side(each, clock), clock) for name, each in seconds.items()}


def measured(rounds=4, **seconds):
    workers, not_run = benches(**seconds), {}
    first = command.prepared(workers, "learner_step", None, not_run)
    return Timing("learner_step", command.in_turns(command.jobs_of(workers, first), rounds), first)


def timing(task="learner_step", **milliseconds):
    samples = {name: [Sample(x / 1000 * f, x / 1000) for f in (0.5, 1, 1, 3)] for name, x in milliseconds.items()}
    return Timing(task, samples, dict.fromkeys(milliseconds, 9.0))


def found(*timings, stages=(), growth=(), absent=None):
    by_task = {one.task: one for one in timings}
    return Found(by_task, [Sample(0.5, 0.5), Sample(0.25, 0.3)], 10**9, stages, growth, MACHINE, "random", absent or {})


# Figures


def test_a_slower_implementation_is_seen_as_slower():
    assert measured(port=1.0, original=3.0).ratio("original") == pytest.approx(3.0)
    slowed = measured(port=4.0, original=3.0)
    assert slowed.ratio("original") == pytest.approx(0.75)
    assert [goal.is_reached for goal in found(slowed).goals()] == [False]
    assert "Goal missed: learner step" in in_words(found(slowed))


def test_the_median_is_not_moved_by_one_slow_round_and_the_spread_is_shown():
    one = timing(port=100.0)
    assert one.milliseconds("port") == pytest.approx(100)
    assert one.as_json()["quartiles"]["port"] == pytest.approx([87.5, 150])


def test_without_the_original_there_is_no_ratio_and_it_is_said():
    alone = found(timing(port=100.0), absent={"original": "`make original` brings it."})
    assert alone.as_json()["learner_step"]["ratio"] is None
    assert in_words(alone).startswith("The original was not measured (`make original` brings it.)")
    assert alone.goals() == []


@pytest.mark.parametrize(("original", "is_reached"), [(199.0, False), (200.0, True)])
def test_the_learner_step_must_be_twice_as_fast(original, is_reached):
    assert [goal.is_reached for goal in found(timing(port=100.0, original=original)).goals()] == [is_reached]


def test_actors_goals_depend_on_the_number_of_environments():
    slow, fast = (timing(task, port=100.0, original=150.0) for task in ("actor_unroll_4096", "actor_unroll"))
    assert [goal.is_reached for goal in found(fast, slow).goals()] == [True, False]


def test_frames_in_a_second_are_those_of_a_call_over_its_median():
    acted = Timing("actor_unroll", {"port": [Sample(0.5, 0.5)]}, {"port": 1.0}, frames=58)
    assert acted.as_json()["frames_per_second"] == {"port": pytest.approx(116)}


def test_a_run_is_scaled_from_steps_that_fill_the_buffer_and_steps_that_learn():
    samples = {"port": [Sample(0.2, 0.3)] * 3}
    filled, memory = {"port": [Sample(0.01, 0.01)]}, {"port": 1025.0}
    run = Timing("catch_run", samples, {"port": 1.0}, {}, 0, 0, memory, filled, steps_filling=31, steps=1000)
    assert run.milliseconds("port") == pytest.approx(31 * 10 + 969 * 200)
    as_json = run.as_json()
    assert as_json["is_scaled"] and as_json["steps_measured"] == 3
    assert found(run).goals() == [Goal("whole Catch run: peak MB", 1025.0, 1024.0, False)]


def test_the_peak_is_the_fastest_product_and_shares_are_between_medians():
    step = command.replace(timing(port=1000.0), flops=10**9)
    assert found(step).peak == pytest.approx(4e9)
    assert found(step).share_of_peak("learner_step") == pytest.approx(0.375)  # 1e9 over 1e9 / 0.375


def test_every_task_in_the_json_has_milliseconds_by_implementation_and_their_ratio():
    every = [timing(task, port=10.0, original=25.0, disco_torch=40.0) for task in command.TASKS]
    text = json.loads(json.dumps(found(*every).as_json()))
    for task in ("learner_step", "actor_unroll", "meta_update", "catch_run"):
        assert text[task]["milliseconds"] == pytest.approx({"port": 10.0, "original": 25.0, "disco_torch": 40.0})
        assert text[task]["ratio"] == pytest.approx(2.5)
        assert text[task]["ratios"] == pytest.approx({"original": 2.5, "disco_torch": 4.0})


def test_growth_is_a_power_of_the_size():
    rows = [Growth("T", n, [Sample(n**2.0, n**1.5)], 0).row() for n in (1, 2, 4)]
    assert exponent(rows) == pytest.approx(1.5)
    assert exponent(rows, what="milliseconds") == pytest.approx(2.0)
    assert math.isnan(exponent(rows[:1]))


# Turns


def test_in_each_round_everyone_works_once_and_another_begins():
    order = []
    command.in_turns({name: lambda name=name: order.append(name) for name in "abc"}, 4)
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"


def test_the_first_call_is_listed_separately():
    workers = benches(port=2.0)
    assert command.prepared(workers, "learner_step", None, {}) == {"port": 2.0}


def test_whoever_has_no_such_task_is_left_out():
    workers = benches(port=2.0, other=1.0)
    workers["other"].side = object()
    assert list(command.prepared(workers, "learner_step", None, {})) == ["port"]


def test_an_implementation_that_fails_is_named_and_the_port_that_fails_ends_the_run():
    class Broken:
        def ask(self, *call):
            raise CannotRun("it is broken")

    not_run = {}
    command.prepared({"original": Broken()}, "learner_step", None, not_run)
    assert not_run == {"original": "it is broken"}
    with pytest.raises(CannotRun, match="broken"):
        command.prepared({"port": Broken()}, "learner_step", None, not_run)


def test_a_worker_works_in_a_process_of_its_own_and_says_what_went_wrong():
    worker = Worker("tests.slow_sides:Idle", 1)
    try:
        assert worker.ask("prepare", "task", "learner_step", None) >= 0
        sample = worker.ask("measure", "task")
        assert 0 <= sample.wall < 60 and worker.ask("side_function", "threads") == 1
        assert worker.ask("prepare", "task", "of others", None) is None
        with pytest.raises(CannotRun, match="ValueError: it is broken"):
            worker.ask("prepare", "bad", "fails", None)
    finally:
        worker.close()


def test_what_cannot_be_loaded_is_a_sentence():
    with pytest.raises(CannotRun, match="tests.no_such_module"):
        Worker("tests.no_such_module:Side", 1).ask("memory")


# The port


@pytest.mark.parametrize("task", ["learner_step", "actor_unroll", "catch_run"])
def test_the_port_does_every_task_again_and_again(work, task):
    bench = Bench(speed_port)
    assert bench.prepare("task", task, work) > 0
    assert all(bench.measure("task").wall > 0 for _ in range(2))


def test_a_learner_that_is_timed_learns(work):
    learner = speed_port.Learner(work)
    before = learner.state
    learner.step()
    assert any(not torch.equal(before.params[name], learner.state.params[name]) for name in before.params)


def test_stages_add_up_to_the_step_and_each_is_met(work):
    watch = Stopwatch()
    learner = speed_port.Learner(work)
    stages = watch.step(learner.step)
    assert list(stages) == list(ORDER)
    assert all(seconds > 0 for name, seconds in stages.items() if name != REST) and stages[REST] >= 0


def test_operations_of_a_step_are_counted_and_grow_with_the_batch(work):
    wider = workload.evaluation(work.setting.file, TINY, **{**LOOP, "batch_size": 8, "replay_ratio": 4})
    more = Work(wider, params=work.params, rollout=workload.batch(wider, 3, 0))
    flops = [speed_port.flops("learner_step", each) for each in (work, more)]
    assert flops[1] == pytest.approx(2 * flops[0], rel=0.02)


def test_batches_are_the_same_for_the_same_seed_and_end_episodes(work):
    again = workload.batch(work.setting, 3, 0)
    assert all(np.array_equal(again[name], value) for name, value in work.rollout.items())
    assert not again["discounts"].all() and again["discounts"].any()
    assert set(np.unique(again["rewards"])) <= {-1.0, 0.0, 1.0}
    assert (again["rewards"] != 0).sum() == (~again["discounts"]).sum()


# The page and the command


def test_the_section_shows_every_figure_and_leaves_its_numbers_beside_it(tmp_path):
    stages = [dict.fromkeys(ORDER, 0.01)]
    growth = [Growth(axis, n, [Sample(0.1 * n, 0.1 * n)], n) for axis in ("T", "B", "A", "board") for n in (1, 2)]
    step = command.replace(timing(port=100.0, original=250.0), flops=10**8)
    made = section.section_of(found(step, stages=stages, growth=growth), "python -m reports.speed", tmp_path)
    assert made.state == "beside" and made.label == "learner 2.50 times as fast"
    assert "2.50 times as fast" in made.verdict
    assert all((tmp_path / name).is_file() for name in made.files)
    assert list(pd.read_csv(tmp_path / "speed_growth.csv")["axis"].unique()) == ["T", "B", "A", "board"]
    assert page.write([made], tmp_path).is_file()


def test_the_section_of_the_port_alone_can_be_made(tmp_path):
    made = section.section_of(found(timing(port=1.0), absent={"original": "It is absent."}), "x", tmp_path)
    assert made.label == "port only" and "It is absent." in made.body


def test_quick_leaves_out_what_compiles_for_minutes():
    plan = command.quick(command.Plan(names=("port", "original")))
    assert "meta_update" not in plan.tasks
    assert plan.names_for("learner_step") == ["port", "original"] and plan.names_for("catch_run") == ["port"]


def test_wrong_numbers_are_refused(capsys):
    assert command.main(["--repeats", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err


def test_another_process_counts_as_processor_time_where_linux_is():
    assert workload.cpu_seconds([os.getppid()]) >= workload.cpu_seconds([]) - 1e-3


def test_every_side_s_threads_wait_as_the_ports_do():
    assert speed_worker.SPINS == omp.SPINS
    assert speed_worker._environment(2)["GOMP_SPINCOUNT"] == omp.SPINS
