"""Work that threads share in large parts."""

import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from port.fast import parallel
from port.fast.parallel import chunks, for_each, in_parallel, meanwhile, parts, worker_threads

FORKS = """
import os, torch
from port.fast.parallel import for_each, worker_threads
torch.set_num_threads(2)
with worker_threads():
    for_each([0, 1, 2, 3], lambda item: None)
if not os.fork():
    done = []
    with worker_threads():
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
    with of_threads(2), worker_threads():
        yield


def test_every_item_is_worked_on_once_by_more_than_one_thread_of_one_thread_each(two_threads):
    done, seen = [], set()

    def work(item):
        done.append(item)
        seen.add((threading.get_ident(), torch.get_num_threads()))
        time.sleep(0.01)

    for_each(range(7), work)
    assert sorted(done) == list(range(7))
    assert len(seen) == 2 and all(count == 1 for _, count in seen)
    assert parallel.size() == 2


def test_without_worker_threads_items_are_worked_on_in_order():
    done = []
    for_each("abc", lambda item: done.append((item, threading.get_ident())))
    for_each("", done.append)
    assert done == [(item, threading.get_ident()) for item in "abc"]


@pytest.mark.parametrize("size", [1, 3])
def test_worker_threads_leave_torch_as_it_was(size):
    with of_threads(size):
        with pytest.raises(KeyError), worker_threads():
            assert (parallel.size(), torch.get_num_threads()) == (size, 1)
            raise KeyError
        assert (parallel.size(), torch.get_num_threads()) == (1, size)


@pytest.mark.parametrize("mode", [FlopCounterMode(display=False), torch.autocast("cpu"), torch.inference_mode()])
def test_whoever_works_in_a_mode_of_torch_works_alone(mode):
    with of_threads(2), mode, worker_threads():
        assert parallel.size() == 1


def test_whoever_is_transformed_works_alone():
    def size(x):
        with worker_threads():
            sizes.append(parallel.size())
        return x

    sizes: list[int] = []
    with of_threads(2):
        torch.vmap(size)(torch.zeros(3))
        size(torch.zeros(3))
    assert sizes == [1, 2]


def test_works_side_by_side_keep_a_graph_if_the_caller_does(two_threads):
    x = torch.ones(3, requires_grad=True)
    assert all(y.requires_grad for y in in_parallel(dict.fromkeys(range(2), x.exp)).values())
    with torch.no_grad():
        assert not any(y.requires_grad for y in in_parallel(dict.fromkeys(range(2), x.exp)).values())
    assert not meanwhile(x.exp)().requires_grad


def test_what_is_begun_meanwhile_is_begun_by_another_thread(two_threads):
    assert meanwhile(threading.get_ident)() != threading.get_ident()


@pytest.mark.parametrize("rows", [1, 63, 64, 129, 1000])
def test_parts_cover_all_rows_and_are_not_too_short(two_threads, rows):
    found = parts(torch.empty(rows, 2))
    assert [found[0].start, found[-1].stop] == [0, rows]
    assert [part.stop for part in found[:-1]] == [part.start for part in found[1:]]
    assert len(found) == (2 if rows >= 2 * parallel.ROWS else 1)


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
    assert parallel.size() == 2


def test_work_goes_on_in_a_forked_process():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2, 3]\n"), done.stderr


def test_chunks_cover_all_rows_and_fit_the_cache():
    for rows, width in ((1, 1), (5000, 600), (3, parallel.CHUNK * 2), (0, 4)):
        x = torch.empty(rows, width)
        found = chunks(x)
        places = torch.arange(rows)
        assert torch.equal(torch.cat([places[:0], *(places[chunk] for chunk in found)]), places)
        assert all(x[chunk].numel() <= parallel.CHUNK or len(x[chunk]) == 1 for chunk in found)
