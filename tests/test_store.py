"""Fixtures: any damage is named, and no wrong number comes out of them."""

import json
import shutil

import numpy as np
import pytest

from parity.__main__ import main
from parity.layers import REGISTRY
from parity.layers.draw import bell, case_inputs, generator
from parity.store import FIXTURES, FixtureError, Store, digest, file_name, manifest_bytes, sketch, write_atomically

LAYER = "moving_average/normalize"


@pytest.fixture
def copy(tmp_path):
    """A copy of the fixtures with one layer's file, which tests may damage."""
    (tmp_path / "golden").mkdir()
    shutil.copy(FIXTURES / "manifest.json", tmp_path)
    shutil.copy(FIXTURES / "golden" / file_name(LAYER), tmp_path / "golden")
    return tmp_path


def load_all(root):
    store = Store(root)
    return [store.load(LAYER, case) for case in store.cases(LAYER)]


def test_an_undamaged_copy_reads(copy):
    assert len(load_all(copy)) >= 7


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.2, 0.5, 0.8, 0.999])
def test_a_flipped_byte_in_a_golden_is_refused(copy, share):
    path = copy / "golden" / file_name(LAYER)
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(FixtureError, match=path.name):
        load_all(copy)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_a_flipped_byte_in_the_manifest_is_refused(copy, share):
    path = copy / "manifest.json"
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 0x01
    path.write_bytes(content)
    with pytest.raises(FixtureError, match="manifest.json"):
        load_all(copy)


def test_a_changed_budget_in_the_manifest_is_refused(copy):
    path = copy / "manifest.json"
    content = json.loads(path.read_text())
    content["layers"][LAYER]["cases"]["plain"]["accuracy"]["value"]["out"]["sensitivity64"] = 1.0
    path.write_text(json.dumps(content))
    with pytest.raises(FixtureError, match="digest does not fit"):
        load_all(copy)


def test_a_missing_golden_is_named(copy):
    (copy / "golden" / file_name(LAYER)).unlink()
    with pytest.raises(FixtureError, match="moving_average.normalize.safetensors.gz is missing"):
        load_all(copy)


def test_a_missing_manifest_is_named(copy):
    (copy / "manifest.json").unlink()
    with pytest.raises(FixtureError, match="manifest.json is missing"):
        load_all(copy)


def test_a_truncated_golden_is_named(copy):
    path = copy / "golden" / file_name(LAYER)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FixtureError, match="damaged"):
        load_all(copy)


def test_another_format_is_refused(copy):
    path = copy / "manifest.json"
    path.write_bytes(manifest_bytes({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(FixtureError, match="format 99"):
        load_all(copy)


def test_the_command_says_so_in_one_sentence_and_exits_with_2(copy, monkeypatch, capsys):
    (copy / "golden" / file_name(LAYER)).unlink()
    monkeypatch.setattr("parity.__main__.Store", lambda: Store(copy))
    assert main(["check", LAYER]) == 2
    message = capsys.readouterr().err
    assert "is missing" in message
    assert "Traceback" not in message


def test_inputs_made_from_a_seed_are_checked(monkeypatch):
    store = Store()
    layer = REGISTRY["nets/agent"]
    case = next(case for case in layer.cases if not case.stored)
    inputs = case_inputs(layer, case)
    store.load(layer.name, case.name, inputs)
    name = next(iter(inputs))
    inputs[name] = inputs[name] + 1e-3
    with pytest.raises(FixtureError, match="not the one recorded"):
        store.load(layer.name, case.name, inputs)


def test_draws_are_exact_in_float32_and_depend_on_names_alone():
    values = bell(generator("a", "b"), (50, 50))
    assert np.array_equal(values, values.astype(np.float32).astype(np.float64))
    assert np.array_equal(values, bell(generator("a", "b"), (50, 50)))
    assert not np.array_equal(values, bell(generator("a", "c"), (50, 50)))
    assert abs(values.mean()) < 0.05
    assert abs(values.std() - 1.0) < 0.05


def test_digest_sees_dtype_shape_and_bytes():
    zeros = np.zeros((2, 3))
    others = [zeros.reshape(3, 2), zeros.astype(np.float32), np.ones((2, 3)), np.zeros((2, 3), np.int64)]
    assert len({digest(x) for x in (zeros, *others)}) == 5


def test_every_element_counts_in_a_sketch():
    base = np.zeros(1000)
    for i in (0, 1, 499, 999):
        changed = base.copy()
        changed[i] = 1.0
        assert np.abs(sketch(changed)).sum() == 1.0


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("parity.store.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_all_fixtures_together_stay_small():
    total = sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file())
    assert total < 25_000_000
