"""Notes which processes of this user on this machine wait for a master, so that `snailps status`
can name them if the master itself does not answer.

    process that waits -> Waiting -> a small file among the runs' -> waiting_for(address) -> status

A file is there while its process waits; one of a process that has ended is passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from snailps.config import parse_addr
from snailps.errors import SnailError
from snailps.node.run_registry import RunRegistry, birth_of

_PREFIX = "waits-"


class Waiting:
    """While the block lasts, what this process reports of its wait is noted for others."""

    def __init__(self, name: str, address: str, say: Callable[[str], object]) -> None:
        self._name, self._address, self._say = name, address, say
        self._since = time.time()
        self._file: Path | None = None

    def __enter__(self) -> Waiting:
        return self

    def report(self, text: str) -> None:
        self._say(text)
        with contextlib.suppress(OSError):  # a process that cannot write its note goes on
            pid = os.getpid()
            note = {
                "pid": pid, "born": birth_of(pid), "name": self._name, "address": self._address,
                "since": self._since, "text": text,
            }  # fmt: skip
            self._file = RunRegistry().write_private(f"{_PREFIX}{pid}", json.dumps(note))

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def waiting_for(address: str = "") -> list[str]:
    """A line for each process that waits for the master at an address, or for any."""
    lines = []
    for path in RunRegistry().private_files(_PREFIX):
        try:
            note = json.loads(path.read_text())
            if birth_of(note["pid"]) != note["born"]:
                path.unlink(missing_ok=True)
            elif not address or _same(note["address"], address):
                since = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(note["since"]))
                who = f"{note['name']} (process {note['pid']} of this machine)"
                where = "" if address else f" of the master at {note['address']}"
                lines.append(f"{who} since {since}{where}: {note['text']}")
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return lines


def _same(one: str, other: str) -> bool:
    try:
        return parse_addr(one, "") == parse_addr(other, "")
    except SnailError:
        return False
