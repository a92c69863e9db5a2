"""The page of a run as a process of its own, for `--ui`: started with the run, ended after it.

    master's address -> snailps ui -> the page's address

It must never harm the run: if the page cannot start, that is a line of text.
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
    """In the child: SIGTERM when the parent ends.  Ctrl-C is the parent's alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGTERM)


class PageProcess:
    """The page of the run at the master's `address`; `secret` is the launcher's."""

    def __init__(self, address: str, settings: ClusterSettings, secret: bytes = b"") -> None:
        given = Trust.of(settings)
        # Other users read no environment; the run may have no entry where the page could find it.
        is_own = secret and not (given.secret or given.tls or settings.insecure)
        more = {VARIABLE: secret.decode()} if is_own else {}
        given.close()
        self._shown: Shown | None = None
        self._process = subprocess.Popen(
            [*PROGRAM, "ui", *connect_options(address, settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **more},
            preexec_fn=_end_with_parent,  # as the launcher does
            text=True,
        )
        self._closing = False

    def report(self, say: Callable[[str], object]) -> None:
        """Report the page's address once it is known, in a thread of its own."""

        def wait_and_say() -> None:
            line = self._line()
            if not self._closing:  # a short run has ended before its page has begun
                say(line)

        threading.Thread(target=wait_and_say, name="page", daemon=True).start()

    def _line(self) -> str:
        """The page's address, or that there is none, for the user."""
        out = self._process.stdout
        assert out is not None
        url = out.readline().strip()  # nothing, where the page has ended
        if not url:
            return "the live page did not start; snailps ui says why"
        self._shown = Shown(url, sys.stderr.fileno())
        return f"live page: {self._shown.line}"

    def close(self) -> None:
        """End the page, once open browsers have the last state."""
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
