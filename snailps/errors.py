"""Owns the tree of errors that snailps raises on purpose, and how errors of a user's code are told.

A message says what was expected, what came, where, and what to do next; the command line prints it
as one line and exits with `exit_code`.  An exception that is not a `SnailError` is a bug, in
snailps or in the user's model, and keeps its traceback.

    SnailError
      ConfigError        a setting, a .conf file, an option (exit code 2)
        ParameterError     ... a parameter of an estimator; a ValueError and a TypeError, too
      NotFitted          an estimator that was not fitted; a ValueError and an AttributeError, too
      DataError          the user's input: missing, empty, unreadable, malformed (exit code 2); a
                         ValueError, too
        JobInputError      ... that a process of a cluster found in the midst of a job; a
                           ClusterError, too
        UnknownWord        ... a word that a model has no vector for; a KeyError, too
      ModelFileError     a vector or model file that cannot be read (exit code 2)
        ModelWriteError    ... that cannot be written: a full disk, no permission
      NotFinite          NaN or infinity in a push to a table of finite values, or in a row that is
                         to be written; a ValueError, too
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

import errno
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

from snailps.outward import outward

_OURS = tuple(
    {str(path.parent) + os.sep for path in (Path(__file__), Path(__file__).resolve())}
    | {"snailps" + os.sep}  # frames of compiled modules have this relative path
)
_LIBRARIES = tuple({sysconfig.get_path(n) + os.sep for n in ("stdlib", "purelib", "platlib")})
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""Folders of installed code outside `_LIBRARIES`, such as a user's own site-packages."""


def is_own_code(file: str) -> bool:
    """Whether a source file is a user's: neither snailps' nor an installed library's."""
    if any(name in file for name in _INSTALLED):
        return False
    return not file.startswith((*_OURS, *_LIBRARIES, "<"))


def place_of(error: BaseException) -> str:
    """Locate an error: the innermost line of a user's own code, `` (file, line 7, in train)``.

    Without such a line, the outermost line of library code; empty if there is neither.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_OURS, "<"))
    ]
    own = [frame for frame in frames if is_own_code(frame.filename)]
    if not frames or (isinstance(error, SyntaxError) and not own):  # its text has the place
        return ""
    frame = own[-1] if own else frames[0]
    return f" ({frame.filename}, line {frame.lineno}, in {frame.name})"


def own_lines(thread: int) -> str:
    """Say where a thread is in a user's own code, outermost call first; empty if it is not.

    ``train (mine.py, line 7) > step (mine.py, line 20)``
    """
    frame = sys._current_frames().get(thread)
    stack = [] if frame is None else traceback.extract_stack(frame)
    own = [call for call in stack if is_own_code(call.filename)]
    lines = [f"{call.name} ({call.filename}, line {call.lineno})" for call in own]
    if len(lines) > LINES_MAX:
        lines[1 : -LINES_MAX + 1] = ["..."]
    return f"{' > '.join(lines):.{WORDS_MAX}}"


LINES_MAX = 4
FRAMES_MAX = 20
WORDS_MAX = 2000


def frames_of(error: BaseException) -> str:
    """Format the frames of a user's own code in a traceback; may be empty."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own_code(frame.filename)]
    if len(own) > FRAMES_MAX:
        own = own[: FRAMES_MAX // 2] + own[-FRAMES_MAX // 2 :]
    return "".join(traceback.format_list(own)).rstrip("\n")


def trace_of(error: BaseException) -> str:
    """Format a traceback for a log: a user's own frames, or if there are none, all frames."""
    whole = traceback.TracebackException.from_exception(error)
    if any(is_own_code(frame.filename) for frame in whole.stack):
        chain: list[traceback.TracebackException | None] = [whole]
        while chain:
            if (link := chain.pop()) is not None:
                own = [frame for frame in link.stack if is_own_code(frame.filename)]
                link.stack = traceback.StackSummary.from_list(own)
                chain += [link.__cause__, link.__context__]
    return "".join(whole.format()).rstrip("\n")


def with_frames(text: str, frames: str) -> str:
    """Append the frames of a traceback (`frames_of`) to a sentence."""
    return f"{text}\n{frames}" if frames else text


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_WRONG = 2
"""Bad usage, input or setting: the same command would fail again."""
FAILURES = (EXIT_FAILED, EXIT_WRONG)
"""Codes of a process that ends by a failure of its own, and says why."""
EXIT_STOPPED = 3
"""Another process failed, and the master ended this one."""
EXIT_INTERRUPTED = 130
EXIT_LEFT = 143
"""SIGTERM has ended a master that keeps a journal: the same command continues the job."""


class SnailError(Exception):
    """Base of all errors that snailps raises on purpose.

    `exit_code` is the exit code of a command; `code` is sent to a peer with the text.  The
    constructor removes secrets and control characters from the text (`outward`), so that it may be
    shown and sent wherever it came from.

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
    """An estimator was asked for a result before `fit`."""


class DataError(SnailError, ValueError):
    """The user's input is missing, empty, unreadable or malformed."""

    exit_code = EXIT_WRONG
    code = "data"


class UnknownWord(DataError, KeyError):
    """A model has no vector for a word; the text suggests close spellings."""

    __str__ = Exception.__str__  # KeyError's own would put the sentence in quotes


class ModelFileError(SnailError, ValueError):
    """A vector or model file cannot be read, or a model cannot be written."""

    exit_code = EXIT_WRONG


class ModelWriteError(ModelFileError):
    """A vector or model file cannot be written, for example because the disk is full."""

    exit_code = 1


class NotFinite(SnailError, ValueError):
    """A push has NaN or infinity, or a row that is to be written holds one.

    A refused push changes no row; the text names table, row and column.
    """

    code = "not-finite"


class CheckpointError(SnailError):
    """A checkpoint is damaged, unfinished, of another job, or cannot be written."""

    code = "checkpoint"


class WireError(SnailError):
    """Bytes that break the wire format."""


class ProtocolError(WireError):
    """The peer broke the wire format; `code` is sent to it before the connection is closed.

    ``tls``: the two sides have different TLS settings, so the same command would fail again.
    """

    def __init__(self, message: str, code: str = "protocol") -> None:
        super().__init__(message)
        self.code = code
        if code == "tls":
            self.exit_code = EXIT_WRONG


class MisuseError(WireError):
    """This side was about to break the wire format: a bug here, and nothing was sent."""


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


class JobInputError(DataError, ClusterError):
    """A job has failed because a process found its input, or a setting, wrong."""


FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk without room, or of a user without quota: later there may be room."""


def is_full(error: BaseException | None) -> bool:
    """Whether a full disk is the cause of an error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def no_room() -> OSError:
    """The cause of an error that is raised before a disk is full."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def explain(error: BaseException) -> str:
    """Describe any exception in one line; an error of a user's code with file and line."""
    if isinstance(error, SnailError):
        return str(error)
    return f"{type(error).__name__}: {words_of(error)}{place_of(error)}"


def near_name(typed: str, names: Iterable[str]) -> str:
    """Return the name that was probably meant, by its spelling; empty if none is near."""
    from difflib import get_close_matches  # here, because most names are right

    return next(iter(get_close_matches(typed, list(names), 1)), "")


def shown_bytes(data: bytes, most: int = WORDS_MAX) -> str:
    """Quote the bytes of a text for a message; bytes that are not UTF-8 become ``\\xe9``."""
    text = data[:most].decode("utf-8", "backslashreplace")
    return "'" + "".join(char if char.isprintable() else repr(char)[1:-1] for char in text) + "'"


def words_of(error: BaseException) -> str:
    """Return an exception's text, cut: an array in it may have millions of characters."""
    try:
        text = str(error)
    except Exception as failure:
        return f"(its __str__ raises {type(failure).__name__})"
    if len(text) <= WORDS_MAX:
        return text
    return f"{text[:WORDS_MAX]} ... ({len(text):,} characters)"


class ConvergenceWarning(UserWarning):
    """A training has ended while its loss was still falling: more epochs would help.

    If scikit-learn is loaded, such a warning is also an instance of its `ConvergenceWarning`.
    """


def convergence_warning(text: str) -> ConvergenceWarning:
    """Make the warning; if scikit-learn is loaded, filters for its class catch it, too."""
    exceptions = sys.modules.get("sklearn.exceptions")
    base = getattr(exceptions, "ConvergenceWarning", None)
    if base is None:
        return ConvergenceWarning(text)
    warning: ConvergenceWarning = type("ConvergenceWarning", (ConvergenceWarning, base), {})(text)
    return warning
