"""The command line, whole runs: what is written, signals, exit codes."""

import gzip
import json
import os
import re
import shlex
import signal
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from cluster_models import COUNTER, write_numbers
from processes import (
    SNAILPS,
    Gate,
    Process,
    children_of,
    environment,
    free_port,
    run_snailps,
)
from texts import write_topics
from waiting import readable

import snailps
from snailps.cli import demo

# --- interrupts before anything is there ------------------------------------------------------

SLOW_IMPORT = """
import runpy, sys
slow, pipe = sys.argv[1:]
class Gate:
    def find_spec(self, name, path=None, target=None):
        if name == slow:
            print("importing", file=sys.stderr, flush=True)
            open(pipe).read()
sys.meta_path.insert(0, Gate())
sys.argv = ["snailps", "local"]
runpy.run_module("snailps", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["snailps.cli.entry", "snailps.cli.main", "typer", "numpy"])
def test_command_interrupted_while_importing_ends_silently(tmp_path, module):
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", SLOW_IMPORT, module, "pipe"]
    with Process("snailps", command, cwd=tmp_path) as run:
        run.wait_line("importing")
        run.send(signal.SIGINT)
        assert run.wait() == 130
        assert (run.stderr, run.stdout) == ("importing", "")


def test_package_imports_its_names_when_they_are_asked_for():
    code = "import sys, snailps; from snailps.abi import builds; build = builds.chosen(); "
    code += "print('numpy' in sys.modules, snailps.Worker.__module__, "
    code += "build == snailps.abi.loops.BUILD, "
    code += "set(snailps.__all__) <= set(dir(snailps)), hasattr(snailps, 'Wroker'))"
    run = Process("python", [sys.executable, "-c", code], cwd=Path.cwd())
    assert run.wait() == 0, run.stderr
    run.close()
    assert run.stdout == "False snailps.api.worker True True False\n"
    for name in snailps.__all__:
        assert getattr(snailps, name) is not None


# --- whole runs -------------------------------------------------------------------------------


class Run(Process):
    """A command that a test runs to its end."""

    def __init__(self, folder, *arguments):
        super().__init__(arguments[0], [*SNAILPS, *map(str, arguments)], cwd=folder)

    def __exit__(self, kind, error, trace):
        if kind is not None:
            print(self.stderr)
        left = self.close()
        assert kind is not None or not left


def test_train_with_several_inputs_and_json_writes_files_and_figures(tmp_path):
    for name in ("a", "b"):
        write_topics(tmp_path / f"{name}.txt", 300)
    options = "--output out --epochs 2 --dim 8 --bucket 500 --min-count 1 --seed 3 --threads 1"
    options += " --servers 2 --workers 2 --json --json-log log.jsonl --formats vec,bin"
    with Run(tmp_path, "train", "fasttext", "--input", "a.txt", "b.txt", *options.split()) as run:
        assert run.wait() == 0, run.stderr
    (line,) = run.stdout.splitlines()
    figures = json.loads(line)
    assert figures["words"] == 2 * 2 * 3300
    assert figures.keys() >= {"words_per_s", "wall_s", "train_loss", "peak_rss_mb"}
    assert (figures["servers"], figures["workers"]) == (2, 2)
    assert figures["files"] == ["out.vec", "out.bin"]
    assert (tmp_path / "out.vec").read_text().split("\n")[0] == "21 8"
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert records[-1]["figures"]["words"] == figures["words"]
    assert not run.errors
    with Run(tmp_path, "nn", "out.bin", "hound", "-k", "3") as run:
        assert run.wait() == 0
    assert len(run.stdout.splitlines()) == 3


@pytest.fixture
def conf(tmp_path):
    """A job of ten blocks with a gate before block 2: the options to run it."""
    write_numbers(tmp_path / "in.txt", 1000)
    (tmp_path / "job.conf").write_text(
        f"worker_class: {COUNTER}\ninput: in.txt\noutput: out\nepochs: 1\ngates: gates\n"
    )
    return ["local", "-c", "job.conf"]


def test_local_with_job_runs_it_and_shows_who_works(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf, "--verbose", "--servers", "2", "--json", "--set", "epochs=3") as run:
        gate.meet()
        for name in ("server", "worker"):
            run.wait_line(rf"{name} \d+ \(")
        gate.open()
        assert run.wait() == 0, run.stderr
    assert json.loads(run.stdout)["examples"] == 3000
    assert not run.errors


def test_local_with_killed_master_says_so_in_one_line(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf, "--set", "on_node_loss=stop") as run:
        gate.meet()
        os.kill(child_of(run.pid, "master"), signal.SIGKILL)
        gate.open()
        assert run.wait() == 1, run.stderr
        (error,) = run.errors
        assert "the master was killed by SIGKILL" in error
        assert "Traceback" not in run.stderr


@pytest.mark.long
def test_local_interrupted_before_the_master_listens_ends_soon(tmp_path, conf):
    # However late the signal is, the cluster is not formed: its worker waits for a greeting.
    with socket.create_server(("127.0.0.1", 0)) as dumb:
        host, port = dumb.getsockname()
        with Run(tmp_path, *conf, "--set", f"advertise_addr={host}:{port}") as run:
            run.until(lambda: children_of(run.pid), "a child")
            run.send(signal.SIGINT)
            assert run.wait() == 130, run.stderr
    assert "Traceback" not in run.stderr
    assert "nothing was saved" in run.stderr
    assert not run.errors


@pytest.mark.long
def test_local_with_master_that_stalls_says_so_and_goes_on(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    secret = tmp_path / "a secret"
    secret.write_text("s" * 20)
    secret.chmod(0o600)
    with Run(tmp_path, *conf, "--verbose", "--json", "--set", f"secret_file={secret}") as run:
        gate.meet()
        master = child_of(run.pid, "master")
        run.wait_line("worker .*training")
        words = shlex.split(run.wait_line("look closer").partition("snailps ")[2])
        words[words.index("--watch")] = "--json"
        looked = run_snailps(*words)
        assert json.loads(looked.stdout)["phase"] == "training", looked.stderr
        os.kill(master, signal.SIGSTOP)
        run.wait_line("the master does not answer")
        os.kill(master, signal.SIGCONT)
        gate.open()
        assert run.wait() == 0, run.stderr
    assert json.loads(run.stdout)["examples"] == 1000
    assert not run.errors


@pytest.mark.long
def test_local_with_master_that_hangs_ends_at_the_third_interrupt(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf, "--verbose") as run:
        gate.meet()
        run.wait_line("worker .*training")
        master = child_of(run.pid, "master")

        def interrupt():
            run.send(signal.SIGINT)
            run.until(lambda: is_pending(master, signal.SIGINT), "an interrupt that is passed on")

        os.kill(master, signal.SIGSTOP)
        interrupt()
        os.kill(master, signal.SIGCONT)  # it takes this one, and hangs before it can act on it
        os.kill(master, signal.SIGSTOP)
        run.until(lambda: not is_pending(master, signal.SIGINT), "an interrupt that is taken")
        interrupt()
        seen = len(run.lines)
        run.until(
            lambda: any("the master does not answer" in line for line in run.lines[seen:]),
            "a run that goes on behind the second interrupt",
        )
        run.send(signal.SIGINT)
        assert run.wait() == 130, run.stderr
        gate.open()
    assert "Traceback" not in run.stderr
    assert "interrupted and ended by force; nothing was saved" in run.stderr


def is_pending(pid, number):
    """Whether a signal has been sent to a process that has not taken it, such as a stopped one."""
    (mask,) = re.findall(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_local_with_failing_worker_gives_one_error_and_its_traceback(tmp_path, conf):
    with Run(tmp_path, *conf, "--workers", "2", "--set", "fails_on=3") as run:
        assert run.wait() == 1
    (error,) = run.errors
    assert "planted failure" in error
    # Of the user's code; a process has its name from the first line on, however early that is.
    assert re.search(r"^worker \d+: Traceback", run.stderr, re.MULTILINE)
    assert "(process" not in run.stderr


def child_of(pid, role):
    (found,) = children_of(pid, role)
    return found


BESIDE = """
import signal, sys, snailps
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
with snailps.connect() as cluster:
    table = cluster.table("w", dim=2)
    table.push([7], [[1.0, 2.0]])
    roles = {node["role"] for node in cluster.status()["nodes"]}
    print(table.pull([7]).tolist(), sorted(roles), flush=True)
    print("ready", file=sys.stderr, flush=True)
    signal.pause()
"""


def test_local_runs_a_command_beside_servers_that_end_with_it(tmp_path):
    """Also with a file that has a job, and an address that is taken."""
    conf = tmp_path / "job.conf"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "common.conf").write_text(
            f"master_addr: 127.0.0.1:{taken.getsockname()[1]}\nexpected_servers: 1\n"
        )
        job = "worker_class: snailps.models.sparse.linear:Linear\nepochs: 3\nlog_level: info\n"
        conf.write_text(f"import common.conf\n{job}")
        run_beside_servers(tmp_path, "-c", str(conf))
    conf.write_text("heartbeat_timout: 3\n")
    for words, expected in (
        (("-c", str(conf)), f"{conf}:1: unknown setting 'heartbeat_timout'"),
        (("--set", "epochs=3"), "--set epochs=3: epochs is a setting of a job, and a command has"),
        ((), "./not-there: cannot be run: No such file or directory"),
    ):
        with Run(tmp_path, "local", *words, "--", "./not-there") as run:
            assert run.wait() == 2
        assert run.errors[0].startswith(f"snailps: error: {expected}")


def run_beside_servers(tmp_path, *options):
    words = "local", *options, "--servers", "2", "--", sys.executable, "-c", BESIDE
    with Run(tmp_path, *words) as run:
        run.wait_line("ready")
        servers = [os.pidfd_open(pid) for pid in children_of(run.pid, "server")]
        assert len(servers) == 2
        run.send(signal.SIGTERM)
        assert run.wait() == 7, run.stderr
        for descriptor in servers:
            readable(descriptor)
            os.close(descriptor)
    assert run.stdout == "[[1.0, 2.0]] ['driver', 'server']\n"


def test_local_when_killed_leaves_no_process(tmp_path, conf):
    gate = Gate(tmp_path / "gates", 2)
    with Run(tmp_path, *conf) as run:
        gate.meet()
        pids = children_of(run.pid)
        assert len(pids) == 3
        watched = [os.pidfd_open(pid) for pid in pids]
        run.send(signal.SIGKILL)
        run.wait()
        for descriptor in watched:  # readable once the process has ended
            readable(descriptor)
            os.close(descriptor)
        gate.open()


def test_process_with_environment_and_set_follows_precedence(tmp_path):
    port = free_port()
    (tmp_path / "worker.conf").write_text("init_timeout: 60\nmaster_addr: 127.0.0.1:1\n")
    env = environment(SNAILPS_INIT_TIMEOUT="1", SNAILPS_MASTER_ADDR="127.0.0.1:2")
    command = [*SNAILPS, "worker", "-c", "worker.conf", "--set", f"master_addr=127.0.0.1:{port}"]
    worker = Process("worker", command, cwd=tmp_path, env=env)
    assert worker.wait() == 1
    worker.close()
    assert f"127.0.0.1:{port} within 1 s" in worker.errors[0]


@pytest.mark.long
def test_demo_trains_on_the_prose_of_python_and_shows_neighbours(tmp_path):
    """README's first command, of which one epoch is enough here."""
    with Run(tmp_path, "demo", "--epochs", "1", "--output", "out/demo") as run:
        assert run.wait() == 0, run.stderr
    assert re.search(
        r"^\d{3},\d{3} words of prose from Python's standard library$", run.stderr, re.M
    )
    assert "cluster of 2 servers, 2 workers is up" in run.stderr
    assert [line.split()[0] for line in run.stdout.splitlines()] == list(demo.WORDS)
    assert all(len(re.findall(r"\w+ -?\d\.\d\d", line)) == 5 for line in run.stdout.splitlines())
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"demo.bin", "demo.report.html"}


def test_two_jobs_of_a_user_at_once_share_a_copy_of_their_input_and_nothing_else(tmp_path):
    lines = b"".join(b"%d\n" % (n % 50) for n in range(1000))
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(lines))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.conf").write_text(
            f"worker_class: {COUNTER}\ninput: ../in.txt.gz\noutput: out\nepochs: 1\ngates: gates\n"
            "scratch_dir: ../scratch\n"
        )
    gate = Gate(tmp_path / "one" / "gates", 2)
    words = ["local", "-c", "job.conf", "--servers", "2", "--workers", "2", "--json"]
    with Run(tmp_path / "one", *words) as first:
        gate.meet()
        with Run(tmp_path / "two", *words) as second:
            assert second.wait() == 0, second.stderr
        assert first.runs
        gate.open()
        assert first.wait() == 0, first.stderr
    for run, name in ((first, "one"), (second, "two")):
        assert json.loads(run.stdout)["examples"] == 1000
        with np.load(tmp_path / name / "out.npz") as saved:
            assert saved["counts.rows"].ravel().tolist() == [20] * 50
