"""Files: written whole or not at all, TOML tables, and JSON that is the same bytes for the same content."""

from __future__ import annotations

import json
import math
import os
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from parity.errors import CannotRun, FixtureError, WeightsMissing


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all; into a device or a pipe, which must stay what it is, at once."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_tables(path: Path, name: str) -> list[dict[str, Any]]:
    """The tables [[name]] of a TOML file, which holds nothing else."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        tables: list[dict[str, Any]] = content.pop(name)
    except FileNotFoundError:
        raise CannotRun(f"There is no file {path}.") from None
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise CannotRun(f"{path} is no list of [[{name}]] tables ({error}).") from None
    if content or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        other = f"it has {next(iter(content))!r} too" if content else f"{name} is something else"
        raise CannotRun(f"{path} is no list of [[{name}]] tables ({other}).")
    return tables


@contextmanager
def reading(path: Path, remedy: str, what: str = "") -> Iterator[None]:
    """Makes FixtureError of what reading a missing, damaged or odd file raises; it names the file and what to do."""
    try:
        yield
    except (CannotRun, FixtureError, WeightsMissing):
        raise
    except FileNotFoundError:
        raise FixtureError(f"{path} is missing{what and f': {what}'}. {remedy}") from None
    except Exception as error:  # JSON, gzip, safetensors and NumPy raise many kinds
        raise FixtureError(f"{path} is damaged ({type(error).__name__}: {error}). {remedy}") from None


def read_json(path: Path, form: Any, remedy: str, what: str = "the file") -> dict[str, Any]:
    """An object of a form, as of `check_form`, from a JSON file; FixtureError says what is wrong with it.

    Args:
        path: of the file.
        form: that it must have.
        remedy: a sentence on how to get it back.
        what: it is, in words.
    """
    with reading(path, remedy, what):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
        check_form(content, form)
        return content


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def check_keys(table: Mapping[str, Any], required: Collection[str], allowed: Collection[str], where: str) -> None:
    """Raises CannotRun where a table lacks a key that is required, or has one that is not allowed."""
    lacking, unknown = [key for key in required if key not in table], sorted(set(table) - set(allowed))
    if lacking or unknown:
        raise CannotRun(f"{where}: {f'lacks {lacking[0]}' if lacking else f'does not know {unknown[0]}'}.")


def check_form(value: Any, form: Any, where: str = "it") -> None:
    """Raises ValueError where a value from JSON is not of a form.

    A form is a type (`object` for any, `float` for integers too); `[form]` for a list; `{str: form}` for an object with
    any names; or an object of forms, whose names must be there, beside others.
    """
    kind = form if isinstance(form, type) else type(form)
    if kind is not object and type(value) is not kind and (kind, type(value)) != (float, int):
        raise ValueError(f"{where} is {type(value).__name__}, not {kind.__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{where} is {value}")
    if isinstance(form, list):
        form, value = {str: form[0]}, dict(enumerate(value))
    if isinstance(form, dict):
        for name in value if str in form else form:
            if name not in value:
                raise ValueError(f"{where} has no {name!r}")
            check_form(value[name], form.get(str, form.get(name)), f"{where}[{name!r}]")


def canonical(value: Any) -> str:
    """Sorted JSON, the same bytes for the same content."""
    return json.dumps(value, sort_keys=True, indent=1, allow_nan=False) + "\n"
