"""More than one process: averages and their gradients, ranks as threads and as real processes, kills and resuming."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

from port import Agent, distributed, trees
from port.distributed import Averaging, RankLost, in_threads
from port.environments import Catch
from port.meta_train import MetaTrainConfig
from port.meta_train.run import run
from port.meta_train.workers import Ranks, Workers
from port.train import CatchWorld, TrainConfig, Trainer, load_rule, ranks
from tests import distributed_case as case
from tests.rank_work import DIES_AFTER
from tests.test_meta_train import TINY, finished

HERE = Path(__file__).resolve().parent
TWO = 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As torchrun's processes have; sums that more threads share out are rounded otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def torchrun(*arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """A command on two ranks, which speak over the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    given = {"cwd": HERE.parent, "env": environment, "capture_output": True, "text": True, "timeout": timeout}
    return subprocess.run([*launcher, *arguments], **given, check=False)  # type: ignore[call-overload, no-any-return]


def test_means_over_ranks_come_in_one_exchange_and_keep_shapes_and_dtypes():
    calls = []

    def work(averaging: Averaging) -> tuple[torch.Tensor, ...]:
        total = averaging.total

        def counted(flat: torch.Tensor) -> torch.Tensor:
            calls.append(averaging.rank)
            return total(flat)

        averaging.total = counted  # type: ignore[method-assign]
        r = float(averaging.rank)
        return averaging.mean(torch.full((2, 3), r), torch.tensor(10 * r), torch.full((1,), r, dtype=torch.float64))

    for matrix, scalar, wide in in_threads([work] * 3):
        assert torch.equal(matrix, torch.ones(2, 3)) and torch.equal(scalar, torch.tensor(10.0))
        assert torch.equal(wide, torch.ones(1, dtype=torch.float64))
    assert sorted(calls) == [0, 0, 1, 1, 2, 2]  # one for each dtype


def test_an_average_can_be_differentiated_twice():
    xs = [torch.tensor([0.3, -1.2], dtype=torch.float64), torch.tensor([2.0, 0.7], dtype=torch.float64)]

    def work(averaging: Averaging) -> tuple[torch.Tensor, torch.Tensor]:
        x = xs[averaging.rank].clone().requires_grad_()
        (y,) = averaging.mean(x**3)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first.detach(), second

    y = (xs[0] ** 3 + xs[1] ** 3) / 2
    slope = (3 * xs[0] ** 2 + 3 * xs[1] ** 2) / 2  # of what each rank asks, as the others' cotangents reach it
    for x, (first, second) in zip(xs, in_threads([work] * TWO), strict=True):
        torch.testing.assert_close(first, 2 * y * 3 * x**2, rtol=1e-14, atol=0)
        torch.testing.assert_close(second, 2 * y * 6 * x + 2 * slope * 3 * x**2, rtol=1e-14, atol=0)


def test_ranks_whose_graphs_differ_meet_in_the_same_order_on_the_way_back():
    def work(averaging: Averaging) -> torch.Tensor:
        x = torch.full((3,), 1.0 + averaging.rank, requires_grad=True)
        longer = x * 2 if averaging.rank == 0 else (x * 4 / 2).exp().log()  # on one rank three more nodes
        (first,) = averaging.mean(longer)
        (second,) = averaging.mean((x[:2] * 3).exp().log() if averaging.rank == 0 else x[:2] * 3)
        tail = first.sum() if averaging.rank == 1 else (first + 0).neg().neg().sum()
        return torch.autograd.grad(tail + second.sum(), x)[0]

    for found in in_threads([work] * TWO, timedelta(seconds=20)):
        torch.testing.assert_close(found, torch.tensor([5.0, 5.0, 2.0]))


def test_an_average_has_tangents():
    def work(averaging: Averaging) -> torch.Tensor:
        x = torch.tensor([1.0 + averaging.rank])
        (y,) = averaging.mean(forward_ad.make_dual(x, 2 * x) ** 2)
        return forward_ad.unpack_dual(y).tangent

    with forward_ad.dual_level():  # there is one in a process
        assert [x.item() for x in in_threads([work] * TWO)] == [10.0, 10.0]  # mean of 4 x^2


@pytest.mark.parametrize("rule", ["disco", "actor_critic"])
@pytest.mark.parametrize("is_meta_training", [False, True])
def test_two_ranks_learn_as_one_process_does_from_both_their_batches(rule: str, is_meta_training: bool):
    parts = [case.rollout(1), case.rollout(2)]

    def work(averaging: Averaging | None, batch: object) -> dict[str, torch.Tensor]:
        agent = Agent(case.agent_config(rule), case.OBS, case.A, averaging=averaging)
        state, meta_params = case.start(agent, rule)
        for _ in range(2):
            state, logs = agent.learner_step(batch, state, meta_params, is_meta_training)  # type: ignore[arg-type]
        return trees.detached(trees.flatten({"state": state, "norm": {"": logs["global_gradient_norm"]}}))

    whole = work(None, case.both(*parts))
    ranks = in_threads([lambda a: work(a, parts[0]), lambda a: work(a, parts[1])])
    for name, x in whole.items():
        assert torch.equal(ranks[0][name], ranks[1][name]), name
        # A loss is divided by its number of steps plus 1e-8, which weighs twice as much in half a batch.
        torch.testing.assert_close(ranks[0][name], x, rtol=1e-8, atol=1e-10, msg=name)


def test_a_rank_that_fails_ends_the_others_and_its_error_is_told():
    def fails(averaging: Averaging) -> None:
        raise ZeroDivisionError("mine")

    def waits(averaging: Averaging) -> None:
        averaging.gather(1)

    with pytest.raises(ZeroDivisionError, match="mine"):
        in_threads([waits, fails])


def test_a_rank_that_does_not_answer_is_lost_after_a_while():
    def waits(averaging: Averaging) -> None:
        averaging.gather(1)

    with pytest.raises(RankLost, match="rank 0 of 2 stops: another process of this run has ended or no longer answers"):
        in_threads([waits, lambda averaging: None], timedelta(seconds=0.2))


def test_ranks_that_are_not_alike_are_refused():
    def make(averaging: Averaging) -> Trainer:
        config = TrainConfig(batch_size=2, capacity=4, rollout_length=4, seed=averaging.rank)
        return Trainer(CatchWorld(Catch(4, 4), 2), *load_rule("actor_critic", dense=(8,)), config, averaging=averaging)

    with pytest.raises(ValueError, match="The setting .first. of rank 1 is not that of rank 0: train seed 1 against 0"):
        in_threads([make] * TWO)


def test_without_torchrun_there_is_nobody_to_average_with(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    assert distributed.connect() is None
    x = torch.ones(2)
    assert distributed.averaged(None, x)[0] is x
    assert distributed.own_device("cuda", {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == "cuda:1"
    assert distributed.own_device("cpu", {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == "cpu"


def test_what_torch_says_is_cut_to_its_first_words():
    told = RuntimeError("[gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1. Check the logs.\nmore")
    assert distributed._first_words(told) == "Connection closed by peer [127.0.0.1]:1"


FLAGS = {"envs": 2, "batch_size": 4, "rollout_length": 6, "capacity": 16, "checkpoint_every": 4, "seed": 3}


def trained_in_threads(out: Path, steps: int) -> list[Trainer]:
    """The run of `TRAIN`, on two threads and with nobody killed."""
    agent, meta_params = load_rule("actor_critic", dense=(16,))
    config = TrainConfig(**{name: value for name, value in FLAGS.items() if name != "envs"})  # type: ignore[arg-type]

    def work(averaging: Averaging) -> Trainer:
        world = CatchWorld(Catch(5, 5), FLAGS["envs"])
        trainer = Trainer(world, agent, meta_params, config, out=out, averaging=averaging)
        trainer.run(steps)
        trainer.close()
        return trainer

    return in_threads([work] * TWO)


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def test_ranks_have_the_same_parameters_and_experience_of_their_own(tmp_path: Path):
    first, second = trained_in_threads(tmp_path, 4)
    assert all(torch.equal(x, second.params[name]) for name, x in first.params.items())
    mine, others = first._buffer.save()[0], second._buffer.save()[0]
    assert not torch.equal(mine["actions"], others["actions"])
    assert len({ranks.own_seed(17, rank) for rank in range(8)}) == 8 and ranks.own_seed(17, 0) == 17
    assert [path.name for path in sorted(tmp_path.glob("checkpoint*"))] == [
        "checkpoint.rank1.4.safetensors",
        "checkpoint.safetensors",
    ]


def test_a_killed_rank_ends_the_others_with_a_sentence_and_the_run_goes_on_to_the_same_bits(tmp_path: Path):
    flags = [x for name, value in FLAGS.items() for x in (f"--{name.replace('_', '-')}", str(value))]
    run = ["Catch-5x5", "--rule", "actor_critic", "--dense", "16", "--steps", "8", *flags, "--episodes", "2", "--quiet"]
    out = tmp_path / "killed"
    ended = torchrun(str(HERE / "rank_work.py"), "dying", *run, "--out", str(out))
    assert ended.returncode != 0 and DIES_AFTER < 8
    assert "port.train: rank 0 of 2 stops: another process of this run has ended" in ended.stderr, ended.stderr
    assert "the same command goes on from the last checkpoint" in ended.stderr
    resumed = torchrun("-m", "port.train", *run, "--out", str(out))
    assert resumed.returncode == 0, resumed.stderr
    assert "Going on after 4 rollouts" in resumed.stdout
    whole = tmp_path / "whole"
    trained_in_threads(whole, 8)
    for name in ("checkpoint.safetensors", "checkpoint.rank1.8.safetensors", "log.csv"):
        assert same(out / name, whole / name), name


def test_two_processes_give_the_bits_of_two_threads(tmp_path: Path):
    ended = torchrun(str(HERE / "rank_work.py"), "step", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    for rank, want in enumerate(in_threads([case.learner_step] * TWO)):
        with np.load(tmp_path / f"rank{rank}.npz") as got:
            assert sorted(got.files) == sorted(want)
            differing = [name for name, x in want.items() if not np.array_equal(got[name], x)]
        assert not differing


def test_a_population_spread_over_ranks_is_meta_trained_to_the_same_bits(tmp_path: Path):
    config = MetaTrainConfig(**TINY)  # type: ignore[arg-type]
    workers = Workers(config, 1)
    run(config, tmp_path / "one", workers)
    workers.close()

    def work(averaging: Averaging) -> None:
        ranks = Ranks(config, averaging)
        if averaging.rank > 0:
            return ranks.serve()
        run(config, tmp_path / "two", ranks)
        return ranks.close()

    in_threads([work] * TWO)
    assert finished(tmp_path / "two") == finished(tmp_path / "one")
