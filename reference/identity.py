"""Is the installed `disco_rl` DeepMind's, at the commit that the goldens come from?

The package is located and read, never imported; each of its Python files is compared with the digest in
`original_files.json`. The answer is an `Identity`; `describe` makes the line of it that every report prints.
"""

import dataclasses
import hashlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

PACKAGE = "disco_rl"
State = Literal["genuine", "modified", "absent", "other"]
TABLE_FILE = pathlib.Path(__file__).with_name("original_files.json")
MEND = "make original"


@dataclasses.dataclass(frozen=True)
class Table:
    """What the original consists of: the sha256 of each Python file, by its path in the package."""

    repository: str
    commit: str
    files: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Identity:
    """What stands on this machine under the original's name.

    Attributes:
        state: `genuine`, `modified`, `absent`, or `other` (something else under that name).
        commit: the commit that the files were compared with.
        location: folder of the package, or None where there is none.
        differing: files whose contents differ from the original's.
        missing: files of the original that are not there.
        extra: Python files that the original does not have.
        message: the finding as a sentence, with what to do about it.
    """

    state: State
    commit: str
    location: pathlib.Path | None
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    message: str

    @property
    def is_runnable(self) -> bool:
        """Whether there is a `disco_rl` to run, genuine or not."""
        return self.state in ("genuine", "modified")

    def as_json(self) -> dict[str, Any]:
        """Returns the finding as plain values."""
        plain = dataclasses.asdict(self)
        return plain | {"location": None if self.location is None else str(self.location)}


def load_table(path: pathlib.Path = TABLE_FILE) -> Table:
    """Reads the table of the original's files."""
    return Table(**json.loads(path.read_text(encoding="utf-8")))


def identify(table: Table | None = None, search_path: Sequence[str] | None = None) -> Identity:
    """Finds `disco_rl` and says what it is, without importing it.

    Args:
        table: what to compare with; by default the table kept here.
        search_path: folders to look in instead of the interpreter's own.
    """
    table = table or load_table()
    location = _find_package(search_path)
    if location is not None:
        return _compare(location, table)
    distribution = _find_distribution(search_path)
    if distribution is not None and not _is_deepminds(distribution):
        return _unrelated_distribution(distribution, table)
    message = f"The original ({PACKAGE}) is not installed; `{MEND}` installs it."
    return Identity("absent", table.commit, None, (), (), (), message)


def describe(identity: Identity | None = None) -> str:
    """Returns the finding in one line, such as `original: genuine, commit 9059a29`."""
    identity = identity or identify()
    if identity.state == "genuine":
        return f"original: genuine, commit {identity.commit[:7]}"
    if identity.state == "modified":
        return f"original: MODIFIED ({_changes(identity)})"
    if identity.state == "other":
        return "original: SOMETHING ELSE under its name"
    return "original: absent"


def _find_package(search_path: Sequence[str] | None) -> pathlib.Path | None:
    """Returns the folder that `import disco_rl` would load, or None."""
    try:
        if search_path is None:
            spec = importlib.util.find_spec(PACKAGE)
        else:
            spec = importlib.machinery.PathFinder.find_spec(PACKAGE, list(search_path))
    except ValueError:  # a stub in sys.modules that has no spec
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return pathlib.Path(locations[0]) if locations else None


def _find_distribution(search_path: Sequence[str] | None) -> importlib.metadata.Distribution | None:
    """Returns the distribution `disco-rl` (the same name as `disco_rl` to pip), or None."""
    folders = list(sys.path if search_path is None else search_path)
    return next(iter(importlib.metadata.distributions(name=PACKAGE, path=folders)), None)


def _is_deepminds(distribution: importlib.metadata.Distribution) -> bool:
    """Says whether a distribution claims to hold a package `disco_rl`."""
    top_level = (distribution.read_text("top_level.txt") or "").split()
    return PACKAGE in top_level or any(file.parts[0] == PACKAGE for file in distribution.files or ())


def _unrelated_distribution(distribution: importlib.metadata.Distribution, table: Table) -> Identity:
    """Describes what `pip install disco-rl` brings."""
    message = (
        f"disco-rl {distribution.version} from the package index is not DeepMind's DiscoRL but an unrelated "
        f"control library (module `disco`); `pip uninstall disco-rl`, then `{MEND}`."
    )
    location = pathlib.Path(str(distribution.locate_file("")))
    return Identity("other", table.commit, location, (), tuple(sorted(table.files)), (), message)


def _compare(location: pathlib.Path, table: Table) -> Identity:
    """Compares the files of a package with the table."""
    found = {
        path.relative_to(location).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in location.rglob("*.py")
    }
    differing = tuple(sorted(name for name in found.keys() & table.files if found[name] != table.files[name]))
    missing = tuple(sorted(table.files.keys() - found.keys()))
    extra = tuple(sorted(found.keys() - table.files.keys()))
    state: State = "modified" if differing or missing or extra else "genuine"
    if 2 * len(missing) > len(table.files):
        state = "other"
    bare = Identity(state, table.commit, location, differing, missing, extra, "")
    return dataclasses.replace(bare, message=_sentence(bare))


def _sentence(identity: Identity) -> str:
    """Says what was found in a package named `disco_rl`."""
    commit = identity.commit[:7]
    if identity.state == "genuine":
        return f"The installed {PACKAGE} is the original at commit {commit}, file by file."
    if identity.state == "other":
        return (
            f"{identity.location} is named {PACKAGE} but is not DeepMind's: {len(identity.missing)} of its "
            f"files are not there; remove it, then `{MEND}`."
        )
    return f"The installed {PACKAGE} is not that of commit {commit}: {_changes(identity)}; `{MEND}` mends it."


def _changes(identity: Identity, most: int = 6) -> str:
    """Lists what differs: `agent.py, utils.py, missing types.py, extra new.py`."""
    names = [*identity.differing]
    names += [f"missing {name}" for name in identity.missing] + [f"extra {name}" for name in identity.extra]
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
