"""The border to a model's own code: errors get its method and line, return values are checked.

Owns the messages that a user sees when a method of theirs fails.  `Ended` passes through: it is no
error of the model.  Must not know processes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping

from snailps.api.tables import Table, Tensor
from snailps.api.traits import Gathered, is_clocked
from snailps.api.worker import Block, Worker
from snailps.config import JobSettings
from snailps.errors import (
    ClusterError,
    ConfigError,
    MisuseError,
    NotFinite,
    SnailError,
    explain,
    place_of,
    words_of,
)
from snailps.transport.messages.validation import COUNT_MAX, METRICS, Misfit

_TABLES = "expected a list of snailps.Table and snailps.Tensor"


class Ended(Exception):
    """The process ends; its verdict has the reason.  Raised where a thread waits for the master."""


@contextlib.contextmanager
def named(model: Worker, method: str, block: Block | None = None) -> Iterator[None]:
    """Raise errors of the user's code as `ClusterError`.

    The message has class, method, block, the block's file and bytes, the error, and its file and
    line.  Errors of snailps itself pass unchanged, except `MisuseError` and `NotFinite`, which the
    user's code causes.
    """
    try:
        yield
    except Ended:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SnailError) and not isinstance(error, MisuseError | NotFinite):
            raise
        where = ""
        if block is not None:
            where = f" on block {block.number}"
            if block.part >= 0:
                where += f" (part {block.part} of {block.parts} in chunk {block.chunk})"
            elif block.path:
                where += f" ({block.path}, bytes {block.start:,} to {block.stop:,})"
        raise ClusterError(
            f"{type(model).__name__}.{method} failed{where}: {type(error).__name__}: "
            f"{words_of(error)}{place_of(error)}"
        ) from error


def made(cls: type[Worker], settings: JobSettings, threads: int) -> Worker:
    """Make a model; a SystemExit of its constructor counts as an error, too."""
    try:
        model = cls(settings, threads)
    except SystemExit as error:
        raise ClusterError(f"{cls.__name__}() failed: {explain(error)}") from error
    if not hasattr(model, "settings"):
        raise ClusterError(
            f"{cls.__name__}.__init__ has to call super().__init__(settings, threads); a model may "
            "do without an __init__: setup() is called before the first block"
        )
    return model


def tables_of(model: Worker) -> list[Table | Tensor]:
    """Return the tables and tensors that a model declares."""
    with named(model, "tables"):
        declared = model.tables()
        if not isinstance(declared, Iterable):
            raise TypeError(f"{_TABLES}, got {declared!r:.80}")
        tables = list(declared)
        for table in tables:
            if not isinstance(table, (Table, Tensor)):
                raise TypeError(f"{_TABLES}, got {table!r:.80} in it")
    means = [table.name for table in tables if table.access == "average"]
    if means and not is_clocked(type(model), model.settings):
        raise ConfigError(
            f"{type(model).__name__}.tables(): table {means[0]!r} has access 'average', whose rows "
            "change only where a step or a round ends: set consistency: bsp, or write "
            "InRounds.rounds (docs/consistency.md)"
        )
    return tables


def checked_bytes(result: object) -> bytes:
    """Return the result of a survey, which must be bytes."""
    if not isinstance(result, bytes):
        raise TypeError(f"expected bytes, got {result!r:.80}")
    return result


def unpushed(model: Worker) -> int:
    """How many of the last trained blocks the model has not pushed yet; True: see `Gathered`."""
    return model.unpushed if isinstance(model, Gathered) else 0


def numbers_of(result: object) -> dict[str, float]:
    """Return the metrics that `Worker.train` returned as floats.

    Raises
    ------
    TypeError, ValueError
        No mapping, a value that is no number, or ``units`` and ``examples`` that are missing,
        negative or above 2^53.
    """
    if not isinstance(result, Mapping):
        raise TypeError(
            "expected a mapping with the number of examples or words, and metrics if any, such as "
            f"{{'units': 100, 'loss': 0.5}}; got {result!r:.80}"
        )
    numbers = {}
    for key, value in result.items():
        try:
            numbers[str(key)] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"expected a number as {key!r}, got {value!r:.80}") from None
    if not 0 <= numbers.get("units", numbers.get("examples", math.nan)) <= COUNT_MAX:
        raise ValueError(f"expected a number of 'units' from 0 to 2^53, got {dict(result)!r:.200}")
    try:
        return METRICS.check(numbers)
    except Misfit as error:
        raise ValueError(f"metrics{error}") from None
