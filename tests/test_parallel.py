"""Work that threads share, and what the learner step computes with it: its large losses, fast and the general way."""

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from port import ops
from port.fast import fused_kl, unique_rows
from port.fast import parallel as work_in_pieces
from port.fast.parallel import for_each, meanwhile, parts, pieces, side_by_side, team
from port.value_fns import value_utils

OF = torch.tensor([2, 0, 0, 1, 2, 2])  # six states [3, 2] of three kinds
LEAD = (3, 2)
FORKS = """
import os, torch
from port.fast.parallel import for_each, team
torch.set_num_threads(2)
with team():
    for_each([0, 1, 2, 3], lambda item: None)
if not os.fork():
    done = []
    with team():
        for_each([0, 1, 2, 3], done.append)
    print(sorted(done), flush=True)
    os._exit(0)
os.wait()
"""


@contextmanager
def of_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def two_threads():
    with of_threads(2), team():
        yield


def drawn(*shape, scale=1.0, seed=0, dtype=torch.float64):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def shared(width, scale=1.0):
    rows = drawn(3, width, scale=scale).requires_grad_()
    return rows, unique_rows.over_time(rows, OF, LEAD)


def test_every_item_is_worked_on_once_by_more_than_one_thread_of_one_thread_each(two_threads):
    done, seen = [], set()

    def work(item):
        done.append(item)
        seen.add((threading.get_ident(), torch.get_num_threads()))
        time.sleep(0.01)

    for_each(range(7), work)
    assert sorted(done) == list(range(7))
    assert len(seen) == 2 and all(count == 1 for _, count in seen)
    assert work_in_pieces.size() == 2


def test_outside_a_team_items_are_worked_on_in_order():
    done = []
    for_each("abc", lambda item: done.append((item, threading.get_ident())))
    for_each("", done.append)
    assert done == [(item, threading.get_ident()) for item in "abc"]


@pytest.mark.parametrize("size", [1, 3])
def test_a_team_leaves_torch_as_it_was(size):
    with of_threads(size):
        with pytest.raises(KeyError), team():
            assert (work_in_pieces.size(), torch.get_num_threads()) == (size, 1)
            raise KeyError
        assert (work_in_pieces.size(), torch.get_num_threads()) == (1, size)


@pytest.mark.parametrize("mode", [FlopCounterMode(display=False), torch.autocast("cpu"), torch.inference_mode()])
def test_whoever_works_in_a_mode_of_torch_works_alone(mode):
    with of_threads(2), mode, team():
        assert work_in_pieces.size() == 1


def test_whoever_is_transformed_works_alone():
    def size(x):
        with team():
            sizes.append(work_in_pieces.size())
        return x

    sizes: list[int] = []
    with of_threads(2):
        torch.vmap(size)(torch.zeros(3))
        size(torch.zeros(3))
    assert sizes == [1, 2]


def test_works_side_by_side_keep_a_graph_if_the_caller_does(two_threads):
    x = torch.ones(3, requires_grad=True)
    assert all(y.requires_grad for y in side_by_side({i: x.exp for i in range(2)}).values())
    with torch.no_grad():
        assert not any(y.requires_grad for y in side_by_side({i: x.exp for i in range(2)}).values())
    assert not meanwhile(x.exp)().requires_grad


def test_what_is_begun_meanwhile_is_begun_by_another_thread(two_threads):
    assert meanwhile(threading.get_ident)() != threading.get_ident()


def test_the_largest_things_are_shared_out_first(two_threads):
    assert work_in_pieces.shares({"a": 1, "b": 5, "c": 3, "d": 2}) == [["b", "a"], ["c", "d"]]
    assert work_in_pieces.shares({"a": 1}) == [["a"]]
    assert work_in_pieces.shares({}) == [[]]


@pytest.mark.parametrize("rows", [1, 63, 64, 129, 1000])
def test_parts_cover_all_rows_and_are_not_too_short(two_threads, rows):
    found = parts(torch.empty(rows, 2))
    assert [found[0].start, found[-1].stop] == [0, rows]
    assert [part.stop for part in found[:-1]] == [part.start for part in found[1:]]
    assert len(found) == (2 if rows >= 2 * work_in_pieces.ROWS else 1)


@pytest.mark.parametrize("bad", [0, 1])
def test_an_error_comes_through_after_all_others_are_done(two_threads, bad):
    done = []

    def work(item):
        if item == bad:
            raise ValueError(f"item {item}")
        time.sleep(0.05)
        done.append(item)

    with pytest.raises(ValueError, match=f"item {bad}"):
        for_each([0, 1], work)
    assert done == [1 - bad]
    assert work_in_pieces.size() == 2


def test_work_goes_on_in_a_forked_process():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2, 3]\n"), done.stderr


def test_pieces_cover_all_rows_and_fit_the_cache():
    for rows, width in ((1, 1), (5000, 600), (3, work_in_pieces.PIECE * 2), (0, 4)):
        x = torch.empty(rows, width)
        found = pieces(x)
        places = torch.arange(rows)
        assert torch.equal(torch.cat([places[:0], *(places[piece] for piece in found)]), places)
        assert all(x[piece].numel() <= work_in_pieces.PIECE or len(x[piece]) == 1 for piece in found)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 200.0])
def test_the_divergence_and_its_gradient_are_those_of_the_general_way(scale, monkeypatch):
    monkeypatch.setattr(work_in_pieces, "PIECE", 10)  # two rows
    rows, predicted = shared(5, scale)
    target, weights = drawn(*LEAD, 5, scale=scale, seed=1), drawn(*LEAD, seed=2)
    got, got_entropy = fused_kl.kl_and_entropy(target, predicted)
    ref, ref_entropy = ops.kl_and_entropy(target, predicted.spread())
    torch.testing.assert_close(got, ref, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(got_entropy, ref_entropy.detach(), rtol=1e-12, atol=1e-14)
    assert not got_entropy.requires_grad
    got_grad, ref_grad = (torch.autograd.grad((kl * weights).sum(), rows)[0] for kl in (got, ref))
    torch.testing.assert_close(got_grad, ref_grad, rtol=1e-11, atol=1e-14)
    assert bool(ref_grad.abs().max() > 1e-5)


@pytest.mark.parametrize("is_wanted", [False, True])
def test_the_divergence_knows_about_what_cannot_be(is_wanted):
    rows, _ = shared(4)
    with torch.no_grad():
        rows[:, 1] = -torch.inf
    predicted = unique_rows.over_time(rows, OF, LEAD)
    target = drawn(*LEAD, 4, seed=1)
    if not is_wanted:
        target[..., 1] = -torch.inf
    got, got_entropy = fused_kl.kl_and_entropy(target, predicted)
    ref, ref_entropy = ops.kl_and_entropy(target, predicted.spread())
    assert bool(ref.isfinite().all()) is not is_wanted and bool(ref_entropy.isfinite().all())
    torch.testing.assert_close(got, ref)
    torch.testing.assert_close(got_entropy, ref_entropy.detach())
    assert not got_entropy.requires_grad


def test_the_divergence_refuses_to_be_differentiated_twice():
    rows, predicted = shared(4)
    kl, _ = fused_kl.kl_and_entropy(drawn(*LEAD, 4, seed=1), predicted)
    with pytest.raises(RuntimeError, match="is_meta_training"):
        torch.autograd.grad(kl.sum(), rows, create_graph=True)


@pytest.mark.parametrize("nonlinear", [True, False])
def test_the_value_loss_of_shared_states_and_its_gradient_are_those_of_the_general_way(nonlinear):
    rows, head = shared(9)
    td = drawn(*LEAD, scale=3.0, seed=3)
    td[0, 0], td[1, 0] = 1e6, -1e6  # past the range
    given = {"max_abs_value": 4.0, "categorical": True, "nonlinear": nonlinear}
    got, ref = (value_utils.value_loss_from_td(x, td, **given) for x in (head, head.spread()))
    torch.testing.assert_close(got, ref, rtol=1e-12, atol=1e-14)
    weights = drawn(*LEAD, seed=4)
    got_grad, ref_grad = (torch.autograd.grad((loss * weights).sum(), rows)[0] for loss in (got, ref))
    torch.testing.assert_close(got_grad, ref_grad, rtol=1e-11, atol=1e-14)


def test_values_can_be_transformed_whatever_the_pieces(monkeypatch):
    monkeypatch.setattr(work_in_pieces, "PIECE", 2 * 11)
    logits, tangent = (drawn(7, 11, seed=seed, dtype=torch.float32) for seed in (0, 1))
    read = partial(value_utils.values_from_logits, max_abs_value=3.0)
    with torch.no_grad():
        _, got = torch.func.jvp(read, (logits,), (tangent,))
    _, ref = torch.func.jvp(read, (logits.double(),), (tangent.double(),))
    torch.testing.assert_close(got.double(), ref, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(torch.vmap(read)(logits), read(logits))
