"""Weights are found in order, and a wrong file is refused with what is wrong with it."""

import argparse
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import pickle
import zipfile

import numpy as np
import pytest

from parity import weights
from parity.runs.curves import manifest_entry
from parity.runs.spec import preset
from port.weights import load_npz
from reference import weights as command

TENSORS = {
    "lstm/linear/w": np.arange(1200, dtype=np.float32).reshape(30, 40),
    "lstm/linear/b": np.ones(40, np.float32),
    "conv/w": np.full((1, 4, 5), 0.5, np.float32),
}


def _npz(tensors) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **tensors)
    return buffer.getvalue()


GOOD = _npz(TENSORS)
EXPECTED = weights.Expected(hashlib.sha256(GOOD).hexdigest(), len(GOOD), 3, 1260, weights.digest(TENSORS))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.delenv(weights.VARIABLE, raising=False)
    monkeypatch.setattr(weights, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache" / weights.FILE_NAME


@pytest.fixture
def good(tmp_path):
    return _write(tmp_path / "good.npz", GOOD)


def _write(path: pathlib.Path, content: bytes) -> pathlib.Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def _find(path=None, **options):
    return weights.find_weights(path, expected=EXPECTED, **({"download": False} | options))


def test_a_good_file_is_loaded_under_its_own_names(good):
    assert _find(good) == weights.Weights(good, "path", EXPECTED.sha256)
    loaded = weights.load_weights(good, download=False, expected=EXPECTED)
    assert loaded.keys() == TENSORS.keys()
    assert all(np.array_equal(loaded[name], TENSORS[name]) for name in TENSORS)


FLIPPED = bytearray(GOOD)
FLIPPED[len(GOOD) // 2] ^= 1
OTHER_VALUES = TENSORS | {"lstm/linear/b": np.zeros(40, np.float32)}
OTHER_SHAPE = TENSORS | {"conv/w": np.zeros((1, 4, 6), np.float32)}
OBJECTS = TENSORS | {"conv/w": np.array([{"a": 1}], dtype=object)}
WRONG = {
    "truncated": (GOOD[:-100], f"truncated: {len(GOOD) - 100:,} of {len(GOOD):,} bytes"),
    "flipped_byte": (bytes(FLIPPED), "damaged: .*CRC"),
    "other_values": (_npz(OTHER_VALUES), "its numbers are other ones"),
    "other_shape": (_npz(OTHER_SHAPE), "other shapes: 1,264 values instead of 1,260"),
    "too_few": (_npz({"conv/w": TENSORS["conv/w"]}), "1 tensors instead of 3"),
    "float64": (_npz(TENSORS | {"conv/w": np.zeros((1, 4, 5))}), "conv/w is float64 instead of float32"),
    "pickled_arrays": (_npz(OBJECTS), "pickled objects, which are never loaded"),
    "pickle": (pickle.dumps(TENSORS), "it is a pickle"),
    "text": (b"not weights", "not an .npz"),
    "lfs_pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "empty": (b"", "empty"),
    "other_zip": (GOOD[:4] + b"\0" * len(GOOD), "damaged"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_with_what_is_wrong(name, tmp_path):
    content, reason = WRONG[name]
    path = _write(tmp_path / "wrong.npz", content)
    with pytest.raises(weights.WeightsError, match=reason) as caught:
        _find(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class Bomb:
    """Unpickling this is an event that a test can see."""

    def __reduce__(self):
        return (os.mkdir, (os.environ["BOMB"],))


@pytest.mark.parametrize("in_npz", [False, True], ids=["pickle", "npz"])
def test_pickles_are_never_run(in_npz, tmp_path, monkeypatch):
    monkeypatch.setenv("BOMB", str(tmp_path / "gone-off"))
    content = _npz({"w": np.array([Bomb()], dtype=object)}) if in_npz else pickle.dumps(Bomb())
    with pytest.raises(weights.WeightsError, match="pickle"):
        _find(_write(tmp_path / "bomb.npz", content))
    assert not (tmp_path / "gone-off").exists()


def _saved_again(tensors, compression=zipfile.ZIP_DEFLATED, **more) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, tensor in reversed(tensors.items()):
            content = io.BytesIO()
            np.save(content, np.asfortranarray(tensor))
            archive.writestr(f"{name}.npy", content.getvalue())
        for name, content in more.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_weights_saved_again_with_the_same_arrays_are_accepted(compression, tmp_path):
    path = _write(tmp_path / "again.npz", _saved_again(TENSORS, compression))
    assert _find(path) == weights.Weights(path, "path", EXPECTED.sha256)
    loaded = weights.load_weights(path, download=False, expected=EXPECTED)
    assert all(np.array_equal(loaded[name], TENSORS[name]) for name in TENSORS)


ONE_BIT = TENSORS["conv/w"].copy()
ONE_BIT.view(np.int32)[0, 1, 2] ^= 1
NOT_THE_SAME = {
    "one_bit": (_saved_again(TENSORS | {"conv/w": ONE_BIT}), "its numbers are other ones"),
    "minus_zero": (_saved_again(TENSORS | {"lstm/linear/w": -TENSORS["lstm/linear/w"]}), "its numbers are other ones"),
    "another_shape": (_saved_again(TENSORS | {"conv/w": TENSORS["conv/w"].reshape(5, 4)}), "its numbers are other"),
    "another_name": (_saved_again({**TENSORS, "conv/w": ONE_BIT, "conv/v": ONE_BIT}), "holds 4 tensors instead of 3"),
    "exchanged": (_saved_again({"a": TENSORS["conv/w"], **dict(list(TENSORS.items())[:2])}), "its numbers are other"),
    "swapped_bytes": (_saved_again(TENSORS | {"conv/w": TENSORS["conv/w"].astype(">f4")}), "is >f4 instead of float32"),
    "a_text": (_saved_again(TENSORS, **{"readme.txt": b"hello"}), "damaged: 'bytes' object|holds 4 tensors"),
    "a_bomb": (_saved_again(TENSORS, **{"bomb.npy": bytes(10**6)}), "damaged: it unpacks to 1,0.*bytes"),
}


@pytest.mark.parametrize("name", NOT_THE_SAME)
def test_weights_saved_again_with_anything_else_are_refused(name, tmp_path):
    content, reason = NOT_THE_SAME[name]
    with pytest.raises(weights.WeightsError, match=f"is refused: .*({reason})"):
        _find(_write(tmp_path / "again.npz", content))


def test_right_digest_but_other_contents_is_refused(good):
    strict = dataclasses.replace(EXPECTED, tensors=42)
    with pytest.raises(weights.WeightsError, match="3 tensors instead of 42"):
        weights.find_weights(good, download=False, expected=strict)


def test_a_named_file_that_is_not_there_is_an_error(tmp_path, cache):
    _write(cache, GOOD)
    with pytest.raises(weights.WeightsMissingError, match=r"none\.npz is not there"):
        _find(tmp_path / "none.npz")
    with pytest.raises(weights.WeightsError, match="cannot be read"):
        _find(tmp_path)


def test_path_comes_before_environment_before_cache(good, tmp_path, cache, monkeypatch):
    _write(cache, GOOD)
    assert _find().source == "cache"
    named = _write(tmp_path / "named.npz", GOOD)
    monkeypatch.setenv(weights.VARIABLE, str(named))
    assert _find() == weights.Weights(named, "environment", EXPECTED.sha256)
    assert _find(good).path == good


def test_a_wrong_file_in_the_environment_is_not_passed_over(tmp_path, cache, monkeypatch):
    _write(cache, GOOD)
    monkeypatch.setenv(weights.VARIABLE, str(_write(tmp_path / "bad.npz", GOOD[:-1])))
    with pytest.raises(weights.WeightsError, match="named by DISCO103_WEIGHTS"):
        _find()


def test_nothing_found_says_how_to_get_it():
    with pytest.raises(weights.WeightsMissingError, match="python -m reference weights --download"):
        _find()


def test_download_puts_a_verified_file_into_the_cache(cache, monkeypatch):
    monkeypatch.setattr(weights, "_fetch", lambda url, path, _: pathlib.Path(path).write_bytes(GOOD))
    assert _find(download=True) == weights.Weights(cache, "download", EXPECTED.sha256)
    assert _find().source == "cache"
    assert list(cache.parent.iterdir()) == [cache]


def test_download_mends_a_damaged_cache(cache, monkeypatch):
    _write(cache, GOOD[:50])
    with pytest.raises(weights.WeightsError, match="truncated"):
        _find()
    monkeypatch.setattr(weights, "_fetch", lambda url, path, _: pathlib.Path(path).write_bytes(GOOD))
    assert _find(download=True).source == "download"


def _breaks_off(url, path, _):
    pathlib.Path(path).write_bytes(GOOD[:100])
    raise ConnectionError("broken off")


def _delivers_half(url, path, _):
    pathlib.Path(path).write_bytes(GOOD[:-9])


@pytest.mark.parametrize("kept", [None, GOOD[:50]], ids=["empty_cache", "damaged_cache"])
@pytest.mark.parametrize(
    ("fetch", "reason"),
    [(_breaks_off, r"could not be downloaded .*\(ConnectionError\)"), (_delivers_half, "its digest is wrong")],
    ids=["breaks_off", "delivers_half"],
)
def test_a_failed_download_leaves_nothing_behind(fetch, reason, kept, cache, monkeypatch):
    if kept:
        _write(cache, kept)
    monkeypatch.setattr(weights, "_fetch", fetch)
    with pytest.raises(weights.WeightsError, match=reason):
        _find(download=True)
    assert [path.read_bytes() for path in cache.parent.iterdir()] == ([kept] if kept else [])


def test_the_address_is_of_the_pinned_commit():
    from reference import identity

    table = identity.load_table()
    assert weights.URL.startswith(f"{table.repository}/raw/{table.commit}/disco_rl/")


@pytest.mark.parametrize(("content", "code"), [(None, 2), (GOOD, 1)], ids=["missing", "wrong"])
def test_the_command_returns_a_code_and_a_sentence(content, code, tmp_path, capsys):
    path = tmp_path / "w.npz"
    if content:
        _write(path, content)
    args = argparse.Namespace(path=str(path), download=False, json=tmp_path / "w.json")
    assert command.run(args) == code
    printed = capsys.readouterr().out.strip()
    assert "\n" not in printed
    assert json.loads((tmp_path / "w.json").read_text())["error"] == printed


REAL = os.environ.get(weights.VARIABLE)


@pytest.mark.skipif(not REAL, reason="DISCO103_WEIGHTS names no file")
def test_the_real_weights_saved_again_are_the_published_ones_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv(weights.VARIABLE, REAL)
    published, path = preset("disco103"), tmp_path / "again.npz"
    entry, params = manifest_entry(published), load_npz(REAL)
    np.savez_compressed(path, **dict(reversed(weights.load_weights(REAL, download=False).items())))
    monkeypatch.setenv(weights.VARIABLE, str(path))
    assert manifest_entry(published) == entry and published.weights_path() == path
    again = load_npz(path)
    assert again.keys() == params.keys() and all(bool((again[name] == params[name]).all()) for name in params)


@pytest.mark.skipif(not REAL, reason="DISCO103_WEIGHTS names no file")
def test_the_real_weights_are_accepted():
    loaded = weights.load_weights(REAL, download=False)
    assert len(loaded) == 42
    assert "lstm/~/meta_lstm/~unroll/mlp_1/~/linear_0/w" in loaded
    assert not any(name.startswith("/") for name in loaded)
