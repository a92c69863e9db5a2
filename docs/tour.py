"""Makes docs/tour.md anew: one training with a kill in the middle, as a terminal shows it.

    steps -> tmux (a server of its own) -> screens -> the blocks of docs/tour.md

Run it as ``python docs/tour.py`` with snailps installed; needs tmux and two minutes.  The text of
the page stands here, the screens are what the programs wrote.  tests/repo/test_tour.py compares
the text with the page.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from snailps.data.stdlib_prose import write_prose

PAGE = Path(__file__).resolve().with_suffix(".md")
COLUMNS, LINES = 100, 32
LIMIT_S = 120.0
TRAIN = (
    "snailps train fasttext --input prose.txt --output out/prose --servers 2 --workers 2 "
    "--epochs 60"
)

TEXT = """\
# A tour: one training, with a kill in the middle

For newcomers. See what a training looks like, and what it does when a process is killed.

Made by `python docs/tour.py` in a terminal of 100 columns; the screens are not edited. The text is
the prose of Python's own standard library, which `snailps demo` uses, too.

## It trains

Two servers hold the rows, two workers train, one master leases the blocks, each a process of its
own:

{training}

## In another terminal

`snailps status` finds the job by itself. Each shard has a standby on the other server:

{status}

## kill -9

A server is killed, with all rows in its memory. The other server's standbys serve its shards at
once, the killed process is started again, and its copies are filled while the training goes on:

{killed}

## The end

{end}

## What is known of it afterwards

{afterwards}

## The result

{nearest}

## In a browser

With `--ui`, or by `snailps ui`, the same run is shown on a page: the processes and shards as a
picture, words/s and loss as curves, the faults and what was done about them. No screenshots are
kept here: the browser tests make them, and continuous integration keeps them as artefacts.
"""


class Terminal:
    """A terminal in a tmux server of its own."""

    def __init__(self, folder: Path) -> None:
        self._base = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        (folder / "runtime").mkdir(mode=0o700)
        (folder / "work").mkdir()
        env = {
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
            "TMPDIR": str(folder / "runtime"),
            "PATH": programs,
            "PS1": "$ ",
            "LANG": "C.UTF-8",
            "TERM": "screen-256color",
            "HISTFILE": "",
        }
        self.env = env
        self.folder = folder / "work"
        size = ["-x", str(COLUMNS), "-y", str(LINES)]
        shell = ["env", "-i", *(f"{key}={value}" for key, value in env.items())]
        shell += ["bash", "--norc", "--noprofile"]
        command = ["new-session", "-d", "-s", "tour", *size, "-c", str(self.folder), *shell]
        subprocess.run([*self._base, *command], check=True, env={**os.environ, "LANG": "C.UTF-8"})

    def type(self, line: str) -> None:
        """Types a line, on a clear screen."""
        self._tmux("send-keys", "-t", "tour", "clear", "Enter")
        self._tmux("clear-history", "-t", "tour")
        self.until(r"\A\$ *\n*\Z")
        self._tmux("send-keys", "-t", "tour", "-l", line)
        self._tmux("send-keys", "-t", "tour", "Enter")

    def screen(self) -> str:
        """What the terminal shows."""
        text = self._tmux("capture-pane", "-p", "-t", "tour")
        return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")

    def until(self, pattern: str) -> str:
        """The screen as soon as `pattern` is on it."""
        limit = time.monotonic() + LIMIT_S
        while not re.search(pattern, screen := self.screen(), re.MULTILINE):
            if time.monotonic() > limit:
                raise SystemExit(f"{pattern!r} did not appear; the terminal shows:\n{screen}")
            time.sleep(0.05)
        return screen

    def close(self) -> None:
        """Ends the terminal and what runs in it."""
        self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run([*self._base, *words], check=True, capture_output=True, text=True)
        return done.stdout


def record(folder: Path) -> dict[str, str]:
    """The screens of one run, by name."""
    terminal = Terminal(folder)
    screens = {}

    def said(*words: str) -> str:
        """What a command in another terminal writes."""
        done = subprocess.run(
            [sys.executable, "-m", "snailps", *words],
            capture_output=True, text=True, env=terminal.env, cwd=terminal.folder,
        )  # fmt: skip
        return done.stdout

    try:
        write_prose(str(terminal.folder / "prose.txt"))
        terminal.type(TRAIN)
        screens["training"] = terminal.until(r"epoch ([5-9]|1\d) of")
        screens["status"] = f"$ snailps status\n{said('status')}"
        nodes = json.loads(said("status", "--json"))["nodes"]
        victim = max((node for node in nodes if node["role"] == "server"), key=lambda n: n["id"])
        os.kill(victim["pid"], signal.SIGKILL)
        terminal.until(rf"server {victim['id']}.*(lost|ended|killed)")
        time.sleep(2.0)  # for the picture alone: by then the other server has copied some rows
        screens["killed"] = terminal.screen()
        screens["end"] = terminal.until(r"snailps nn out/prose.bin")
        screens["afterwards"] = f"$ snailps jobs\n{said('jobs')}$ snailps status\n{said('status')}"
        terminal.type("snailps nn out/prose.bin thread -k 5")
        screens["nearest"] = terminal.until(r"(?s)thread.*\n\$ ?$")
    finally:
        terminal.close()
    return screens


def page(screens: dict[str, str]) -> str:
    """The whole page; without screens its text alone."""
    names = re.findall(r"\{(\w+)\}", TEXT)
    return TEXT.format(**{
        name: f"```\n{screens[name].rstrip()}\n```" if screens else "" for name in names
    })  # fmt: skip


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the terminal is closed, too
    with tempfile.TemporaryDirectory(prefix="tour-") as name:
        PAGE.write_text(page(record(Path(name))))
