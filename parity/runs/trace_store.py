"""The files in which the original's lives are kept, written atomically and read with every digest checked.

`fixtures/tapes/manifest.json` says where everything came from. Beside it lie safetensors files: the initial parameters
of each life, once, in float32; and its tapes, `LIFE.float32` and `LIFE.float64`, and `LIFE.float32.moved1` and so on,
the same life with every initial parameter moved by one unit in the last place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from parity.errors import FixtureError
from parity.files import canonical, write_atomically
from parity.goldens.store import FIXTURES, manifest_bytes
from parity.layers.spec import Arrays
from parity.runs.spec import Life
from parity.runs.trace import Tape, tape_bytes, tape_from, tape_name

T = TypeVar("T")

FORMAT = 1
TAPES = FIXTURES / "tapes"
REMEDY = "Restore it with `git checkout -- fixtures`, or record again with `python -m reference tape`."


@dataclass
class TapeStore:
    """Reads and writes tapes; nothing comes out that was not checked against the manifest."""

    root: Path = TAPES
    _manifest: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def path(self) -> Path:
        """Of the manifest."""
        return self.root / "manifest.json"

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, its own digest checked."""
        if self._manifest is None:
            self._manifest = self._read_manifest()
        return self._manifest

    def _read_manifest(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.path.read_text())
            body = {key: value for key, value in content.items() if key != "digest"}
            is_intact = hashlib.sha256(canonical(body).encode()).hexdigest() == content["digest"]
        except FileNotFoundError:
            raise FixtureError(f"{self.path} is missing: there are no tapes. {REMEDY}") from None
        except (ValueError, KeyError, AttributeError) as error:
            raise FixtureError(f"{self.path} is damaged ({type(error).__name__}: {error}). {REMEDY}") from None
        if not is_intact:
            raise FixtureError(f"{self.path} is not what was recorded: its digest does not fit its content. {REMEDY}")
        if content["format"] != FORMAT:
            raise FixtureError(f"{self.path} has format {content['format']}; this version reads format {FORMAT}.")
        return content

    def lives(self) -> dict[str, Life]:
        """The recorded lives by name."""
        return {name: Life.from_json(entry["life"]) for name, entry in self.manifest["lives"].items()}

    def tapes(self, life: str) -> list[tuple[str, int]]:
        """Dtype and direction of each tape of a life, the unmoved ones first."""
        found = self.manifest["lives"][life]["tapes"].values()
        return sorted(((entry["dtype"], entry["direction"]) for entry in found), key=lambda of: of[::-1])

    def has_life(self, life: Life) -> bool:
        """Whether this very life was begun."""
        entry = self.manifest["lives"].get(life.name)
        return entry is not None and entry["life"] == life.as_json()

    def has(self, life: Life, dtype: str, direction: int = 0) -> bool:
        """Whether this tape of this very life was recorded."""
        return self.has_life(life) and tape_name(life, dtype, direction) in self.manifest["lives"][life.name]["tapes"]

    def params(self, life: str) -> Arrays:
        """Initial parameters by the original's names, float32."""
        content = self._checked(f"{life}.params", self.manifest["lives"][life]["params"])
        return self._parsed(f"{life}.params", load_tensors, content)

    def load(self, life: str, dtype: str, direction: int = 0) -> Tape:
        """Reads a tape."""
        of = self.lives()[life]
        name = tape_name(of, dtype, direction)
        if name not in self.manifest["lives"][life]["tapes"]:
            raise FixtureError(f"There is no tape {name} in {self.root}; `python -m reference tape` records it.")
        content = self._checked(name, self.manifest["lives"][life]["tapes"][name])
        return self._parsed(name, lambda raw: tape_from(raw, of, dtype, direction), content)

    def _file(self, name: str) -> Path:
        return self.root / f"{name}.safetensors"

    def _checked(self, name: str, entry: dict[str, Any]) -> bytes:
        path = self._file(name)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise FixtureError(f"{path} is missing. {REMEDY}") from None
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise FixtureError(f"{path} is damaged: its sha256 is not the recorded one. {REMEDY}")
        return content

    def _parsed(self, name: str, parse: Callable[[bytes], T], content: bytes) -> T:
        try:
            return parse(content)
        except (SafetensorError, ValueError, TypeError, KeyError) as error:
            raise FixtureError(f"{self._file(name)} holds no tape ({error}). {REMEDY}") from None

    def begin(self, provenance: dict[str, Any]) -> None:
        """Makes sure that what is added goes with what is there: same original, packages and flags."""
        if not self.path.is_file():
            self._write_manifest({**provenance, "format": FORMAT, "lives": {}})
            return
        stale = [key for key in provenance if self.manifest.get(key) != provenance[key]]
        if stale:
            raise FixtureError(
                f"The tapes in {self.root} were recorded with other {', '.join(stale)}; record into another folder."
            )

    def write_params(self, life: Life, params: Arrays) -> None:
        """Starts a life that is not there yet, or is another one under this name, whose tapes are then dropped."""
        if self.has_life(life):
            return
        known = self.manifest["lives"].get(life.name)
        content = save_tensors({name: np.ascontiguousarray(x, np.float32) for name, x in sorted(params.items())})
        write_atomically(self._file(f"{life.name}.params"), content)
        entry = {"life": life.as_json(), "params": {"sha256": hashlib.sha256(content).hexdigest()}, "tapes": {}}
        self._write_manifest({**self.manifest, "lives": {**self.manifest["lives"], life.name: entry}})
        for name in known["tapes"] if known else ():
            self._file(name).unlink(missing_ok=True)

    def write(self, tape: Tape) -> None:
        """Adds a tape to a life that was started."""
        content = tape_bytes(tape)
        write_atomically(self._file(tape.name), content)
        entry = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "dtype": tape.dtype,
            "direction": tape.direction,
            "steps": tape.steps,
            "first": None if tape.first is None else list(tape.first[:3]),
        }
        life = self.manifest["lives"][tape.life.name]
        life = {**life, "tapes": {**life["tapes"], tape.name: entry}}
        self._write_manifest({**self.manifest, "lives": {**self.manifest["lives"], tape.life.name: life}})

    def _write_manifest(self, content: dict[str, Any]) -> None:
        write_atomically(self.path, manifest_bytes(content))
        self._manifest = None
