"""Calls of a model's own methods: what they raise gets a name, what they return is checked.

It knows what a model is and no process; `Ended` passes through.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

from snailps.api.worker import Block, Worker
from snailps.errors import ClusterError, MisuseError, SnailError, place_of
from snailps.transport.messages.validation import COUNT_MAX, METRICS, Misfit


class Ended(Exception):
    """The process is to end; the verdict says why."""


@contextlib.contextmanager
def named(model: Worker, method: str, block: Block | None = None) -> Iterator[None]:
    """Whatever the user's code raises gets its method, its block, and its file and line."""
    try:
        yield
    except Ended:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SnailError) and not isinstance(error, MisuseError):
            raise
        where = (
            f" on block {block.number} ({block.path}, bytes {block.start:,} to {block.stop:,})"
            if block is not None
            else ""
        )
        raise ClusterError(
            f"{type(model).__name__}.{method} failed{where}: {type(error).__name__}: {error}"
            f"{place_of(error)}"
        ) from error


def numbers_of(result: object) -> dict[str, float]:
    """What `Worker.train` returned, checked."""
    if not isinstance(result, Mapping):
        raise TypeError(f"expected a mapping with 'units', got {result!r:.80}")
    numbers = {str(key): float(value) for key, value in result.items()}
    if not 0 <= numbers.get("units", numbers.get("examples", math.nan)) <= COUNT_MAX:
        raise ValueError(f"expected a number of 'units' from 0 to 2^53, got {dict(result)!r:.200}")
    try:
        return METRICS.check(numbers)
    except Misfit as error:
        raise ValueError(f"metrics{error}") from None
