"""Lets SIGTERM and SIGHUP end a command as Ctrl-C does, by an exception that cleans up."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from snailps.node.signals import ending_signals


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextlib.contextmanager
def exits_by_signals() -> Iterator[None]:
    """Let these signals raise `SystemExit` in the block, so that unfinished files are removed."""
    old = {number: signal.signal(number, _exit) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
