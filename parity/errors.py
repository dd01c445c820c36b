"""The errors that commands turn into a sentence and exit code 2."""


class CannotRun(Exception):
    """Something that was asked for is not there; the message says what to do."""


class InputChanged(Exception):
    """A layer of an implementation wrote into an input; the message is the input's name."""


class FixtureError(Exception):
    """A fixture is missing, damaged or of another format; the message says which and what to do."""


class WeightsMissing(Exception):
    """A case needs Disco103's weights, and they are not on this machine."""
