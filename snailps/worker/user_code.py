"""Wraps calls of a model's methods: errors get method and place, return values are checked.

Must not know processes; `Ended` passes through.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

from snailps.api.worker import Block, Worker
from snailps.errors import ClusterError, MisuseError, SnailError, place_of
from snailps.transport.messages.validation import COUNT_MAX, METRICS, Misfit


class Ended(Exception):
    """Raised when the process must end; its verdict has the reason."""


@contextlib.contextmanager
def named(model: Worker, method: str, block: Block | None = None) -> Iterator[None]:
    """Errors of the user's code are raised with its method, block, file and line."""
    try:
        yield
    except Ended:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SnailError) and not isinstance(error, MisuseError):
            raise
        where = ""
        if block is not None:
            which = f"{block.path}, bytes {block.start:,} to {block.stop:,}"
            if block.part >= 0:
                which = f"part {block.part} of {block.parts} in chunk {block.chunk}"
            where = f" on block {block.number} ({which})"
        raise ClusterError(
            f"{type(model).__name__}.{method} failed{where}: {type(error).__name__}: {error}"
            f"{place_of(error)}"
        ) from error


def checked_bytes(found: object) -> bytes:
    """What a survey has returned, which must be bytes."""
    if not isinstance(found, bytes):
        raise TypeError(f"expected bytes, got {found!r:.80}")
    return found


def numbers_of(result: object) -> dict[str, float]:
    """The metrics that `Worker.train` returned, validated."""
    if not isinstance(result, Mapping):
        raise TypeError(f"expected a mapping with 'units', got {result!r:.80}")
    numbers = {str(key): float(value) for key, value in result.items()}
    if not 0 <= numbers.get("units", numbers.get("examples", math.nan)) <= COUNT_MAX:
        raise ValueError(f"expected a number of 'units' from 0 to 2^53, got {dict(result)!r:.200}")
    try:
        return METRICS.check(numbers)
    except Misfit as error:
        raise ValueError(f"metrics{error}") from None
