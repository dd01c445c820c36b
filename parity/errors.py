"""The errors that commands turn into a sentence and exit code 2, and the words for all others."""

import os
import sysconfig
import traceback
from pathlib import Path


class CannotRun(Exception):
    """Something that was asked for is not there; the message says what to do."""


class NothingCompared(CannotRun):
    """All that was asked for is not provided or cannot run here, so that there is no verdict; the message says why."""


class InputChanged(Exception):
    """A layer of an implementation wrote into an input; the message is the input's name."""


class FixtureError(Exception):
    """A fixture is missing, damaged or of another format; the message says which and what to do."""


class WeightsMissing(Exception):
    """A case needs Disco103's weights, and they are not on this machine."""


def in_words(error: BaseException) -> str:
    """An exception's type and text; somebody else's exception may fail to give its text."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, whose text cannot be shown"


def place_of(error: BaseException) -> str:
    """File and line of the code under test that raised: the innermost that is neither ours nor a library's."""
    ours, libraries = (
        str(Path(__file__).parent),
        [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")],
    )
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((ours, "<frozen"))
    ]
    own = [frame for frame in frames if not any(frame.filename.startswith(path) for path in libraries)]
    if not frames:
        return ""
    frame = (own or frames)[-1]
    return f"{os.path.relpath(frame.filename)}:{frame.lineno}"
