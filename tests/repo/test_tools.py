"""The scripts in tools/, with a remote shell that stays here and a snailps that only waits.

On separate hosts, with a real one: tests/hosts/test_tools.py.
"""

import contextlib
import gzip
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from waiting import until

ROOT = Path(__file__).resolve().parents[2]

WAIT_S = 180.0
"""Limit of one wait, on a machine under load."""
VERSION = f"{sys.version_info.major}{sys.version_info.minor}"
SCRIPTS = ("collect", "distribute", "logs", "run", "start", "status", "stop")

RSH = """#!/bin/sh
case $1 in lost*) echo "connect to $1: No route" >&2; exit 255 ;; esac
cd '{homes}' && mkdir -p "$1" && cd "$1" && exec sh -c "$2"
"""
FAKE = """
import os, signal, sys, time
def stays(pid):
    # False for a process that has ended, a zombie too, or is about to: waits for its end. A new one
    # has no words yet.
    while True:
        try:
            with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline", "rb") as line:
                ended, said = stat.read().rpartition(")")[2].split()[0] in "ZX", line.read()
        except OSError:
            return False
        if ended or said and b"inptu=x" not in said:
            return not ended
        time.sleep(0.01)
role, *words = sys.argv[1:]
if role in ("--version", "status"):
    print("snailps 1", role, *words, os.environ.get("SNAILPS_TLS", ""))
    sys.exit("--pid" in words and not stays(words[-1]))
if "inptu=x" in words:
    sys.exit(2)
if "stubborn=1" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
print("words", *map(repr, words), os.environ["SNAILPS_SECRET_FILE"], flush=True)
while True:
    signal.pause()
"""


class Here:
    """Hosts that are folders, and the scripts for them."""

    def __init__(self, folder, inventory):
        self.folder = folder
        self.homes = folder / "homes"
        self.homes.mkdir()
        rsh = folder / "rsh"
        rsh.write_text(RSH.format(homes=self.homes))
        rsh.chmod(0o755)
        (folder / "hosts").write_text(inventory)
        self.wheels = folder / "wheels"
        self.make_wheel(VERSION)
        self.environment = {
            **os.environ,
            "SNAILPS_HOSTS": str(folder / "hosts"),
            "SNAILPS_RSH": str(rsh),
            "SNAILPS_WHEELS": str(self.wheels),
        }

    def make_wheel(self, version, more=""):
        """The only one, for a version of Python; with `more` in its module."""
        shutil.rmtree(self.wheels, ignore_errors=True)
        self.wheels.mkdir()
        name = f"snailps-1-cp{version}-cp{version}-linux_{platform.machine()}.whl"
        with zipfile.ZipFile(self.wheels / name, "w") as wheel:
            main = f"def main():\n    exec({FAKE + more!r}, {{}})\n"
            wheel.writestr("snailps/cli/entry.py", main)

    def open(self, name, *words, **more):
        """A script under way."""
        return subprocess.Popen(
            [str(ROOT / "tools" / name), *map(str, words)],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **more,
        )

    def __call__(self, name, *words, code=0):
        with self.open(name, *words) as script:
            said, _ = script.communicate(timeout=WAIT_S)
        assert script.returncode == code, said
        return said

    def path(self, host, name):
        """A file in a host's folder."""
        return self.homes / host / "snailps" / name

    def numbers(self):
        """Processes that were started, as their hosts noted them."""
        return [int(path.read_text().split()[0]) for path in self.homes.glob("*/*/run/*.pid")]


INVENTORY = """
# ours
master  one            # the first
server  two 1 shard_num=1
worker  two 2 threads=3 stubborn=1
worker  three
"""


@pytest.fixture
def here(tmp_path):
    made = Here(tmp_path, INVENTORY)
    yield made
    for number in made.numbers():
        if is_there(number):
            os.kill(number, signal.SIGKILL)


def is_there(number):
    """Whether a process is, and is no zombie."""
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:  # no such process, or it ended while its file was read
        return False


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    return path


def test_distribute_sends_to_each_host_what_is_its_own_and_only_once(here, text, tmp_path):
    folder = tmp_path / "bench"  # not ours, in which others' caches come and go
    folder.mkdir()
    (folder / "README.md").write_text("what is measured\n")
    said = here("distribute", "--split", text, "--copy", ROOT / "README.md", folder)
    assert said.count("snailps 1") == 3
    shares = {
        host: sorted(path.name for path in here.path(host, "data").glob("text.*"))
        for host in ("one", "two", "three")
    }
    everything = ["text.1", "text.2", "text.3"]
    assert shares == {"one": everything, "two": everything[:2], "three": everything[2:]}
    whole = b"".join(here.path("one", f"data/{name}").read_bytes() for name in everything)
    assert whole == text.read_bytes()
    assert here.path("three", "data/README.md").exists()
    assert here.path("three", "data/bench/README.md").exists()

    secret = here.path("three", "secret")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.read_bytes() == here.path("one", "secret").read_bytes()
    assert len(secret.read_bytes()) > 40

    here.path("three", "data/README.md").unlink()
    said = here("distribute", "--copy", ROOT / "README.md")
    assert "three: 1 files sent" in said
    assert said.count("installed already") == 3


def test_hosts_that_share_a_home_have_folders_of_their_own(here, text):
    (here.folder / "rsh").write_text(RSH.replace('"$1"', "shared").format(homes=here.homes))
    here.environment["SNAILPS_DIR"] = "snailps-%h"
    here("distribute", "--copy", text)
    assert sorted(path.name for path in (here.homes / "shared").iterdir()) == [
        f"snailps-{host}" for host in ("one", "three", "two")
    ]
    for host in ("one", "two"):
        assert (here.homes / "shared" / f"snailps-{host}" / "data" / "text").exists()


def test_distribute_takes_for_shares_only_what_it_cut_and_keeps_the_key_of_the_ca(here, text):
    for name in (".stop", "text.py", "text.4", "text.1"):
        (here.folder / name).write_text(name)
    (here.folder / "tls").mkdir()
    for name in ("ca.key", "ca.pem"):
        (here.folder / "tls" / name).write_text(name)
    here("distribute", "--copy", ".stop", "tls", "text.1")
    for host in ("one", "three"):
        assert here.path(host, "data/.stop").read_text() == ".stop"
        assert here.path(host, "data/text.1").read_text() == "text.1"
        assert [path.name for path in here.path(host, "data/tls").iterdir()] == ["ca.pem"]
    here("distribute", "--split", text, "--copy", "text.py", "text.4")
    assert here.path("two", "data/text.py").exists()
    assert here.path("three", "data/text.4").exists()
    said = here("distribute", "--split", text, "--copy", "text.1", code=1)
    assert "text.1': File exists" in said
    assert (here.folder / "text.1").read_text() == "text.1"


def test_certificates_beside_the_inventory_are_sent_and_used_until_they_are_gone(here):
    folder = here.folder / "tls"
    folder.mkdir()
    for name in ("ca.pem", "node.pem", "node.key"):
        (folder / name).write_text(name)
    (folder / "node.key").chmod(0o600)
    here("distribute")
    assert here.path("two", "tls/node.key").stat().st_mode & 0o777 == 0o600
    told = str(here.path("two", "tls"))
    assert told in here("run", "./snailps --version")
    shutil.rmtree(folder)
    assert here("distribute").count("installed already") == 3
    assert told not in here("run", "./snailps --version")
    assert not any(here.path("two", "tls").iterdir())


def test_start_passes_on_what_the_inventory_says_and_leaves_alone_what_runs(here):
    here("distribute")
    said = here("start", "-c", "config/fm.conf", "input=a b's $x")
    assert "master at one:16831, servers: 1, workers: 3" in said
    assert said.count(" started, process ") == 5
    numbers = sorted(here.numbers())
    assert here("start").count(" runs already, process ") == 5
    assert sorted(here.numbers()) == numbers

    master = here.path("one", "run/master.pid").read_text().split()[0]
    assert f"snailps 1 status --watch --interval 5 --pid {master}" in here("start", "-w")

    def words(said, process):
        return re.search(f"^{process}: words (.*)$", said, re.MULTILINE)[1]

    said = wait_for(lambda: here("logs", "--once"), lambda said: said.count("words ") == 5)
    expected = ["-c", "config/fm.conf", "--set", "input=a b's $x"]
    expected += ["--set", "expected_node_num=4", "--set", "expected_servers=1"]
    expected += ["--set", "master_addr=one:16831"]
    expected = [*map(repr, expected), str(here.path("one", "secret"))]
    assert words(said, "one: master") == " ".join(expected)
    assert "'shard_num=1'" in words(said, "two: server-1")
    assert "'threads=3'" in words(said, "two: worker-2")
    assert "'threads=3'" not in words(said, "three: worker-1")
    said = here("status")
    assert re.search(r"^two: worker-1: running, process \d+ \| words", said, re.MULTILINE)
    assert "snailps 1 status --set master_addr=one:16831" in said


def wait_for(ask, found):
    """What was answered once it was found good."""
    answers = []

    def is_good():
        answers[:] = [ask()]
        return found(answers[0])

    until(is_good, lambda: f"a good answer instead of {answers}")
    return answers[0]


def test_stop_ends_all_of_ours_and_nothing_else(here):
    here("distribute")
    here("start")
    # A process that has got the number of one of ours, after that has gone.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        here.path("three", "run/worker-9.pid").write_text(f"{other.pid} 1 {2**22 + 1}\n")
        wait_for(lambda: here("logs", "--once"), lambda said: said.count("words ") == 5)
        said = here("stop", "06")
        assert other.poll() is None
    assert "one: master: SIGINT, ends the job and saves the model" in said
    assert "one: master: ended with code 130" in said
    assert "two: server-1: SIGTERM after 6 s" in said
    assert "two: worker-1: SIGKILL" in said
    assert "three: worker-9: gone without a code" in said
    assert not any(is_there(number) for number in here.numbers() if number != other.pid)
    assert here("stop").count("SIG") == 0


def test_start_leaves_alone_what_runs_where_a_host_has_gone_from_the_inventory(here):
    here("distribute")
    here("start")
    numbers = sorted(here.numbers())
    # A host before it in the same role goes: its number of a host stays what it was.
    (here.folder / "hosts").write_text("master one\nserver two 1 shard_num=1\nworker three\n")
    said = here("start")
    assert said.count("runs already") == 3
    assert "started" not in said
    assert sorted(here.numbers()) == numbers


def test_start_passes_on_how_to_begin(here):
    here("distribute")
    here("start", "--overwrite", "--fresh", "epochs=1")
    said = wait_for(lambda: here("logs", "--once"), lambda said: said.count("words ") == 5)
    words = "'--set' 'overwrite=true' '--set' 'fresh=true' '--set' 'epochs=1'"
    assert words in re.search("^one: master: words (.*)$", said, re.MULTILINE)[1]


def test_stop_that_is_interrupted_signals_nothing_more(here):
    """Whatever runs on the host ends as under ssh: when it writes and nobody reads."""
    (here.folder / "rsh").write_text(
        RSH.replace('exec sh -c "$2"', 'setsid -w sh -c "$2" | cat').format(homes=here.homes)
    )
    here("distribute")
    here("start", "stubborn=1")
    wait_for(lambda: here("logs", "--once"), lambda said: said.count("words ") == 5)
    script = here.open("stop", "2", start_new_session=True)
    try:
        assert "SIGINT, ends the job" in script.stdout.readline()
    finally:
        os.killpg(script.pid, signal.SIGINT)
    assert script.wait(WAIT_S) == 130
    script.stdout.close()  # not read to its end: that is the end of what runs on the hosts
    stops = "sh node.sh stop 2"
    until(lambda: not any(stops in line for line in command_lines()), "the end of all on the hosts")
    # The master has got its SIGINT; others would have been signalled by now.
    assert sum(map(is_there, here.numbers())) == 4


def command_lines():
    """Of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def test_two_distributes_at_once_install_one_after_the_other(here, text):
    """Each package is whole, and none is replaced in place below what runs from it."""
    (here.folder / "hosts").write_text("master one\nserver one\nworker one\n")
    with contextlib.ExitStack() as stack:
        scripts = [stack.enter_context(here.open("distribute", "--copy", text)) for _ in range(3)]
        said = [script.communicate(timeout=WAIT_S)[0] for script in scripts]
    assert [script.returncode for script in scripts] == [0, 0, 0], said
    assert "".join(said).count("snailps 1 --version") == 1
    assert "".join(said).count("installed already") == 2
    assert not list(here.path("one", ".").glob(".wanted*"))


def test_package_is_replaced_as_a_whole_and_not_below_a_process(here):
    here("distribute")
    module = here.path("one", "lib/snailps/cli/entry.py")
    with module.open() as before:
        here.make_wheel(VERSION, "# another one")
        here("distribute")
        assert "another one" not in before.read()  # the file of before, which nothing has cut off
    assert "another one" in module.read_text()
    here("start")
    here.make_wheel(VERSION, "# a third one")
    said = here("distribute", code=1)
    assert "another package was sent, but" in said
    assert "a third one" not in module.read_text()


def test_shares_of_an_earlier_cut_are_gone(here, text):
    (here.folder / "hosts").write_text("master m\nserver m\nworker a\nworker b\nworker c\n")
    (here.folder / "text.2024").write_text("ordinary\n")
    here("distribute", "--split", text, "--copy", "text.2024")
    (here.folder / "hosts").write_text("master m\nserver m\nworker b\nworker c\n")
    here("distribute", "--split", text)
    shares = {host: sorted(path.name for path in here.path(host, "data").glob("text.*"))
              for host in "mbc"}  # fmt: skip
    assert shares == {
        "m": ["text.1", "text.2", "text.2024"],
        "b": ["text.1", "text.2024"],
        "c": ["text.2", "text.2024"],
    }
    whole = b"".join(here.path("m", f"data/text.{i}").read_bytes() for i in (1, 2))
    assert whole == text.read_bytes()


def test_logs_follow_until_interrupted_and_leave_no_process(here):
    here("distribute")
    here("start")
    wait_for(lambda: here("logs", "--once"), lambda said: said.count("words ") == 5)
    # Ctrl-C is for all processes of the terminal, and not ignored there.
    script = here.open(
        "logs",
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        lines = iter(script.stdout.readline, "")
        assert sum("words" in next(lines) for _ in range(5)) == 5
        with here.path("two", "logs/worker-1.log").open("a") as log:
            log.write("\nmore\n")
        assert [next(lines), next(lines)] == ["two: worker-1:\n", "two: worker-1: more\n"]
    finally:
        os.killpg(script.pid, signal.SIGINT)
    assert list(lines) == []  # the pipe is closed: by all who had it
    assert script.wait(WAIT_S) == 0
    script.stdout.close()


def test_watch_of_a_master_that_begins_no_job_ends_with_its_code(here):
    here("distribute")
    said = here("start", "-w", "inptu=x", code=2)
    assert "ended with code 2" in said


def test_inventory_of_windows_is_read(here):
    lines = INVENTORY.strip().replace("\n", "\r\n")
    (here.folder / "hosts").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    here("distribute")
    assert here("run", "echo here").count(": here") == 3


def test_collect_has_a_folder_a_host(here):
    here("distribute")
    for host in ("one", "two"):
        here.path(host, "out").mkdir()
        here.path(host, "out/model.vec").write_text(host)
    said = here("collect", "got", code=1)
    assert (here.folder / "got/two/out/model.vec").read_text() == "two"
    assert "three: nothing to collect here" in said
    assert "tar:" not in said
    assert "collect: three: failed" in said


def test_host_that_fails_is_named_with_its_cause(here):
    here.make_wheel("399")
    said = here("distribute", code=1)
    assert re.search(r"two: expected Python 3\.99, for which snailps-1-.* was made, got", said)
    assert "distribute: 3 of 3 hosts failed" in said
    shutil.rmtree(here.homes)
    here.homes.mkdir()
    assert "two: nothing was distributed here: no folder snailps" in here("stop", code=1)
    (here.folder / "hosts").write_text("master one\nserver lost7\nworker one\n")
    here.make_wheel(VERSION)
    said = here("distribute", code=1)
    assert "lost7: connect to lost7: No route" in said
    assert "one: snailps 1" in said
    assert "distribute: 1 of 2 hosts failed" in said


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("end", ["\n", " "], ids=["lines", "one line"])
def test_shares_are_the_whole_cut_at_ends(tmp_path, packed, end):
    text = end.join(f"word{i}" for i in range(10_000)).encode()
    path = tmp_path / ("text.gz" if packed else "text")
    path.write_bytes(gzip.compress(text) if packed else text)
    prefix = tmp_path / "share"
    subprocess.run(
        [sys.executable, ROOT / "tools/share.py", path, prefix, "3"], check=True, timeout=WAIT_S
    )
    shares = [(tmp_path / f"share.{i}").read_bytes() for i in (1, 2, 3)]
    assert b"".join(shares) == text
    assert all(share.endswith(end.encode()) for share in shares[:2])
    assert all(abs(len(share) - len(text) / 3) < 20 for share in shares)


def test_batch_script_ends_with_the_code_of_the_master_whatever_signals_come_after_it(tmp_path):
    # What ends is no longer ended by signals: they would give the master itself another code.
    master = (
        "#!/bin/sh\nuntil [ -e finish ]; do sleep 0.05; done; trap '' TERM; touch ended; exit 7\n"
    )
    tasks = "#!/bin/sh\ntrap '' TERM; until [ -e go ]; do sleep 0.05; done\n"
    programs = {"snailps": master, "srun": tasks, "scontrol": "#!/bin/sh\necho host\n"}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "config").mkdir()
    slurm = {"SLURM_NTASKS": "3", "SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "1"}
    given = os.environ | slurm | {"SLURM_JOB_NODELIST": "host", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = ["bash", ROOT / "tools/slurm/snailps.sbatch"]
    refused = subprocess.run(
        command, env=given | {"SERVERS": "two"}, cwd=tmp_path, capture_output=True, timeout=WAIT_S
    )
    assert (refused.returncode, b"expected SERVERS=two servers" in refused.stderr) == (2, True)
    script = subprocess.Popen(command, env=given, cwd=tmp_path)
    try:
        caught = re.compile(r"SigCgt:\s*(\w+)")
        status = Path(f"/proc/{script.pid}/status")
        until(lambda: int(caught.search(status.read_text())[1], 16) >> (signal.SIGTERM - 1) & 1)
        (tmp_path / "finish").touch()
        until((tmp_path / "ended").exists)
        turns = iter(range(20))
        until(lambda: script.send_signal(signal.SIGTERM) or next(turns, None) is None)
        (tmp_path / "go").touch()
        assert script.wait(WAIT_S) == 7
    finally:
        for name in ("finish", "go"):
            (tmp_path / name).touch()
        script.kill()
        script.wait()


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        ("server a\n", "expected one master, got 0"),
        ("master a\nmaster b\nserver c\n", "expected one master, got 2"),
        ("master a\nworker b\n", "expected a server, got none"),
        ("master a\nserver b\n", "expected a worker, got none"),
        ("master a\nserver b 0\n", "hosts:2: expected a count from 1, got 0"),
        ("master a\nservr b\n", "hosts:2: expected master, server or worker, got servr"),
        ("master a\nserver b 1 threads\n", "hosts:2: expected setting=value, got threads"),
        ("master a;b\n", "hosts:1: expected a host name or address, got a;b"),
        ("master ann@a\n", "got ann@a: user and port go into ~/.ssh/config"),
        ("master a:22\n", "got a:22: user and port go into ~/.ssh/config"),
        ("master a master_port=abc\n", "expected master_port from 1 to 65535, got abc"),
        ("master a master_port=65536\n", "expected master_port from 1 to 65535, got 65536"),
        ("master a\nserver b master_port=1\n", "hosts:2: master_port is for the line of"),
        ("master\n", "hosts:1: expected: role host [count] [setting=value ...], got no host"),
    ],
)
def test_wrong_inventory_is_named_with_its_line(here, inventory, words):
    (here.folder / "hosts").write_text(inventory)
    assert words in here("status", code=2)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_of_a_script_is_its_head(here, script):
    assert f"tools/{script}" in here(script, "--help")


def test_unknown_words_are_refused_with_the_help(here):
    assert "tools/start [-c FILE]" in here("start", "--fast", code=2)
    assert "expected a number of lines, got x" in here("logs", "-n", "x", code=2)
    assert "expected a number of lines, got none" in here("logs", "-n", code=2)
    assert "-c: expected a file, got none" in here("start", "-c", code=2)
    assert "tools/stop [SECONDS]" in here("stop", "5", "6", code=2)


def test_files_that_could_not_arrive_are_refused_before_anything_is_sent(here, text):
    assert "--copy: expected files or folders, got none" in here("distribute", "--copy", code=2)
    said = here("distribute", "--split", text, "--split", text, code=2)
    assert "--split: expected one file, got" in said
    assert "got ." in here("distribute", "--copy", ".", code=2)
    other = here.folder / "other"
    other.mkdir()
    (other / "text").write_text("another\n")
    said = here("distribute", "--copy", text, other / "text", code=2)
    assert "would both be data/text on the hosts" in said
    (other / "two\nlines").write_text("x")
    said = here("distribute", "--copy", other, code=2)
    assert "expected names without line breaks, got" in said
    assert not list(here.homes.iterdir())


# Without a time: the name of a case must be the same in each process of the tests.
GZIP_TABLE = gzip.compress(b"{}\n" * 9, mtime=0)
GZIP_CUT = gzip.compress(b"line\n" * 9, mtime=0)[:-9]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", b"text,label\nx,1\ny,2\nz,3\n", "t.csv: expected a text .*, got a table"),
        ("t.jsonl.gz", GZIP_TABLE, "t.jsonl.gz: expected a text .*, got a table"),
        ("t", b"PAR1" + bytes(99), "got a file of Parquet: use --copy"),
        ("t.zst", b"\x28\xb5\x2f\xfd" + b"\n" * 99, "got a file of zstd: use --copy"),
        ("t.gz", GZIP_CUT, "t.gz: cannot be unpacked: .*. Copy it again"),
        ("t", b"one\ntwo\n", "t: expected a line for each of 3 workers"),
        ("t", b"", "t: expected a line for each of 3 workers"),
        ("t", None, "t: expected a file, got something else"),
    ],
)
def test_what_shares_would_break_is_refused(here, name, content, words):
    """A share of a table has no first line, and of a packed file no beginning."""
    path = here.folder / name
    path.mkdir() if content is None else path.write_bytes(content)
    said = here("distribute", "--split", path, code=2)
    assert re.search(words, said)
    assert "Traceback" not in said
