"""Every error that snailps raises on purpose.

One small tree under `SnailError`.  A message says what was expected, what came, where, and what
to do next; the command line prints it as one line and exits with `exit_code`.  Anything that is
not a `SnailError` is a bug of ours (or of the user's model) and keeps its traceback.

    SnailError
      ConfigError        a setting, a .conf file, an option (exit code 2)
        ParameterError     ... a parameter of an estimator; a ValueError and a TypeError, too
      NotFitted          an estimator that was not fitted; a ValueError and an AttributeError, too
      DataError          the user's input: missing, empty, unreadable, malformed (exit code 2); a
                         ValueError, too
        UnknownWord        ... a word that a model has no vector for; a KeyError, too
      ModelFileError     a vector or model file that cannot be read (exit code 2)
        ModelWriteError    ... that cannot be written: a full disk, no permission
      NotFinite          NaN or an infinite number where a table takes finite ones, or held by a row
                         that is to be written; a ValueError, too
      CheckpointError    a checkpoint that is damaged, of another job, or cannot be written
      WireError          bytes that break the wire format
        ProtocolError    ... sent by the peer: the connection is closed
        MisuseError      ... that *we* were about to send: a bug on this side
      ConnectionLost     the peer went away
      RemoteError        the peer understood us and refused; the text is the peer's own
      WaitTimeout        a wait reached its limit; says what it waited for and what to do
      ClusterError       the cluster cannot form, or ends: a node lost, a start that timed out
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path

from snailps.outward import outward

_OURS = tuple(
    {str(path.parent) + os.sep for path in (Path(__file__), Path(__file__).resolve())}
    | {"snailps" + os.sep}  # as frames of compiled parts have it
)
_LIBRARIES = tuple({sysconfig.get_path(n) + os.sep for n in ("stdlib", "purelib", "platlib")})
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""Folders of installed code outside `_LIBRARIES`, such as a user's own site-packages."""


def is_own_code(file: str) -> bool:
    """Whether a source file is a user's: neither snailps's nor an installed library's."""
    if any(name in file for name in _INSTALLED):
        return False
    return not file.startswith((*_OURS, *_LIBRARIES, "<"))


def place_of(error: BaseException) -> str:
    """The innermost line of a user's own code in a traceback, `` (file, line 7, in train)``.

    Without such a line, the outermost line of library code; empty if there is neither.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_OURS, "<"))
    ]
    own = [frame for frame in frames if is_own_code(frame.filename)]
    if not frames or (isinstance(error, SyntaxError) and not own):  # has a place in its own words
        return ""
    frame = own[-1] if own else frames[0]
    return f" ({frame.filename}, line {frame.lineno}, in {frame.name})"


def own_lines(thread: int) -> str:
    """Where a user's own code is in a thread, outermost call first; empty if it is in none.

    ``train (mine.py, line 7) > step (mine.py, line 20)``
    """
    frame = sys._current_frames().get(thread)
    stack = [] if frame is None else traceback.extract_stack(frame)
    own = [one for one in stack if is_own_code(one.filename)]
    lines = [f"{one.name} ({one.filename}, line {one.lineno})" for one in own]
    if len(lines) > LINES_MAX:
        lines[1 : -LINES_MAX + 1] = ["..."]
    return f"{' > '.join(lines):.{WORDS_MAX}}"


LINES_MAX = 4
FRAMES_MAX = 20
WORDS_MAX = 2000


def frames_of(error: BaseException) -> str:
    """The lines of a user's own code in a traceback, as a traceback shows them; may be empty."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own_code(frame.filename)]
    if len(own) > FRAMES_MAX:
        own = own[: FRAMES_MAX // 2] + own[-FRAMES_MAX // 2 :]
    return "".join(traceback.format_list(own)).rstrip("\n")


def trace_of(error: BaseException) -> str:
    """A traceback, for a log: of a user's own lines only, or the whole one where there are none."""
    whole = traceback.TracebackException.from_exception(error)
    if any(is_own_code(frame.filename) for frame in whole.stack):
        chain: list[traceback.TracebackException | None] = [whole]
        while chain:
            if (one := chain.pop()) is not None:
                own = [frame for frame in one.stack if is_own_code(frame.filename)]
                one.stack = traceback.StackSummary.from_list(own)
                chain += [one.__cause__, one.__context__]
    return "".join(whole.format()).rstrip("\n")


def with_frames(text: str, frames: str) -> str:
    """A sentence, with such lines below it."""
    return f"{text}\n{frames}" if frames else text


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_WRONG = 2
"""Bad usage, input or setting: the same command would fail again."""
EXIT_STOPPED = 3
"""Another process failed, and the master ended this one."""
EXIT_INTERRUPTED = 130
EXIT_LEFT = 143
"""A master that SIGTERM has ended, with its journal: the same command goes on."""


class SnailError(Exception):
    """Base of all errors that snailps raises on purpose.

    `exit_code` is the exit code of a command; `code` is sent to a peer beside the text.  The text
    is fit to be shown and sent wherever it came from: `outward`.

    Examples
    --------
    >>> import snailps
    >>> try:
    ...     snailps.load("missing.vec")
    ... except snailps.SnailError as error:
    ...     print(type(error).__name__, error.exit_code)
    ModelFileError 2
    """

    exit_code = 1
    code = "error"

    def __init__(self, *args: object) -> None:
        super().__init__(*map(outward, args))


class ConfigError(SnailError):
    """A setting is unknown, malformed, out of range or contradictory."""

    exit_code = EXIT_WRONG
    code = "config"


class ParameterError(ConfigError, ValueError, TypeError):
    """A parameter of an estimator is unknown, has the wrong type or is out of range."""


class NotFitted(SnailError, ValueError, AttributeError):
    """An estimator is asked for what only `fit` gives it."""


class DataError(SnailError, ValueError):
    """The user's input is missing, empty, unreadable or malformed."""

    exit_code = EXIT_WRONG
    code = "data"


class UnknownWord(DataError, KeyError):
    """A model has no vector for a word; the text suggests close spellings."""

    __str__ = Exception.__str__  # a KeyError shows its text in quotes


class ModelFileError(SnailError):
    """A vector or model file cannot be read, or a model cannot be written."""

    exit_code = EXIT_WRONG


class ModelWriteError(ModelFileError):
    """A vector or model file cannot be written: of a path that was right, too."""

    exit_code = 1


class NotFinite(SnailError, ValueError):
    """NaN or an infinite number would enter a table, or is in one that is to be written.

    Nothing was applied of what is refused; the text names table, row and column.
    """

    code = "not-finite"


class CheckpointError(SnailError):
    """A checkpoint is damaged, unfinished, of another job, or cannot be written."""

    code = "checkpoint"


class WireError(SnailError):
    """Bytes that break the wire format."""


class ProtocolError(WireError):
    """The peer broke the wire format; `code` is sent to it before closing.

    ``tls``: both sides have other settings of it, so that the same command fails again.
    """

    def __init__(self, message: str, code: str = "protocol") -> None:
        super().__init__(message)
        self.code = code
        if code == "tls":
            self.exit_code = EXIT_WRONG


class MisuseError(WireError):
    """A breach of the wire format by this side, stopped in time: a bug here, not there."""


class ConnectionLost(SnailError):
    """The peer closed the connection or cannot be reached."""


class RemoteError(SnailError):
    """The peer understood the request and refused it; the text is the peer's own."""

    def __init__(self, message: str, code: str = "refused") -> None:
        super().__init__(message)
        self.code = code


class WaitTimeout(SnailError):
    """A wait reached its limit; the text names what it waited for."""


class ClusterError(SnailError):
    """The cluster cannot form, or has to end."""

    code = "cluster"


def explain(error: BaseException) -> str:
    """One line for any exception; an error of a user's code has its file and line."""
    if isinstance(error, SnailError):
        return str(error)
    return f"{type(error).__name__}: {words_of(error)}{place_of(error)}"


def shown_bytes(data: bytes, most: int = WORDS_MAX) -> str:
    """Bytes of a text in quotes, as they are to be read; what is no UTF-8 as ``\\xe9``."""
    text = data[:most].decode("utf-8", "backslashreplace")
    return "'" + "".join(one if one.isprintable() else repr(one)[1:-1] for one in text) + "'"


def words_of(error: BaseException) -> str:
    """Return an exception's text, shortened: an array in it may have millions of characters."""
    try:
        text = str(error)
    except Exception as failure:
        return f"(its __str__ raises {type(failure).__name__})"
    if len(text) <= WORDS_MAX:
        return text
    return f"{text[:WORDS_MAX]} ... ({len(text):,} characters)"


class ConvergenceWarning(UserWarning):
    """A training has ended while its loss was still falling: more epochs would help.

    Where scikit-learn is loaded, warnings are of its class of that name, too.
    """


def convergence_warning(text: str) -> ConvergenceWarning:
    """The warning, which filters for scikit-learn's catch as well if it is loaded."""
    exceptions = sys.modules.get("sklearn.exceptions")
    base = getattr(exceptions, "ConvergenceWarning", None)
    if base is None:
        return ConvergenceWarning(text)
    found: ConvergenceWarning = type("ConvergenceWarning", (ConvergenceWarning, base), {})(text)
    return found
