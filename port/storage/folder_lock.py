"""One run at a time in a folder: two would write over each other's checkpoints and logs.

The lock is the kernel's, on a file that stays in the folder: it is gone the moment that its process ends, however it
ends, so that a killed run can be started again at once.
"""

from __future__ import annotations

import os
import weakref
from contextlib import AbstractContextManager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

FILE = ".lock"
_held: weakref.WeakValueDictionary[Path, FolderLock] = weakref.WeakValueDictionary()


class FolderLock(AbstractContextManager["FolderLock"]):
    """A folder that no other run may write to while this is held."""

    def __init__(self, folder: Path, takes_over: bool = False) -> None:
        """Locks an existing folder; ValueError where another run has it.

        Args:
            folder: where a run writes.
            takes_over: whether what this same process holds there is taken from its holder, as where a trainer is made
                anew and nobody has closed the old one.
        """
        self.folder, self._path = folder, folder.resolve()
        if takes_over and (older := _held.get(self._path)):
            older.release()
        descriptor = os.open(self._path / FILE, os.O_RDWR | os.O_CREAT, 0o666)
        self._close = weakref.finalize(self, os.close, descriptor)
        try:
            if fcntl:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise ValueError(
                f"Another run is at work in {folder}; wait until it ends, end it, or use another --out."
            ) from None
        except OSError:  # a file system without locks
            pass
        _held[self._path] = self

    @property
    def is_held(self) -> bool:
        """Whether the folder is still this run's."""
        return self._close.alive

    def release(self) -> None:
        """Lets others have the folder."""
        self._close()

    def __exit__(self, *_: object) -> None:
        """Releases it at the end of a block."""
        self.release()


def _forget() -> None:
    """In a forked child: the folder is its parent's, and must be free when the parent is gone."""
    for lock in list(_held.values()):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
