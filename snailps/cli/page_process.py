"""Runs the page of a run as a process of its own, for `--ui`: from the run's begin to its end.

    master's address -> snailps ui -> the page's address

Must never harm the run: a page that cannot start is reported as a line, and the run continues.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Annotated

import typer

from snailps.cli.options import connect_options
from snailps.cli.page_address import Shown
from snailps.config import ClusterSettings
from snailps.local.fork import PROGRAM, end_with_parent
from snailps.transport.security.trust import VARIABLE, Trust

UiOption = Annotated[
    bool, typer.Option("--ui", help="Show the run on a page; prints its address.", metavar="")
]
END_S = 4.0


def _end_with_parent() -> None:
    """In the child: end with the parent, and leave Ctrl-C to it; it closes the page last."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGTERM)


class PageProcess:
    """The page of the run at the master's `address`; `secret` is the launcher's."""

    def __init__(self, address: str, settings: ClusterSettings, secret: bytes = b"") -> None:
        trust = Trust.of(settings)
        # The page finds a secret that snailps made in the run's entry, but there may be no entry.
        # Other users cannot read the environment of a process.
        is_made = secret and not (trust.secret or trust.tls or settings.insecure)
        environment = {VARIABLE: secret.decode()} if is_made else {}
        trust.close()
        self._shown: Shown | None = None
        self._process = subprocess.Popen(
            [*PROGRAM, "ui", *connect_options(address, settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
            preexec_fn=_end_with_parent,  # as the launcher does
            text=True,
        )
        self._closing = False

    def report(self, say: Callable[[str], object]) -> None:
        """Call `say` with the page's address when it is known, from a thread of its own."""

        def wait_and_say() -> None:
            line = self._line()
            if not self._closing:  # a short run may end before its page has started
                say(line)

        threading.Thread(target=wait_and_say, name="page", daemon=True).start()

    def _line(self) -> str:
        """Wait for the page's address; return it, or that there is none, as a line."""
        out = self._process.stdout
        assert out is not None
        url = out.readline().strip()  # empty: the process has ended
        if not url:
            return "the live page could not start; run snailps ui to see why"
        self._shown = Shown(url, sys.stderr.fileno())
        return f"live page: {self._shown.line}"

    def close(self) -> None:
        """End the page; it takes up to `END_S` to show the last state in open browsers."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._shown is not None:
            self._shown.close()
