#!/usr/bin/env python3
"""How training scales with hosts, on one machine: N simulated hosts, each a share of a core.

    model, text -> for each N, interleaved: N hosts train -> speed, bytes, processor time, quality
                -> medians as one JSON object a number of hosts (--json), a table (--table)
                -> all runs in a file (--out)

A host is a cgroup with a quota, and with --link a network namespace on a switch; it holds a server
with one shard and a worker with one thread.  The master is beside them, without a limit.  It needs
root.  README.md here says what the figures mean, docs/scaling.md how to read them.
"""

import argparse
import contextlib
import datetime
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from accounting import THREAD_NAMES, NoPerf, Recorder, accounts_of, accounts_table
from cgroups import UNLIMITED, Groups, NoQuota, quota
from host_figures import (
    ROLES,
    Samples,
    compare,
    disturbed,
    figures_of,
    joined_of,
    link_of,
    numbers_in,
    numbers_of,
    shares_of,
    summarise,
    table,
)
from netns import HERE, Alone, NotPermitted, Side, Switched, alone, switched
from words import ROOT, TAIL_LINES, fail, judge, machine, pythonpath, say

sys.path.insert(0, str(ROOT))

from heldout import held_out_loss

from snailps.errors import SnailError
from snailps.models import CLASSES
from snailps.node.status_line import StatusLine
from snailps.transport.security.trust import OPEN

FIXED = {"word2vec": {"minn": 0, "maxn": 0}}
ALIASES = {"linear": "logistic"}
WORD_VECTORS = ("word2vec", "fasttext")
SAMPLE_S = 0.25
ASK_S = 30.0
ASK_TRAINING_S = 2.0
"""Between two looks at a training: for each the master asks the workers what they wait for."""
FORM_S = 300.0
"""Python starts slowly on a fifth of a core."""
END_S = 120.0
"""How long processes may take to end after the master."""
LEAVE_S = 5.0
"""The same for a worker that was killed and started again."""
BESIDE_S = 30.0
"""Shortest training of clusters that are compared with hosts of one cluster."""
BESIDE_FILE = "beside.json"
PORT = 16831
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TRAINING = "training"
TRAINED = ("exporting", "stopping", "done")


def command_line() -> argparse.ArgumentParser:
    """The options, unchecked; other benches on hosts begin with their defaults."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--model", choices=(*CLASSES, *ALIASES), help="the model to train")
    add("--conf", type=Path, help="a .conf file with the job, instead of --model or beside it")
    add("--input", help="input to train on; default: the input in the .conf file")
    add("--test", type=Path, help="what it is judged on: for word vectors held-out text")
    add("--hosts", default="1,2,4,8", help="numbers of hosts, with commas between them")
    add("--core", type=float, default=0.22, help="share of a core of each host; 0: no limit")
    add("--cores", default="", help="of each host, with commas between them; others have --core")
    add("--period-ms", type=float, default=100.0, help="in which a host may use its share")
    add("--link", default="loopback", help="loopback; none: wires without a limit; or 100mbit")
    add("--rtt-ms", type=float, default=0.0,
        help="round-trip time between hosts of even and odd numbers; needs --link")  # fmt: skip
    add("--replication", choices=("sync", "none", "async"), default="sync", help="as the product")
    add("--shards", type=int, default=1, help="of each server")
    add("--threads", type=int, default=1, help="of each worker")
    add("--epochs", type=int, help="default: the model's")
    add("--repeat", type=int, default=3, help="runs of each number of hosts, interleaved")
    add("--beside", action="store_true",
        help="compare with N clusters of one host at once, measured once")  # fmt: skip
    add("--beside-whole", action="store_true", help="these train all epochs, not about as long")
    add("--cpu-ratio-max", type=float,
        help="fail if a unit takes so many times the processor time of these")  # fmt: skip
    add("--seed", type=int, default=1, help="of the first run; the next one has the next")
    add("--account", action="store_true", help="what the processor time is spent on (perf)")
    add("--kill-every", type=float, default=0.0, help="seconds between kills of a worker")
    add("--join-after", type=float, default=0.0, help="seconds until one more host joins")
    add("--similarity", action="append", default=[], type=Path, metavar="FILE")
    add("--analogies", type=Path, metavar="FILE")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="for all processes")
    add("--limit-s", type=float, default=7200.0, help="longest time of one run")
    add("--scratch", type=Path, help="folder for temporary files, default the system's")
    add("--out", type=Path, help="file for all runs, written after each of them")
    add("--resume", action="store_true", help="keep the runs that --out has already")
    add("--json", action="store_true", help="one JSON object a number of hosts")
    add("--table", action="store_true", help="a Markdown table")
    return parser


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    args = command_line().parse_args(words)
    args.model = ALIASES.get(args.model, args.model)
    if args.model is None and args.conf is None:
        fail("what is trained? --model NAME or --conf FILE")
    if args.model is not None and args.conf is None and args.input is None:
        fail("--input FILE is missing")
    files = [args.conf, args.test, args.analogies, *args.similarity]
    files += [Path(name) for name in (args.input or "").split(",") if name and "*" not in name]
    for file in files:
        if file and not file.exists():
            fail(f"no such file: {file}")
    if bad := next((pair for pair in args.set if "=" not in pair), None):
        fail(f"--set: expected KEY=VALUE, got {bad!r}")
    if args.repeat < 1:
        fail("--repeat: at least 1")
    try:
        args.hosts = numbers_of(args.hosts)
        link_of(args.link)
        args.cores = shares_of(args.cores)
        for share in [args.core, *args.cores] if args.core else ():
            quota(share, args.period_ms)
    except ValueError as error:
        fail(str(error))
    if args.rtt_ms and not link_of(args.link)[0]:
        fail("--rtt-ms needs hosts with wires: --link none, or a rate")
    if args.cores and not args.core:
        fail("--cores needs --core: a host without a limit has no share")
    if args.cpu_ratio_max and not args.beside:
        fail("--cpu-ratio-max compares with what --beside measures")
    if args.kill_every and args.hosts[0] == 1:
        say("one host: its only worker is killed, and its work waits for the next one to start")
    return args


@dataclass
class Process:
    """One process of a host, and those that had its place before they were killed."""

    role: str
    host: int
    side: Side
    command: list[str]
    log: Path
    child: subprocess.Popen
    spent_s: float = 0.0
    earlier_s: float = 0.0
    revived: bool = False

    def sample(self) -> float:
        """Processor seconds of all processes that had this place, so far."""
        if self.child.returncode is not None:  # its number may belong to another process by now
            return self.earlier_s + self.spent_s
        with contextlib.suppress(OSError, IndexError, ValueError):
            self.spent_s = cpu_seconds(Path(f"/proc/{self.child.pid}/stat").read_text())
        return self.earlier_s + self.spent_s

    def has_ended(self) -> bool:
        """Whether it has; what it has spent is known then."""
        if self.child.returncode is not None:
            return True
        left = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.child.pid, left) is None:
            return False
        self.sample()
        return self.child.poll() is not None


def cpu_seconds(stat: str) -> float:
    """Processor seconds, user and system, of the text of /proc/PID/stat."""
    # pid (name) state ppid ...: a name may hold spaces and brackets
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def machine_seconds(stat: str) -> tuple[float, float]:
    """Processor seconds in which a machine was busy, and in which it served interrupts, of the
    text of /proc/stat."""
    counts = [int(word) for word in stat.partition("\n")[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, _steal = counts
    busy = user + nice + system + irq + softirq
    return busy / TICKS_PER_S, (irq + softirq) / TICKS_PER_S


@dataclass
class Hosts:
    """A cluster on N hosts: processes, their counters, their end."""

    args: argparse.Namespace
    number: int
    network: Alone | Switched
    groups: Groups | None
    folder: Path
    port: int
    processes: list[Process] = field(default_factory=list)
    roles: dict[int, str] = field(default_factory=dict)  # of all processes, the killed ones, too
    samples: Samples = field(default_factory=Samples)
    progress: Samples = field(default_factory=Samples)
    recorder: Recorder | None = None
    begin: float | None = None
    trained: float | None = None
    kills: int = 0
    joined: float | None = None
    _line: StatusLine | None = None
    _sampled: float = 0.0

    def start(self, settings: dict[str, object]) -> None:
        """Starts the master, then the servers and workers of all hosts."""
        file = self.folder / "cluster.conf"
        lines = [f"import {self.args.conf.resolve()}"] if self.args.conf else []
        file.write_text("\n".join([*lines, *(f"{k}: {v}" for k, v in settings.items()), ""]))
        if self.args.account:
            self.recorder = Recorder(self.folder / "perf.data")
        self._start("master", 0, ["--json"])
        for host in range(1, self.number + 1):
            self._start_host(host)

    def run(self, limit_s: float) -> dict:
        """Waits for the end; the master's figures."""
        until = time.monotonic() + limit_s
        next_kill = None
        phase, next_ask = "", 0.0
        while True:
            if time.monotonic() >= next_ask:
                phase = self._ask()
                next_ask = time.monotonic() + (ASK_TRAINING_S if phase == TRAINING else 0.0)
            now = self._sample(phase)
            if self.processes[0].has_ended():
                break
            self._check()
            if self._is_one_more_due(now):
                self._start_host(self.number + 1)
                self.joined = now
            if phase == TRAINING and self.args.kill_every:
                next_kill = next_kill or now + self.args.kill_every
                if now >= next_kill:
                    next_kill += self.args.kill_every
                    phase = self._ask()  # the last answer may be seconds old
                    if phase == TRAINING:
                        self._kill_one()
            if now > until:
                self.fail(f"the job has not ended after {limit_s:.0f} s; phase {phase}")
            time.sleep(SAMPLE_S)
        self._finish()
        text = (self.folder / "figures").read_text().strip()
        if not text.startswith("{"):
            self.fail("the master printed no figures")
        return json.loads(text.splitlines()[-1])

    def _is_one_more_due(self, now: float) -> bool:
        if not self.args.join_after or self.joined is not None or self.begin is None:
            return False
        return now >= self.begin + self.args.join_after

    def training_began(self, told: dict) -> float:
        """When the training began, as nearly as it was seen."""
        if self.begin is not None:
            return self.begin
        say("the training was short: processor time and bytes on the wire are guesses")
        return (self.trained or self._sampled) - told["train_s"]

    def accounts(self, figures: dict) -> dict[str, float]:
        """Microseconds a unit of each activity; those of the training add up to all of the time
        that the hosts had."""
        assert self.recorder is not None
        begin = self.training_began(figures)
        return accounts_of(
            self.recorder.samples(), self.roles, begin, begin + figures["train_s"],
            used=figures["cpu_us_per_unit"]["all"], quota_used=figures["quota_used"],
        )  # fmt: skip

    def close(self) -> None:
        """Ends what still runs."""
        if self.recorder is not None:
            self.recorder.close()
        if self._line is not None:
            self._line.close()
        self.network.end_all()

    def fail(self, text: str) -> None:
        """Ends the bench with one sentence and the last lines of every process."""
        for process in self.processes:
            lines = process.log.read_text(errors="replace").splitlines()
            text += "\n".join(["", f"--- {process.log.stem}", *lines[-TAIL_LINES:]])
        fail(text)

    def _side(self, host: int) -> Side:
        return self.network.sides[host]

    def _start_host(self, host: int) -> None:
        self._start("server", host, ["--set", f"listen_addr={self._side(host).address}"])
        self._start("worker", host, [])

    def _start(self, role: str, host: int, options: list[str]) -> None:
        command = [sys.executable, "-m", "snailps", role, "-c", str(self.folder / "cluster.conf")]
        name = role if role == "master" else f"{role}-{host}"
        log = self.folder / f"{name}.log"
        side = self._side(host)
        command += options
        child = self._spawn(role, host, command, log)
        self.processes.append(Process(role, host, side, command, log, child))

    def _spawn(self, role: str, host: int, command: list[str], log: Path) -> subprocess.Popen:
        named = str(THREAD_NAMES) if self.args.account else ""
        path = os.pathsep.join(filter(None, [named, str(ROOT), pythonpath()]))
        enter = self.groups.enter(group_of(host)) if self.groups else None
        out = self.folder / ("figures" if role == "master" else "output")
        with open(out, "a") as output, open(log, "a") as errors:
            child = self.network.start(
                self._side(host), command, enter=enter, stdout=output, stderr=errors,
                env=dict(os.environ, PYTHONPATH=path),
            )  # fmt: skip
        self.roles[child.pid] = role
        return child

    def _ask(self) -> str:
        """The phase of the job; empty while the master does not answer."""
        master = self._side(0)
        try:
            if self._line is None:
                with self.network.inside(master):
                    # It may not listen yet: a refused connection is an answer.
                    socket.create_connection((master.address, self.port), 1.0).close()
                    self._line = StatusLine(f"{master.address}:{self.port}", OPEN)
                    return self._look()  # dials, so from here
            return self._look()
        except (OSError, SnailError):
            if self._line is not None:
                self._line.close()
                self._line = None
            return ""

    def _look(self) -> str:
        assert self._line is not None
        told = self._line.look(ASK_S)
        if told["phase"] == TRAINING:
            self.progress.add(time.monotonic(), {"units": told["units"]})
        return told["phase"]

    def _sample(self, phase: str) -> float:
        """Samples all counters; the time."""
        now = time.monotonic()
        counters = dict.fromkeys(ROLES, 0.0)
        for process in self.processes:
            counters[process.role] += process.sample()
        counters |= self._sent()
        counters["machine"], counters["interrupts"] = machine_seconds(
            Path("/proc/stat").read_text()
        )
        if self.groups:
            stats = [self.groups.stat(group_of(host)) for host in range(1, self.number + 1)]
            counters["periods"] = sum(stat.get("nr_periods", 0) for stat in stats)
            counters["throttled"] = sum(stat.get("nr_throttled", 0) for stat in stats)
        self.samples.add(now, counters)
        if phase == TRAINING and self.begin is None:
            # Between two looks: in the middle, on average.
            self.begin = (now + self._sampled) / 2
            say(f"{self.number} hosts: training")
        if phase in TRAINED:
            self.trained = self.trained or now
        self._sampled = now
        return now

    def _sent(self) -> dict[str, float]:
        """Bytes sent through wires, and through loopback devices, where they are known."""
        sides = self.network.sides
        if sides[0].fd == HERE:
            return {}  # others send there, too
        if isinstance(self.network, Alone):
            return {"lo": self.network.sent(sides[0])}
        inner = [Side("lo", side.address, side.fd) for side in sides]
        return {
            name: sum(map(self.network.sent, some))
            for name, some in (("wire", sides), ("lo", inner))
        }

    def _check(self) -> None:
        """Fails if a process has ended before the master."""
        for process in self.processes[1:]:
            if process.has_ended() and process.child.returncode:
                # The master may be about to tell why.
                self._await(self.processes[0], 5.0)
                self.fail(f"{process.log.stem} ended with code {process.child.returncode}")

    def _kill_one(self) -> None:
        """Kills a worker as `kill -9` does, and starts another one in its place."""
        workers = [process for process in self.processes if process.role == "worker"]
        process = random.Random(f"{self.args.seed} {self.kills}").choice(workers)
        if process.has_ended():
            return
        process.sample()
        process.child.send_signal(signal.SIGKILL)
        process.child.wait()
        process.earlier_s, process.spent_s = process.earlier_s + process.spent_s, 0.0
        self.kills += 1
        process.child = self._spawn("worker", process.host, process.command, process.log)
        process.revived = True

    def _finish(self) -> None:
        """Waits for the processes after the master; fails if one has failed."""
        code = self.processes[0].child.returncode
        if code:
            self.fail(f"the master ended with code {code}")
        until = time.monotonic() + END_S
        for process in self.processes[1:]:
            if process.revived and not self._await(process, LEAVE_S):
                # It came too late to be taken, and waits for another master.
                process.child.kill()
            if not self._await(process, until - time.monotonic()):
                self.fail(f"{process.log.stem} has not ended {END_S:.0f} s after the master")
            if process.child.returncode and not process.revived:
                self.fail(f"{process.log.stem} ended with code {process.child.returncode}")

    def _await(self, process: Process, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not process.has_ended():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True


def group_of(host: int) -> str:
    """Name of a host's group; host 0 is the master's."""
    return f"host{host}" if host else "master"


@contextlib.contextmanager
def made(args: argparse.Namespace, number: int, folder: Path) -> Iterator[Hosts]:
    """Hosts with their network and their groups; all of it goes when the block ends."""
    wired, mbit = link_of(args.link)
    sides = 1 + number + bool(args.join_after)
    with contextlib.ExitStack() as stack:
        groups = None
        if args.core:
            groups = stack.enter_context(Groups(args.period_ms))
            groups.add(group_of(0), UNLIMITED)
            for host in range(1, sides):
                groups.add(group_of(host), share(args, host))
        chosen = switched(sides, args.rtt_ms) if wired else alone(sides)
        network = stack.enter_context(chosen)
        if mbit is not None:
            network.cap(mbit, network.sides[1:])
        port = PORT if network.sides[0].fd != HERE else free_port()
        hosts = Hosts(args, number, network, groups, folder, port)
        stack.callback(hosts.close)
        yield hosts


def share(args: argparse.Namespace, host: int) -> float:
    """Of a core, of a host, the first of which is 1."""
    return args.cores[host - 1] if host <= len(args.cores) else args.core


def free_port() -> int:
    """A port of this machine that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def settings_of(args: argparse.Namespace, hosts: Hosts, prefix: Path, seed: int) -> dict:
    """Settings of all processes, with --set last."""
    settings: dict[str, object] = {}
    if args.model:
        settings |= {"worker_class": CLASSES[args.model], **FIXED.get(args.model, {})}
    if args.input:
        settings["input"] = ", ".join(
            f'"{Path(name).resolve()}"' for name in args.input.split(",") if name
        )
    if args.epochs:
        settings["epochs"] = args.epochs
    settings["output"] = ""
    words = is_word_vectors(args)
    if words and (args.test or args.similarity or args.analogies):
        formats = ["vec"] if args.similarity or args.analogies else []
        formats += ["bin"] if args.test else []
        settings |= {"output": f'"{prefix}"', "formats": ", ".join(formats)}
    elif args.model == "fedavg" or (args.model == "classifier" and args.test):
        settings["output"] = f'"{prefix}"'
    elif args.test and not words:
        settings["test"] = f'"{args.test.resolve()}"'
    settings |= {
        "master_addr": f"{hosts.network.sides[0].address}:{hosts.port}", "insecure": "true",
        "expected_node_num": 2 * hosts.number, "expected_servers": hosts.number,
        "shard_num": args.shards, "threads": args.threads, "replication": args.replication,
        "init_timeout": FORM_S, "master_time_out": FORM_S, "seed": seed,
    }  # fmt: skip
    return settings | dict(pair.split("=", 1) for pair in args.set)


def is_word_vectors(args: argparse.Namespace) -> bool:
    """Whether the job is one of word vectors, as far as the command line tells."""
    return args.model in WORD_VECTORS or (args.model is None and bool(args.similarity))


def quality_of(args: argparse.Namespace, prefix: Path) -> dict[str, float | None]:
    """Scores of the model's files."""
    scores: dict[str, float | None] = {}
    if is_word_vectors(args):
        scores |= judge(args, Path(f"{prefix}.vec"))
        if args.test:
            scores["held_out"] = held_out_loss(Path(f"{prefix}.bin"), args.test)
    elif args.model == "classifier" and args.test:
        command = [sys.executable, "-m", "snailps", "test", f"{prefix}.bin", str(args.test)]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        if done.returncode:
            fail(f"the evaluation failed:\n{done.stderr.strip()[-2000:]}")
        told = json.loads(done.stdout.strip().splitlines()[-1])
        scores |= {name: told[name] for name in ("precision", "recall") if name in told}
    return scores


def run_once(args: argparse.Namespace, number: int, seed: int) -> dict:
    """One training on this number of hosts; its figures."""
    begin_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="snailps-bench-", dir=args.scratch) as scratch:
        folder = Path(scratch)
        prefix = folder / "result"
        with made(args, number, folder) as hosts:
            hosts.start(settings_of(args, hosts, prefix, seed))
            told = hosts.run(args.limit_s)
            figures = figures_of(
                told, hosts.samples, hosts.training_began(told),
                cores=sum(share(args, host) for host in range(1, number + 1)),
            )  # fmt: skip
            figures["kills"] = hosts.kills
            if args.join_after:
                figures["quota_used"] = None  # the shares have changed
                figures |= joined_of(hosts.progress, hosts.joined, hosts.begin)
            if args.account:
                figures["accounts"] = hosts.accounts(figures)
        figures["test"] |= {k: v for k, v in quality_of(args, prefix).items() if v is not None}
    figures = {"hosts": number, "seed": seed, **figures, "told": numbers_in(told)}
    say(
        f"{number} hosts: {figures['units_per_s']:,.0f} {figures['unit']}/s, loss "
        f"{figures['train_loss']}, {figures['cpu_us_per_unit']['all']:.2f} us each, "
        f"{time.monotonic() - begin_s:.0f} s in all; other processes used "
        f"{figures['others_cores']:.2f} cores"
    )
    return figures


def one_host(args: argparse.Namespace) -> list[str]:
    """The command of this bench for a cluster of one host, which has no network and no standby."""
    own = ["--hosts", "1", "--repeat", "1", "--json", "--period-ms", str(args.period_ms)]
    own += ["--shards", str(args.shards), "--threads", str(args.threads)]
    for name in ("model", "conf", "input", "epochs"):
        if (value := getattr(args, name)) is not None:
            own += [f"--{name}", str(value)]
    for pair in args.set:
        own += ["--set", pair]
    return own


def beside(args: argparse.Namespace, number: int, train_s: float) -> dict[str, float]:
    """Means of this number of clusters of one host, which train at once, independently.

    Hosts that share a machine share its caches and its memory's bandwidth, too: one host that has
    them alone is faster than any of many could be.  They train for about as long as the hosts of
    one cluster did, or all epochs, where the first one takes longer than others.  What other
    benches beside this one's file have measured is taken from there.
    """
    own = one_host(args)
    file = args.out.with_name(BESIDE_FILE) if args.out else None
    known = json.loads(file.read_text()) if file and file.exists() else {}
    shares = [share(args, host) for host in range(1, number + 1)]
    key = " ".join([f"{number} x", *own, f"of {shares} cores", f"on {machine()}"])
    if key in known:
        return known[key]
    own += ["--limit-s", str(args.limit_s)]
    if not args.beside_whole:
        own += ["--set", f"max_seconds={max(BESIDE_S, train_s):.0f}"]
    if args.scratch is not None:
        own += ["--scratch", str(args.scratch)]
    begun = [
        subprocess.Popen([sys.executable, __file__, *own, "--core", str(core), "--seed",
                          str(args.seed + i)],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i, core in enumerate(shares)
    ]  # fmt: skip
    try:
        ended = [(child.communicate(timeout=args.limit_s), child.returncode) for child in begun]
    finally:
        for child in begun:
            if child.poll() is None:
                child.terminate()
                child.wait()
    for (_, errors), code in ended:
        if code:
            fail(f"a cluster of one host beside others failed:\n{errors.strip()[-2000:]}")
    told = [json.loads(output.splitlines()[-1]) for (output, _), _ in ended]
    rate = sum(one["units_per_s"] for one in told) / number
    say(f"{number} clusters of one host at once: {rate:,.0f} each, {rate * number:,.0f} in all")
    cpu = sum(one["cpu_us_per_unit"]["all"] for one in told) / number
    found = {"beside_units_per_s": rate, "beside_cpu_us": cpu}
    if file:
        replace_json(file, {**known, key: found})
    return found


def rights(args: argparse.Namespace) -> None:
    """Ends the bench if hosts cannot be made here, with the reason."""
    cores = len(os.sched_getaffinity(0))
    try:
        with contextlib.ExitStack() as stack:
            if args.core:
                groups = stack.enter_context(Groups(args.period_ms))
                say(f"cgroups of version {groups.version}, {args.core:g} of a core a host")
                groups.add("probe", args.core)
            wired, mbit = link_of(args.link)
            if wired:
                network = stack.enter_context(switched(1))
                network.cap(mbit, network.sides)
            elif stack.enter_context(alone(1)).sides[0].fd == HERE:
                say("no network namespaces: hosts use this machine's loopback, uncounted")
    except (NoQuota, NotPermitted) as error:
        fail(str(error))
    most = args.hosts[-1] + bool(args.join_after)
    wanted = sum(share(args, host) for host in range(1, most + 1))
    if wanted > cores:
        say(f"{most} hosts want {wanted:.2f} cores, and this machine has {cores}: they will not "
            "get their shares")  # fmt: skip


def about(args: argparse.Namespace) -> dict:
    """The measurements, and the machine."""
    shown = {name: value for name, value in vars(args).items() if name not in ("out", "resume")}
    return {
        **{name: str(v) if isinstance(v, Path) else v for name, v in shown.items()},
        "similarity": [file.name for file in args.similarity],
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
    }


def stored(args: argparse.Namespace) -> list[dict]:
    """Runs that an earlier bench has left in --out."""
    if not (args.resume and args.out and args.out.exists()):
        return []
    return json.loads(args.out.read_text())["runs"]


def write(args: argparse.Namespace, runs: list[dict]) -> list[dict]:
    """Writes all runs and their medians to --out; the medians."""
    numbers = sorted({run["hosts"] for run in runs})
    found = compare(summarise(n, [run for run in runs if run["hosts"] == n]) for n in numbers)
    if args.out:
        replace_json(args.out, {"about": about(args), "summary": found, "runs": runs})
    return found


def replace_json(file: Path, content: dict) -> None:
    """Writes a file whole, or leaves the old one."""
    fresh = file.with_name(file.name + ".new")
    fresh.write_text(json.dumps(content, indent=1) + "\n")
    fresh.replace(file)


def end(signum: int, frame: object) -> None:
    """SIGTERM ends the bench as Ctrl-C does: with all that it has started."""
    raise KeyboardInterrupt


def main() -> None:
    """Run all numbers of hosts, interleaved, print."""
    args = arguments()
    signal.signal(signal.SIGTERM, end)
    rights(args)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    runs = stored(args)
    summaries = write(args, runs) if runs else []
    try:
        for turn in range(args.repeat):
            seed = args.seed + turn
            # Forth, then back, so that drift affects all alike.
            for number in args.hosts if turn % 2 == 0 else args.hosts[::-1]:
                if any((run["hosts"], run["seed"]) == (number, seed) for run in runs):
                    continue
                runs.append(run_once(args, number, seed))
                summaries = write(args, runs)
        for number in args.hosts if args.beside else []:
            some = [run for run in runs if run["hosts"] == number]
            if number > 1 and "beside_cpu_us" not in some[0]:
                some[0] |= beside(args, number, some[0]["train_s"])
                summaries = write(args, runs)
    except KeyboardInterrupt:
        sys.exit(130)
    except (NoPerf, NoQuota, NotPermitted) as error:
        fail(str(error))
    if args.json:
        for summary in summaries:
            print(json.dumps({**summary, "about": about(args)}), flush=True)
    if args.table or not args.json:
        print(table(summaries), flush=True)
        if args.account:
            print("", accounts_table(runs), sep="\n", flush=True)
    if warning := disturbed(runs):
        say(warning)
    for summary in summaries:
        ratio = summary.get("cpu_ratio_beside")
        if args.cpu_ratio_max and summary["hosts"] > 1 and ratio is None:
            fail(f"{summary['hosts']} hosts: no processor time of clusters beside to compare with")
        if args.cpu_ratio_max and ratio and ratio > args.cpu_ratio_max:
            fail(
                f"{summary['hosts']} hosts: a unit takes {ratio:.2f} times the processor time of "
                f"clusters of one host; at most {args.cpu_ratio_max:g} is wanted"
            )


if __name__ == "__main__":
    main()
