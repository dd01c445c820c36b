"""Disco103's weights: found, verified to the last bit, loaded as NumPy arrays under the original's names.

A file is taken from an explicit path, else from the environment variable DISCO103_WEIGHTS, else from the
cache, else downloaded from the pinned commit. Wherever it comes from it is verified; a named file that is
wrong is an error, never a reason to look further.
"""

import dataclasses
import hashlib
import io
import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Literal

import numpy as np

VARIABLE = "DISCO103_WEIGHTS"
FILE_NAME = "disco_103.npz"
COMMIT = "9059a29f7121d60948f25ef165e08e050e9399c8"  # of the original; tests/test_weights.py holds it to the table
URL = f"https://github.com/google-deepmind/disco_rl/raw/{COMMIT}/disco_rl/update_rules/weights/{FILE_NAME}"
MEND = "python -m reference weights --download"
Source = Literal["path", "environment", "cache", "download"]


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a weights file must be: the published one, or another that holds the same arrays."""

    sha256: str  # of the published file
    size: int
    tensors: int
    values: int
    arrays: str  # as of `digest`
    dtype: str = "float32"


DISCO103 = Expected(
    sha256="dac840a15b81e8805326363458c33979626172618f620d9e6e170315388530aa",
    size=2_803_507,
    tensors=42,
    values=754_778,
    arrays="c0bd24ac2fe45ddeba016f424868079af9a0423a153495e227d76990de666142",
)


@dataclasses.dataclass(frozen=True)
class Weights:
    """A verified weights file, how it was found, and the sha256 of the published file."""

    path: pathlib.Path
    source: Source
    sha256: str


class WeightsError(Exception):
    """A weights file that must not be used; the message says what is wrong with it."""


class WeightsMissingError(WeightsError):
    """There is no weights file where one was looked for."""


def find_weights(
    path: str | os.PathLike[str] | None = None, *, download: bool = True, expected: Expected = DISCO103
) -> Weights:
    """Finds a weights file and verifies it.

    Args:
        path: the file to use; None looks in the environment, the cache and, if allowed, the network.
        download: whether the network may be used.
        expected: what the file must be.

    Raises:
        WeightsError: the file is not what it must be, or there is none.
    """
    named: Source = "path"
    if path is None and os.environ.get(VARIABLE):
        path, named = os.environ[VARIABLE], "environment"
    if path is not None:
        return _verified(pathlib.Path(path), named, expected)
    cached = cache_folder() / FILE_NAME
    try:
        return _verified(cached, "cache", expected)
    except WeightsMissingError:
        if not download:
            raise WeightsMissingError(_nowhere(cached)) from None
    except WeightsError:
        if not download:
            raise
    return download_weights(cached, expected)


def load_weights(
    path: str | os.PathLike[str] | None = None, *, download: bool = True, expected: Expected = DISCO103
) -> dict[str, np.ndarray]:
    """Returns the weights as `{original's flat name: array}`; arguments as for `find_weights`."""
    found = find_weights(path, download=download, expected=expected)
    return read_verified(found.path, expected)


def read_verified(path: pathlib.Path, expected: Expected = DISCO103) -> dict[str, np.ndarray]:
    """Reads a file once, verifies the very tensors in these bytes, and returns them."""
    tensors, fault = _examined(_read(path), expected)
    if fault:
        raise WeightsError(f"{path} is refused: {fault}.")
    return tensors


def digest(tensors: Mapping[str, np.ndarray]) -> str:
    """The sha256 of names, dtypes, shapes and numbers, however a file orders or compresses them."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}|{tensor.dtype.str}|{tensor.shape}|".encode() + tensor.tobytes())
    return total.hexdigest()


def cache_folder() -> pathlib.Path:
    """Returns the folder that downloads are kept in."""
    import pooch

    return pathlib.Path(pooch.os_cache("disco-parity"))


def download_weights(target: pathlib.Path, expected: Expected = DISCO103) -> Weights:
    """Downloads the weights; pooch verifies them beside their place, and only then puts them there."""
    import pooch

    try:
        pooch.retrieve(URL, f"sha256:{expected.sha256}", target.name, target.parent, downloader=_fetch)
    except Exception as error:  # whatever the HTTP library raises, or a file with another digest
        reason = "its digest is wrong" if isinstance(error, ValueError) else type(error).__name__
        raise WeightsError(
            f"The weights could not be downloaded from {URL} ({reason}); "
            f"nothing was kept. Set {VARIABLE} to a copy of {FILE_NAME} instead."
        ) from error
    return _verified(target, "download", expected)


def _fetch(url: str, path: str, pooch_or_none: object) -> None:
    """Downloads `url` to `path`."""
    import pooch

    pooch.HTTPDownloader(progressbar=False, timeout=30)(url, path, None)


def _verified(path: pathlib.Path, source: Source, expected: Expected) -> Weights:
    """Verifies a file; the complaint says how the file came to be used."""
    try:
        read_verified(path, expected)
    except WeightsError as error:
        if source == "environment":  # a named file that is not there is wrong, and not merely missing
            raise WeightsError(f"{error} It is named by {VARIABLE}.") from None
        raise
    return Weights(path, source, expected.sha256)


def _nowhere(cached: pathlib.Path) -> str:
    """Says that there are no weights, and how to get them."""
    return f"No weights: {VARIABLE} is not set and {cached} is not there; `{MEND}` fetches them."


def _read(path: pathlib.Path) -> bytes:
    """Reads a file whole; raises a sentence where that fails."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise WeightsMissingError(f"{path} is not there.") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}.") from None


def _parse(content: bytes, expected: Expected) -> dict[str, np.ndarray]:
    """Reads an .npz; a pickle in it is an error, not executed, and so is what unpacks to far more than it should."""
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        size = sum(entry.file_size for entry in packed.infolist())
    if size > 2 * expected.size:
        raise ValueError(f"it unpacks to {size:,} bytes")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _examined(content: bytes, expected: Expected) -> tuple[dict[str, np.ndarray], str | None]:
    """The tensors in a file's bytes, and what is wrong with them; None where nothing is."""
    if not content.startswith(b"PK"):
        return {}, _not_an_archive(content)
    if len(content) < expected.size and not zipfile.is_zipfile(io.BytesIO(content)):
        return {}, f"truncated: {len(content):,} of {expected.size:,} bytes"
    try:
        tensors = _parse(content, expected)
        return tensors, _fault_in(tensors, expected)
    except Exception as error:  # zip and npy readers raise many kinds
        pickled = isinstance(error, ValueError) and "pickle" in str(error)
        return {}, "it holds pickled objects, which are never loaded" if pickled else f"damaged: {error}"


def _not_an_archive(content: bytes) -> str:
    """Says what a file is that does not begin as an .npz does."""
    if not content:
        return "it is empty"
    if content.startswith(b"\x80"):
        return "it is a pickle, which is never loaded"
    if content.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file itself"
    return "it is not an .npz archive"


def _fault_in(tensors: Mapping[str, np.ndarray], expected: Expected) -> str | None:
    """Says what is wrong with the number, type, size or content of the tensors; None where nothing is."""
    if len(tensors) != expected.tensors:
        return f"it holds {len(tensors)} tensors instead of {expected.tensors}"
    strange = [name for name, tensor in tensors.items() if tensor.dtype != expected.dtype]
    if strange:
        return f"{strange[0]} is {tensors[strange[0]].dtype} instead of {expected.dtype}"
    values = sum(tensor.size for tensor in tensors.values())
    if values != expected.values:
        return f"its tensors have other shapes: {values:,} values instead of {expected.values:,}"
    if (got := digest(tensors)) != expected.arrays:
        return f"its numbers are other ones: digest {got[:12]}… instead of {expected.arrays[:12]}…"
    return None
