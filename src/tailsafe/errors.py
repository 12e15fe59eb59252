"""The one exception a caller is expected to meet: bad input, described in one line."""

import sysconfig
import traceback
from pathlib import Path

_HERE = str(Path(__file__).parent)
# Python's own library, which imports modules and calls what others wrote.
_PYTHON = sysconfig.get_path("stdlib")
_INSTALLED = {"site-packages", "dist-packages"}


class InputError(ValueError):
    """Input that cannot be used. The message names the offending place and what is allowed.

    The command line prints it as one line on stderr and exits with code 2.
    """


def place_of(error: BaseException) -> str:
    """An error of somebody else's code on one line, with the file and line that raised it."""
    text = " ".join(str(error).split())
    said = type(error).__name__ + (f": {text}" if text else "")
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    raised = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in raised if not frame.filename.startswith(("<", _HERE))]
    # The line of the user's own that led there says more than one in the depths of a library.
    others = [frame for frame in frames if _installed(frame.filename) or not frame.filename.startswith(_PYTHON)]
    own = [frame for frame in others if not _installed(frame.filename)]
    if not frames:
        return said
    frame = (own or others or frames)[-1]
    return f"{said} ({frame.filename}, line {frame.lineno})"


def _installed(filename: str) -> bool:
    return not _INSTALLED.isdisjoint(Path(filename).parts)
