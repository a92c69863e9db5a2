"""`Launcher` with stand-ins for the processes: who is started and ended, whose words are heard.

A folder `snailps` in the current one takes the place of the package: its processes run the file
of their role.
"""

import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest
from waiting import LIMIT_S, joined, until

from snailps.abi import numa
from snailps.abi.numa import NumaNode
from snailps.config import RawConfig
from snailps.local import fork, launcher
from snailps.local.launcher import RESTARTS_MAX, Launcher, MasterEnded, NodeEnded, labelled
from snailps.node.phrases import NAME_MARK

MAIN = """
import json, os, signal, sys
given = json.loads(sys.argv[3])
def say(text):
    print(text, file=sys.stderr, flush=True)
def listen():
    with os.fdopen(given["ready_fd"], "w") as ready:
        ready.write("127.0.0.1:1\\n")
with os.fdopen(given["document_fd"]) as pipe:
    document = json.loads(pipe.read() or sys.exit(3))
secret = document["secret"]
settings = {entry["key"]: entry["value"] for entry in document["settings"]}
exec(open(sys.argv[1] + ".py").read())
"""
BLOCK = "say('here'); signal.pause()\n"


class Cluster:
    """A launcher in a folder of stand-ins, and the lines that it passed on."""

    def __init__(self, folder, servers=1, workers=1, revives=False, **files):
        (folder / "main").write_text(MAIN)
        for role, text in files.items():
            (folder / f"{role}.py").write_text(text)
        self.lines = []
        self.launcher = Launcher(
            RawConfig(), servers=servers, workers=workers, revives=revives, on_line=self._note
        )

    def _note(self, name, line):
        self.lines.append((re.sub(r" \(process \d+\)$", "", name).removeprefix("the "), line))

    def wait_line(self, name, line):
        until(lambda: (name, line) in self.lines, lambda: f"{line!r} of {name} in {self.lines}")

    def wait_ended(self, *numbers):
        """Waits until these children have ended by themselves: `end` is not so patient."""
        for number in numbers:
            self.launcher.children[number].process.wait(LIMIT_S)

    @property
    def codes(self):
        return [child.process.poll() for child in self.launcher.children]


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fork, "PROGRAM", (sys.executable, str(tmp_path / "main")))
    made = []

    def make_cluster(**options):
        made.append(Cluster(tmp_path, **options))
        return made[-1]

    yield make_cluster
    for cluster in made:
        cluster.launcher.end(0.01)


def test_launcher_interrupted_before_the_master_listens_lets_the_others_end(make):
    cluster = make(master=BLOCK)
    cluster.launcher.start(lambda: ("master", "here") in cluster.lines)
    assert cluster.launcher.address == ""
    cluster.wait_ended(1, 2)
    cluster.launcher.end()
    assert cluster.codes == [-signal.SIGTERM, 3, 3]
    assert cluster.lines == [("master", "here")]


def test_launcher_with_master_that_ends_before_it_listens_has_its_code(make):
    cluster = make(master="say('no'); sys.exit(2)\n")
    with pytest.raises(MasterEnded) as caught:
        cluster.launcher.start()
    assert caught.value.exit_code == 2
    cluster.wait_ended(1, 2)
    cluster.launcher.end()
    assert cluster.codes == [2, 3, 3]
    assert cluster.lines == [("master", "no")]


def test_launcher_tells_every_node_the_address_of_the_master(make):
    says = "say(settings['master_addr'])\n"
    cluster = make(master="listen()\n", server=says, worker=says)
    cluster.launcher.start()
    cluster.wait_ended(1, 2)
    cluster.launcher.end()
    assert cluster.launcher.address == "127.0.0.1:1"
    assert sorted(cluster.lines) == [("server", "127.0.0.1:1"), ("worker", "127.0.0.1:1")]


def test_launcher_hands_its_secret_to_every_process_and_shows_it_in_no_command_line(make):
    says = "say(f'knows {secret}')\n" + BLOCK
    listens = "listen()\n" + says
    cluster = make(revives=True, master=listens, server=says, worker=says)
    cluster.launcher.start()
    secret = cluster.launcher.secret.decode()
    assert len(secret) == 64
    for role in ("master", "server", "worker"):
        cluster.wait_line(role, f"knows {secret}")
    kill(cluster, 0)
    assert cluster.launcher.restart_killed([0])
    knows = ("master", f"knows {secret}")
    until(lambda: cluster.lines.count(knows) == 2, lambda: f"{knows} twice in {cluster.lines}")
    processes = [child.process for child in cluster.launcher.children]
    shown = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in processes]
    cluster.launcher.interrupt()
    cluster.launcher.end()
    assert "document_fd" in shown[0]
    assert secret not in "".join(shown)


def test_launcher_calls_a_node_by_the_name_that_it_tells_and_shows_no_such_line(make):
    said = f"say('early'); say('{NAME_MARK}server 7'); say('late'); signal.pause()\n"
    cluster = make(master="listen()\n" + BLOCK, server=said, worker=BLOCK)
    cluster.launcher.start()
    cluster.wait_line("server 7", "late")
    cluster.launcher.interrupt()
    cluster.launcher.end()
    assert [line for line in cluster.lines if "server" in line[0]] == [
        ("server", "early"), ("server 7", "late")
    ]  # fmt: skip
    assert labelled("server 7", "server 7 is back") == "server 7 is back"
    assert labelled("server 7", "server 70 is back") == "server 7: server 70 is back"


def test_launcher_with_master_of_many_words_has_them_all(make):
    cluster = make(master="listen(); print('figures ' * 50_000)\n", server=BLOCK, worker=BLOCK)
    cluster.launcher.start()
    cluster.launcher.end()
    assert cluster.codes[0] == 0
    assert cluster.launcher.output.split() == ["figures"] * 50_000


def test_launcher_end_after_the_master_ends_the_others_without_a_word(make, monkeypatch):
    stubborn = "signal.signal(signal.SIGTERM, lambda *_: say('no'))\nwhile True: " + BLOCK
    polite = "signal.signal(signal.SIGTERM, lambda *_: (say('bye'), sys.exit(5)))\n" + BLOCK
    cluster = make(master="listen(); open('pipe').read()\n", server=polite, worker=stubborn)
    os.mkfifo("pipe")
    cluster.launcher.start()
    cluster.wait_line("server", "here")
    cluster.wait_line("worker", "here")
    with open("pipe", "w"):
        pass  # the master ends
    wait_all, waits = launcher.wait_all, []

    def wait_all_and_for_the_polite(processes, limit_s):
        wait_all(processes, limit_s)
        waits.append(limit_s)
        if len(waits) == 2:  # it was told to end, and may need longer on a busy machine
            processes[0].wait(LIMIT_S)

    monkeypatch.setattr(launcher, "wait_all", wait_all_and_for_the_polite)
    cluster.launcher.end()
    assert cluster.codes == [0, 5, -signal.SIGKILL]
    assert sorted(cluster.lines) == [("server", "here"), ("worker", "here")]


@pytest.mark.parametrize(
    ("word", "code", "told"),
    [
        ("snailps: error: worker 2 failed", 1, [("master", "snailps: error: worker 2 failed")]),
        ("killed", 1, [("master", "killed"), ("server", "snailps: error: server: boom")]),
    ],
)
def test_launcher_passes_on_one_error_for_one_cause(make, word, code, told):
    failing = "say('Traceback'); say('snailps: error: {role}: boom'); say('later')\n"
    cluster = make(
        master=f"listen(); open('pipe').read(); say({word!r}); sys.exit({code})\n",
        server=failing.format(role="server"),
        worker=failing.format(role="worker"),
    )
    os.mkfifo("pipe")
    cluster.launcher.start()
    cluster.wait_ended(1, 2)
    with open("pipe", "w"):
        pass
    cluster.launcher.end()
    assert cluster.lines.count(("worker", "Traceback")) == 1  # not an error of its own: shown
    shown = [line for line in cluster.lines if line[1] != "Traceback"]
    assert [line for line in shown if line[1] != "later"] == told


def test_launcher_interrupted_passes_on_no_error_of_a_node(make):
    failing = "say('snailps: error: {role}: the master is gone')\n"
    cluster = make(
        master="listen()\n" + BLOCK,
        server=failing.format(role="server"),
        worker=failing.format(role="worker"),
    )
    cluster.launcher.start()
    cluster.wait_ended(1, 2)
    cluster.wait_line("master", "here")
    cluster.launcher.interrupt()
    cluster.launcher.end()
    assert not [name for name, _ in cluster.lines if name != "master"]


def test_launcher_check_with_node_that_could_not_start_tells_its_words_and_code(make):
    cluster = make(
        master="listen()\n" + BLOCK,
        server=BLOCK,
        worker="say('snailps: error: threads: expected a number'); sys.exit(2)\n",
    )
    cluster.launcher.start()
    cluster.wait_ended(2)
    joined(cluster.launcher.children[2].reader)
    with pytest.raises(
        NodeEnded, match=r"worker \(process \d+\) .* code 2: threads: expected a num"
    ) as caught:
        cluster.launcher.check()
    assert caught.value.exit_code == 2
    cluster.wait_line("master", "here")
    cluster.launcher.interrupt()
    cluster.launcher.end()
    assert not [line for _, line in cluster.lines if "error" in line and "Keyboard" not in line]


def test_launcher_check_with_node_that_was_killed_before_the_start_names_the_signal(make):
    cluster = make(master="listen()\n" + BLOCK, server=BLOCK, worker=BLOCK)
    cluster.launcher.start()
    kill(cluster, 2)
    with pytest.raises(
        NodeEnded, match=r"was ended by SIGKILL, perhaps .* before the start"
    ) as caught:
        cluster.launcher.check()
    assert caught.value.exit_code == 1
    cluster.wait_line("master", "here")
    cluster.launcher.interrupt()
    cluster.launcher.end()


def test_launcher_check_where_the_master_ended_leaves_the_word_to_it(make):
    cluster = make(master="listen()\n", server="", worker="sys.exit(1)\n")
    cluster.launcher.start()
    cluster.wait_ended(0, 2)
    cluster.launcher.check()


def kill(cluster, index):
    process = cluster.launcher.children[index].process
    process.kill()
    process.wait(LIMIT_S)


def test_launcher_starts_a_killed_node_again_a_few_times(make):
    cluster = make(servers=2, revives=True, master="listen()\n" + BLOCK, server=BLOCK, worker=BLOCK)
    cluster.launcher.start()
    assert cluster.launcher.restart_killed(range(4))  # all run
    for _ in range(RESTARTS_MAX):
        kill(cluster, 3)
        assert cluster.launcher.restart_killed(range(4))
    assert cluster.codes == [None] * 4
    kill(cluster, 3)
    assert not cluster.launcher.restart_killed(range(4))
    assert not cluster.launcher.restart_killed(range(4))
    again = "was ended by SIGKILL: restarting it"
    assert cluster.lines.count(("worker", again)) == RESTARTS_MAX
    assert (
        cluster.lines.count(("worker", "was ended by SIGKILL again: it is not started again")) == 1
    )


def test_launcher_starts_a_node_again_that_the_users_code_ended(make):
    leaving = "import os\nsay('here'); os._exit(4)\n"
    cluster = make(
        servers=2, revives=True, master="listen()\n" + BLOCK, server=BLOCK, worker=leaving
    )
    cluster.launcher.start()
    cluster.wait_ended(3)
    assert cluster.launcher.restart_killed(range(4))
    assert ("worker", "has exited with code 4: restarting it") in cluster.lines


@pytest.mark.parametrize("code", [0, 1, 2, 3, 130])
def test_launcher_leaves_a_node_alone_that_ended_by_itself(make, code):
    cluster = make(
        servers=2, revives=True, master="listen()\n" + BLOCK, server=BLOCK,
        worker=f"sys.exit({code})\n",
    )  # fmt: skip
    cluster.launcher.start()
    cluster.wait_ended(3)
    assert not cluster.launcher.restart_killed(range(4))
    assert not [line for _, line in cluster.lines if "started again" in line]


LATE = """
import os
if os.path.exists("late"):
    say("snailps: error: this cluster is about to end: start a new one")
    sys.exit(1)
open("late", "w").close()
"""


@pytest.mark.parametrize("code", [0, 1])
def test_launcher_of_a_good_job_has_no_error_of_a_node_started_again_too_late(make, code):
    os.mkfifo("pipe")
    cluster = make(
        servers=2,
        revives=True,
        master=f"listen(); open('pipe').read(); sys.exit({code})\n",
        server=BLOCK,
        worker=LATE + BLOCK,
    )
    cluster.launcher.start()
    cluster.wait_line("worker", "here")
    kill(cluster, 3)
    assert cluster.launcher.restart_killed([3])
    cluster.wait_ended(3)
    with open("pipe", "w"):
        pass
    cluster.wait_ended(0)
    cluster.launcher.end()
    said = "this cluster is about to end: start a new one"
    told = f"it was started again and has ended: {said}" if code == 0 else f"snailps: error: {said}"
    assert [line for name, line in cluster.lines if said in line] == [told]


def test_launcher_starts_a_killed_master_again_at_its_address(make):
    cluster = make(
        revives=True, master="say(settings); listen()\n" + BLOCK, server=BLOCK, worker=BLOCK
    )
    cluster.launcher.start()
    cluster.wait_line("server", "here")
    kill(cluster, 1)
    assert not cluster.launcher.restart_killed([1])  # its rows are lost, it was the only one
    kill(cluster, 0)
    assert cluster.launcher.restart_killed([0])
    assert cluster.launcher.address == "127.0.0.1:1"
    cluster.launcher.interrupt()
    cluster.launcher.end()
    told = [line for name, line in cluster.lines if name == "master"]
    assert "was ended by SIGKILL: restarting it, to take over" in told
    assert sum("'listen_addr': '127.0.0.1:1'" in line for line in told) == 1


def test_launcher_restart_ends_a_worker_that_still_runs(make):
    cluster = make(master="listen()\n" + BLOCK, server=BLOCK, worker=BLOCK)
    cluster.launcher.start()
    old = cluster.launcher.children[2]
    assert cluster.launcher.restart(2, "has left the cluster")
    assert old.process.poll() == -signal.SIGKILL
    assert cluster.launcher.children[2].process.poll() is None
    assert ("worker", "has left the cluster: restarting it") in cluster.lines


def test_launcher_waits_for_the_end_of_a_lost_worker_to_say_how_it_ended(make, monkeypatch):
    """The master may tell that its connection is closed before the system tells that it ended."""
    cluster = make(master="listen()\n" + BLOCK, server=BLOCK, worker=BLOCK)
    cluster.launcher.start()
    worker = cluster.launcher.children[2].process
    failure = f"worker 2 (vm, process {worker.pid}) is lost: connection closed"
    threading.Timer(0.2, worker.kill).start()
    with monkeypatch.context() as patched:
        patched.setattr(launcher, "LEAVE_S", LIMIT_S)
        assert "was ended by SIGKILL" in cluster.launcher.unusual_ends(failure)


def cpus_of_linux():
    """Those that a thread may be kept on, however many Python is made to see (tests/night)."""
    return numa.cpu_list(Path("/sys/devices/system/cpu/online").read_text())


def test_workers_are_kept_on_the_nodes_also_when_they_are_started_again(make, monkeypatch):
    ours = os.sched_getaffinity(0)
    real = sorted(ours & cpus_of_linux())
    both = [real[0], real[-1]]
    nodes = [NumaNode(number, frozenset({cpu}), 0) for number, cpu in enumerate(both)]
    monkeypatch.setattr(launcher, "numa_nodes", lambda: nodes)
    told = "say(','.join(map(str, sorted(os.sched_getaffinity(0))))); signal.pause()\n"
    cluster = make(workers=2, master="listen()\n" + told, server=told, worker=told)
    cluster.launcher.start()
    for role in ("master", "server"):
        cluster.wait_line(role, ",".join(map(str, sorted(ours))))
    for cpu in both:
        cluster.wait_line("worker", str(cpu))
    again = cluster.launcher.children[3]
    again.process.kill()
    cluster.lines.clear()
    assert cluster.launcher.restart(3, "was ended")
    cluster.wait_line("worker", str(both[1]))
