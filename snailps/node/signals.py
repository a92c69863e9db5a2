"""Signals that ask a process to end, beside SIGINT."""

from __future__ import annotations

import signal


def ending_signals() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP of a terminal that is closed, unless nohup has it ignored."""
    is_heard = signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    return [signal.SIGTERM, *([signal.SIGHUP] if is_heard else [])]
