"""Fixtures: any damage is named, and no wrong number comes out of them."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from parity.__main__ import main
from parity.errors import FixtureError
from parity.files import write_atomically
from parity.goldens import manifests
from parity.goldens.manifests import DIGESTS
from parity.goldens.store import FIXTURES, Store, digest, file_name, layer_bytes, tensors_of
from parity.layers import REGISTRY
from parity.layers.draw import bell, case_inputs, generator
from parity.runs.curves import Recorded
from parity.runs.trace_store import TraceStore
from parity.sigma import Rounding
from parity.sketch import sketch
from parity.tolerance import RECORDED
from tests import made

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


def test_changed_bits_of_sigma_in_the_manifest_are_refused(copy):
    path = copy / "manifest.json"
    content = json.loads(path.read_text())
    content["layers"][LAYER]["cases"]["plain"]["bits"]["value"].reverse()
    path.write_text(json.dumps(content))
    with pytest.raises(FixtureError, match="digest does not fit"):
        load_all(copy)


READERS = {
    "manifest.json": lambda root: Store(root).layers(),
    "traces/manifest.json": lambda root: TraceStore(root / "traces").specs(),
    "curves/manifest.json": lambda root: Recorded(root / "curves").presets(),
}


@pytest.fixture
def fixtures(tmp_path, monkeypatch):
    """The manifests of the fixtures where tests may edit them, and the digests that the code has."""
    for place in READERS:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        shutil.copy(FIXTURES / place, tmp_path / place)
    monkeypatch.setattr(manifests, "FIXTURES", tmp_path)
    monkeypatch.setattr(manifests, "DIGESTS", tmp_path / "digests.json")
    shutil.copy(DIGESTS, tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", READERS)
def test_an_edited_manifest_is_refused_even_with_its_digest_computed_again(place, fixtures):
    assert READERS[place](fixtures)
    path = fixtures / place
    edited = {**json.loads(path.read_text()), "machine": "another"}
    path.write_text(json.dumps(edited))
    with pytest.raises(FixtureError, match="digest does not fit its content"):
        READERS[place](fixtures)
    path.write_bytes(manifests.as_bytes(edited))
    with pytest.raises(FixtureError, match=r"digests.json has another digest for it. Restore it with `git checkout"):
        READERS[place](fixtures)


@pytest.mark.parametrize("place", READERS)
def test_recording_writes_the_digest_that_the_code_has_and_no_other(place, fixtures):
    before = json.loads((fixtures / "digests.json").read_text())
    manifests.write(fixtures / place, {**json.loads((fixtures / place).read_text()), "machine": "another"})
    after = json.loads((fixtures / "digests.json").read_text())
    assert READERS[place](fixtures) and [name for name in after if after[name] != before[name]] == [place]


def test_manifests_of_other_folders_leave_the_code_as_it_is(fixtures, tmp_path_factory):
    before = (fixtures / "digests.json").read_bytes()
    elsewhere = tmp_path_factory.mktemp("out") / "manifest.json"
    manifests.write(elsewhere, {"format": 4, "order": []})
    assert manifests.read(elsewhere, "", {}, 4)["order"] == [] and (fixtures / "digests.json").read_bytes() == before


def test_every_manifest_of_the_fixtures_has_its_digest_in_the_code():
    places = {path.relative_to(FIXTURES).as_posix() for path in FIXTURES.rglob("manifest.json")}
    assert places == set(READERS) == set(json.loads(DIGESTS.read_text()))


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
    path.write_bytes(manifests.as_bytes({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(FixtureError, match="format 99"):
        load_all(copy)


def test_the_command_says_so_in_one_sentence_and_exits_with_2(copy, monkeypatch, capsys):
    (copy / "golden" / file_name(LAYER)).unlink()
    monkeypatch.setattr("parity.commands.check.Store", lambda: Store(copy))
    assert main(["check", LAYER]) == 2
    message = capsys.readouterr().err
    assert "is missing" in message
    assert "Traceback" not in message


# What is written comes back


def rounded():
    """A golden with everything in it that rounding may leave."""
    golden = made.golden(vjp=1.0)
    awkward = {bits: sigma.copy() for bits, sigma in golden.rounding.sigmas["value"]["out"].items()}
    for sigma in awkward.values():
        sigma.reshape(-1)[:3] = (0.0, np.inf, 5e-324)
    others = {53: np.array([[1, 2], [3, 4]]), 8: np.array([[1, 0]])}
    rounding = Rounding({"value": {"out": awkward}, "vjp": golden.rounding.sigmas["vjp"]}, {"count": others})
    return replace(golden, outputs={**golden.outputs, "count": np.array([1, 4])}, rounding=rounding)


def test_a_golden_comes_back_as_it_was_written(tmp_path):
    written = rounded()
    read = made.write(tmp_path, written).load(made.LAYER, "plain")
    for part in ("inputs", "cotangents", "outputs", "vjps"):
        assert getattr(read, part).keys() == getattr(written, part).keys()
        for name, value in getattr(written, part).items():
            assert digest(getattr(read, part)[name]) == digest(value)
    told = ("layer", "case", "settings", "origin", "meta_params", "stored")
    assert [getattr(read, name) for name in told] == [getattr(written, name) for name in told]


def test_sigma_and_other_integers_come_back_at_their_bits(tmp_path):
    written = rounded()
    read = made.write(tmp_path, written).load(made.LAYER, "plain")
    for kind, name in (("value", "out"), ("vjp", "x")):
        assert read.recorded_at(kind) == written.recorded_at(kind) == RECORDED[kind]
        for bits in RECORDED[kind]:
            before, after = written.sigma(kind, name, bits), read.sigma(kind, name, bits)
            assert np.array_equal(after == 0.0, before == 0.0) and np.array_equal(np.isinf(after), np.isinf(before))
            between = (before > 0.0) & np.isfinite(before)
            growth = after[between] / before[between]
            assert 1.0 - 1e-12 <= growth.min() <= growth.max() <= 1.19
    assert read.others("count", 53).tolist() == [[1, 2], [3, 4]]
    assert read.others("count", 8).tolist() == [[1, 0]]
    assert read.others("count", 24) is None
    assert read.sigma("value", "count", 53).tolist() == [0.0, 0.0]


def test_sigma_takes_two_bytes_a_number():
    tensors = tensors_of(rounded())
    assert tensors["sigma_out:out"].dtype == tensors["sigma_vjp:x"].dtype == np.uint16
    assert tensors["sigma_out:out"].shape == (len(RECORDED["value"]), *tensors["out:out"].shape)
    kinds = {name.partition(":")[0] for name in tensors}
    assert kinds == {"in", "cot", "out", "vjp", "sigma_out", "sigma_vjp", "other_53", "other_8"}


def test_a_wider_sigma_in_the_file_is_refused(tmp_path):
    strict, lax = made.golden(sigma=0.0), made.golden(sigma=1e3)
    store = made.write(tmp_path, strict)
    write_atomically(tmp_path / "golden" / file_name(made.LAYER), layer_bytes([lax]))
    with pytest.raises(FixtureError, match="tensor plain:sigma_out:out has another digest than recorded"):
        store.load(made.LAYER, "plain")


def test_a_golden_without_sigma_is_known_at_every_precision():
    golden = made.golden(rounding=Rounding())
    assert (golden.recorded_at("value"), golden.recorded_at("vjp")) == (RECORDED["value"], RECORDED["vjp"])
    assert not golden.sigma("value", "out", 53).any()


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

    monkeypatch.setattr("parity.files.os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_all_fixtures_together_stay_small():
    total = sum(path.stat().st_size for path in FIXTURES.rglob("*") if path.is_file())
    assert total < 25_000_000
