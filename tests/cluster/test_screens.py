"""What a terminal shows of a run: captured in tmux panes of several widths, and kept as text.

    snailps in a pane -> capture-pane -> normalised -> screens/NAME.txt

``SCREENS=write`` writes the files anew; look at the difference then.  Numbers, times, sizes and
process ids are normalised, and lengths of bars with them; everything else must be the same.
"""

import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from cluster_models import COUNTER, write_numbers
from processes import LIMIT_S, SNAILPS, Gate, Process, environment
from texts import write_topics
from waiting import InVain, until

SCREENS = Path(__file__).with_name("screens")
WRITES = os.environ.get("SCREENS") == "write"
LINES = 40
ENDED = "exit code"
LOOK_S = 0.1
"""Between two looks at a pane."""
REST_S = 2.0
"""A screen that is to be kept stays as it is for so long."""

pytestmark = [
    pytest.mark.skipif(
        shutil.which("tmux") is None, reason="tmux is not installed (apt-get install tmux)"
    ),
]


class Pane:
    """A terminal of so many columns in which a command runs."""

    def __init__(self, folder, columns, words, **variables):
        self._folder = folder
        # Relative to the folder: a socket's path has 107 bytes at most.
        self._tmux = ["tmux", "-S", f"tmux-{columns}", "-f", "/dev/null"]
        sets = [f"{name}={value}" for name, value in variables.items()]
        command = shlex.join(["env", *sets, *words])
        # The pane outlives the command: its last screen is what matters.
        script = f"{command}; echo {ENDED} $?; read wait"
        env = environment(LC_ALL="C.UTF-8")
        # pytest-xdist sets COLUMNS, which has precedence over the terminal's width.
        unset = ("NO_COLOR", "TMUX", "COLUMNS", "LINES")
        env = {key: value for key, value in env.items() if key not in unset}
        size = ["-x", str(columns), "-y", str(LINES)]
        self._env = env
        # No daemon: it ends with the test, however that ends.
        self._server = Process("tmux", [*self._tmux, "-D"], cwd=folder, env=env)
        begin = ["-N", "new-session", "-d", *size, "-c", str(folder), script]
        try:
            self._server.until(lambda: self._tell(begin).returncode == 0, "tmux to begin")
        except BaseException:
            self._server.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        try:
            self._tell(["kill-server"])
            self._server.wait()
        finally:
            self._server.close()

    def _tell(self, words):
        return subprocess.run(
            [*self._tmux, *words], cwd=self._folder, env=self._env, check=False, timeout=LIMIT_S,
            capture_output=True, text=True,
        )  # fmt: skip

    def screen(self, *options):
        """What the pane shows."""
        done = self._tell(["capture-pane", "-p", *options])
        done.check_returncode()
        return done.stdout.rstrip()

    def await_screen(self, name, shown):
        """Waits until the pane shows what is kept as `name`; `shown`: what it has at the least."""
        kept = SCREENS / f"{name}.txt"
        raw = found = ""
        since = time.monotonic()

        def is_there():
            nonlocal raw, found, since
            time.sleep(LOOK_S)
            raw, before = self.screen(), found
            found = normalised(raw)
            if found != before:
                since = time.monotonic()
            if not re.search(shown, raw):
                return False
            if not WRITES:
                return found == kept.read_text()
            rests = time.monotonic() - since > REST_S
            if rests:
                kept.write_text(found)
            return rests

        def why_over():
            ended = not WRITES and re.search(rf"^{ENDED} \d+$", raw, re.MULTILINE)
            return "the command has ended" if ended else ""

        try:
            until(is_there, lambda: f"{name}, with {shown!r}:\n{raw}", over=why_over)
        except InVain:
            assert WRITES or found == kept.read_text()
            raise
        return raw


def normalised(screen):
    """A screen without what differs between two runs."""
    text = re.sub(r"[━╸╺]+", "━", screen)
    text = re.sub(r" *[▁▂▃▄▅▆▇█]+", "", text)  # a short run has no course
    text = re.sub(r"\d[\d,]*(\.\d+)?", "N", text)
    text = re.sub(r"N (min N s|s)\b", "N s", text)
    text = re.sub(r"N (bytes|kB|MB|GB)\b(?! a)", "N MB", text)
    text = re.sub(r"N [kMG] ", "N ", text)
    # Of the last seconds: a job that is held at its gate soon has none.
    text = re.sub(r"(^|(?<=\w) +)N examples/s( · )?", " ", text, flags=re.MULTILINE)
    text = re.sub(r"\bN s left", "", text)  # known, or not yet
    text = re.sub(r"─+", "─", text)
    lines = [re.sub(r" +", " ", line).strip() for line in text.splitlines()]
    hosts = re.compile(r"\S+, process N$")
    lines = [hosts.sub("HOST, process N", line) for line in lines]
    at = [number for number, line in enumerate(lines) if line.startswith("● ")]
    for number, line in zip(at, sorted(lines[number] for number in at), strict=True):
        lines[number] = line
    return "\n".join(lines) + "\n"


@pytest.fixture
def job(tmp_path):
    """A job that stops before its eighth block until its gate is opened."""
    write_numbers(tmp_path / "in.txt", 1000)
    (tmp_path / "job.conf").write_text(
        f"worker_class: {COUNTER}\ninput: in.txt\noutput: out\nepochs: 1\ngates: gates\n"
    )
    return [*SNAILPS, "local", "-c", "job.conf", "--servers", "2"], tmp_path / "gates"


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_screen_of_each_width_shows_all_that_matters(tmp_path, job, columns):
    command, gates = job
    gate = Gate(gates, 7)
    with Pane(tmp_path, columns, command) as pane:
        gate.meet()
        # The course of the loss comes with the second look at the job, which is held.
        shown = r"▁(.|\n)*server \d.*rows, (.|\n)*server \d.*rows, "
        raw = pane.await_screen(f"live-{columns}", shown)
        (bar,) = [line for line in raw.splitlines() if line.startswith("training")]
        assert columns - 2 <= len(bar) <= columns  # the bar uses the room that there is
        assert "\N{HORIZONTAL ELLIPSIS}" not in raw
        gate.open()
        raw = pane.await_screen(f"end-{columns}", ENDED)
        coloured = pane.screen("-e")
    assert "training," not in raw  # nothing claims to be running
    assert max(map(len, raw.splitlines())) <= columns
    # Colours of the terminal's own palette, and no background: light and dark are the user's.
    codes = {
        code for found in re.findall(r"\x1b\[([\d;]*)m", coloured) for code in found.split(";")
    }
    assert codes & {"32", "33"}
    assert not codes & {"30", "37", "38", "48", "90", "97", *map(str, range(40, 48))}


def words_job(tmp_path):
    # Lasts for some looks at its status: what is said of a run is in one of these.
    write_topics(tmp_path / "text.txt", 3000)
    options = "--input text.txt --output out --epochs 40 --dim 8 --min-count 1 --seed 3 --threads 1"
    return [*SNAILPS, "train", "word2vec", *options.split(), "--workers", "2"]


def test_screen_without_colours(tmp_path):
    with Pane(tmp_path, 80, words_job(tmp_path), NO_COLOR="1") as pane:
        pane.await_screen("words-80", ENDED)
        assert not re.search(r"\x1b\[[\d;]*3[0-7]", pane.screen("-e"))


def test_screen_of_a_dumb_terminal_has_plain_lines(tmp_path):
    with Pane(tmp_path, 80, words_job(tmp_path), TERM="dumb") as pane:
        until(lambda: ENDED in pane.screen("-J"), lambda: pane.screen("-J"))
        raw = pane.screen("-J")
    assert "\x1b" not in raw
    assert raw.isascii()
    assert "next: snailps nn out.bin WORD" in raw
    assert raw.count("wrote ") == 2
    assert "is up after" in raw
