"""One real master and many simulated nodes: durations, and the master's time and memory.

    python bench/nodes.py --servers 100 --shards 8 --workers 1000 --replication sync
    python bench/nodes.py --servers 10 --shards 8 --workers 100 --facts 20000 --json
    python bench/nodes.py --curve 10,30,100 --shards 8      # ten workers a server, as a table

The master is `snailps master` as it is shipped, and the sockets are real; the nodes live in
`--clients` processes of one loop each (`nodes_clients.py`), which share the machine with it.  The
parts, in turn: the cluster forms, and all shards get standbys; it beats; a vocabulary goes to all
workers; they train; five servers are killed at once, no two of which are a shard's pair (with one
standby a shard, such two end a job, as they should); the workers train as fast as the master
answers until the journal has been given so many facts; the master is killed and started again.
"""

import argparse
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path

from nodes_clients import client_main

from snailps.master.loop_latency import quantile_ms
from snailps.transport import messages
from snailps.transport.control import Trust, visit
from snailps.transport.handshake import Role

LIMIT_S = 300.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BLOCKS, BLOCK_BYTES = 1000, 1000
KILLED = 5
SHARD_STATS = {
    **dict.fromkeys(
        ("bytes_in", "bytes_out", "frames", "connections", "parked", "rounds", "fragments", "rows",
         "bytes", "slots", "staged", "sealed", "epoch", "pulls", "pushes", "repeated",
         "rows_pulled", "rows_pushed", "rows_scanned",
         "products", "entries_summed", "rows_stepped", "batches_unknown", "clock"),
        123_456,
    ),
    "waits_for": "",
    "replica": {"role": "primary", "seeded": 1.0, "relayed": 0.0, "lag_bytes": 0, "lag_s": 0.0,
                "held": 0},
}  # fmt: skip
"""A server's report of a shard, about as long as a real one."""


class Master:
    """The master's process, its memory and time, and its status."""

    def __init__(self, folder, args, port):
        self.folder, self.args, self.address = folder, args, ("127.0.0.1", port)
        self.rss_mb, self.process = [], None
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self.before_cpu_s = 0.0

    def start(self):
        """Starts it, or another one in its place; waits until it listens."""
        a = self.args
        settings = {
            "worker_class": "nodes_model:Nothing", "input": self.folder / "in.txt",
            "output": self.folder / "out", "expected_node_num": a.servers + a.workers,
            "expected_servers": a.servers, "on_node_loss": "recover", "replication": a.replication,
            "listen_addr": f"127.0.0.1:{self.address[1]}", "log_level": a.log_level,
            "summary_mb": a.summary_mb, "block_bytes": BLOCK_BYTES, "epochs": a.epochs,
            "consistency": a.consistency, "staleness": 2, "micro_batches": min(a.workers, 4096),
            "frag_num": max(1024, a.servers * a.shards),
            "init_timeout": LIMIT_S, "master_time_out": LIMIT_S,
        }  # fmt: skip
        if a.consistency != "ssp":
            del settings["staleness"]
        if a.consistency != "bsp":
            del settings["micro_batches"]
        sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        read, write = os.pipe()
        here = str(Path(__file__).parent)
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "snailps", "master", *sets, "--ready-fd", str(write)],
            pass_fds=(write,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        os.close(write)
        with os.fdopen(read) as ready:
            if not ready.readline():
                raise SystemExit("the master did not begin")
        if not self._watcher.is_alive():
            self._watcher.start()

    def _watch(self):
        while not self._stop.wait(0.1):
            try:
                lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
                rss = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
            except (OSError, StopIteration):
                continue  # it is between two lives
            self.rss_mb.append(rss / 1000)

    def peak_mb(self, since=0):
        """Largest memory of the samples from one on."""
        return round(max(self.rss_mb[since:], default=0.0), 1)

    def cpu_s(self):
        """Processor time of the present process, seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def status(self):
        """Its status."""
        client = visit(self.address, LIMIT_S, Trust(b""))
        try:
            return client.call(messages.Ask("status"), LIMIT_S).data
        finally:
            client.close()

    def kill(self):
        """Kills it as `kill -9` does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self):
        """Ends the process and its threads."""
        self._stop.set()
        if self.process is not None and self.process.poll() is None:
            self.kill()


class Crowd:
    """All simulated nodes."""

    def __init__(self, args, address, port):
        context = multiprocessing.get_context("fork")
        self.dead = context.Array("b", args.servers, lock=False)
        self.counts, self.told, self._told_at = {}, {}, {}
        count = args.servers + args.workers
        roles = [(i, Role.SERVER if i < args.servers else Role.WORKER) for i in range(count)]
        options = {
            "shards": args.shards, "port": port, "copy_s": args.copy_s, "block_s": args.block_s,
            "shard_stats": SHARD_STATS,
        }  # fmt: skip
        self._pipes, self._processes = [], []
        for at in range(args.clients):
            near, far = context.Pipe()
            process = context.Process(
                target=client_main,
                args=(address, roles[at :: args.clients], far, self.dead, options),
                daemon=True,
            )
            process.start()
            far.close()
            self._pipes.append(near)
            self._processes.append(process)

    def say(self, *what):
        """Sends something to all processes."""
        for pipe in self._pipes:
            pipe.send(what)

    def hear(self, limit_s):
        """Takes messages for a time."""
        for pipe in wait(self._pipes, limit_s):
            try:
                kind, *values = pipe.recv()
            except EOFError:
                raise SystemExit("a process of simulated nodes has ended") from None
            if kind == "failed":
                raise SystemExit(f"a process of simulated nodes failed: {values[0]}")
            if kind == "counts":
                self.counts[pipe] = values
            else:
                self.told.setdefault(kind, {})[pipe] = values[0]

    def sums(self):
        """Summaries taken, blocks done, nodes that came back."""
        return [sum(column) for column in zip(*self.counts.values(), strict=True)] or [0, 0, 0]

    def until(self, condition, what, limit_s=LIMIT_S):
        """Takes messages until a condition holds."""
        end = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"{what} did not come within {limit_s:.0f} s: {self.sums()}")
            self.hear(0.1)

    def all_told(self, kind):
        """Time of the last process's report; None while one is missing."""
        told = self.told.get(kind, {})
        return max(told.values()) if len(told) == len(self._pipes) else None

    def close(self):
        """Ends all of them."""
        for pipe in self._pipes:
            try:
                pipe.send(("end",))
            except OSError:
                continue
        for process in self._processes:
            process.join(2.0)
            process.kill()
            process.join()


def since(before, after, kind):
    """Turns of the loop between two statuses: by duration."""
    counts = dict(map(tuple, after[kind]))
    for upper, count in before[kind]:
        counts[upper] -= count
    return [[upper, count] for upper, count in sorted(counts.items()) if count]


def loop_figures(name, before, after):
    """The loop between two statuses."""
    counts, cpu = since(before, after, "counts"), since(before, after, "cpu_counts")
    return {
        f"{name}_turns": sum(count for _, count in counts),
        f"{name}_loop_ms_p999": round(quantile_ms(counts, 0.999), 1),
        f"{name}_loop_ms_max": round(counts[-1][0], 1) if counts else 0.0,
        f"{name}_loop_cpu_ms_p999": round(quantile_ms(cpu, 0.999), 1),
    }


def bare(status):
    """Shards that have no standby, or one that has not all."""
    return sum(shard["state"] != "ready" for shard in status["shards"])


def poll(master, crowd, condition, what):
    """Asks for the status until a condition holds; the status and its time."""
    end = time.monotonic() + LIMIT_S
    while True:
        crowd.hear(0.05)
        status = master.status()
        if condition(status):
            return status, time.monotonic()
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not come: {status['phase']}, {status['waiting_for']}")
        for _ in range(4):
            crowd.hear(0.05)


def victims_of(status, count):
    """Servers of which no two have the same shard: index in the bench, and number."""
    pairs = {frozenset((shard["primary"], shard["standby"])) for shard in status["shards"]}
    found = []
    for number in sorted({shard["primary"] for shard in status["shards"]}):
        if all(frozenset((number, other)) not in pairs for other in found):
            found.append(number)
    hosts = {node["id"]: int(node["host"].removeprefix("host")) for node in status["nodes"]}
    return [(hosts[number], number) for number in found[:count]]


EMPTY = {"counts": [], "cpu_counts": []}


def form(master, crowd, args, figures, begin):
    """Forming: all nodes have joined, every shard has its standby."""
    wanted = args.replication != "none" and args.servers > 1
    status, at = poll(
        master,
        crowd,
        lambda s: (
            s["phase"] not in ("forming", "preparing") and s["shards"] and not (wanted and bare(s))
        ),
        "standbys",
    )
    figures["formed_s"] = round(at - begin, 2)
    figures |= loop_figures("forming", EMPTY, status["loop"])
    figures["forming_cpu_s"] = round(master.cpu_s(), 2)
    return status


def beat(master, crowd, args, figures, status):
    """Idle: heartbeats only."""
    cpu, begin = master.cpu_s(), time.monotonic()
    while time.monotonic() < begin + args.seconds:
        crowd.hear(0.1)
    figures["beating_cores"] = round((master.cpu_s() - cpu) / (time.monotonic() - begin), 3)
    after = master.status()
    figures |= loop_figures("beating", status["loop"], after["loop"])
    return after


def summary(master, crowd, args, figures, status):
    """Survey, whose result is sent to all workers."""
    begin, looks = time.monotonic(), len(master.rss_mb)
    crowd.say("gate")
    crowd.until(lambda: crowd.sums()[0] >= args.workers, "the vocabulary")
    figures["vocabulary_s"] = round(time.monotonic() - begin, 2)
    figures["vocabulary_mb"] = args.summary_mb
    figures["vocabulary_peak_mb"] = master.peak_mb(looks)
    after = master.status()
    figures |= loop_figures("vocabulary", status["loop"], after["loop"])
    return after


def train(master, crowd, args, figures, status):
    """Training: each worker takes `block_s` for a block."""
    cpu, begin = master.cpu_s(), time.monotonic()
    crowd.say("train")
    while time.monotonic() < begin + args.seconds:
        crowd.hear(0.1)
    figures["training_cores"] = round((master.cpu_s() - cpu) / (time.monotonic() - begin), 3)
    figures["training_blocks_per_s"] = round(crowd.sums()[1] / args.seconds, 1)
    after = master.status()
    figures |= loop_figures("training", status["loop"], after["loop"])
    return after


def lose(master, crowd, args, figures, status):
    """Loss of servers at once: until the route names none of them, and all shards have standbys."""
    victims = victims_of(status, min(KILLED, args.servers // 2))
    figures["killed"] = len(victims)
    for index, _ in victims:
        crowd.dead[index] = 1
    crowd.told.pop("clean", None)
    begin = time.monotonic()
    crowd.say("kill", [index for index, _ in victims], [number for _, number in victims])
    crowd.until(lambda: crowd.all_told("clean") is not None, "a route without the killed")
    figures["rerouted_s"] = round(crowd.all_told("clean") - begin, 3)
    # After that, shards move one by one to balance the servers.
    after, at = poll(master, crowd, lambda s: bare(s) <= 1, "standbys anew")
    figures["redundant_again_s"] = round(at - begin, 2)
    figures |= loop_figures("loss", status["loop"], after["loop"])
    return after


def restart(master, crowd, args, figures, status):
    """The journal gets its facts; the master is killed, and another one takes over."""
    before, begin = crowd.sums()[1], time.monotonic()
    crowd.say("flood", True)
    crowd.until(lambda: 2 * crowd.sums()[1] >= args.facts, "that many facts", 3 * LIMIT_S)
    took_s = time.monotonic() - begin
    figures["facts"] = 2 * crowd.sums()[1]
    figures["blocks_per_s_max"] = round((crowd.sums()[1] - before) / took_s, 1)
    after = master.status()
    figures |= loop_figures("flood", status["loop"], after["loop"])
    crowd.say("hold", True)
    crowd.say("flood", False)
    folder = master.folder / "out.journal"
    figures["journal_mb"] = round(sum(f.stat().st_size for f in folder.glob("*")) / 1e6, 1)
    nodes = len(status["nodes"])
    master.kill()
    back = crowd.sums()[2]
    begin = time.monotonic()
    master.start()
    figures["listens_again_s"] = round(time.monotonic() - begin, 2)
    crowd.until(lambda: crowd.sums()[2] - back >= nodes, "all nodes' coming back")
    poll(master, crowd, lambda s: s["phase"] == "training", "the training again")
    crowd.say("flood", True)  # a block takes its worker no time: it is the master that is measured
    crowd.say("hold", False)
    done = crowd.sums()[1]
    crowd.until(lambda: crowd.sums()[1] > done, "another block")
    figures["back_s"] = round(time.monotonic() - begin, 2)
    return master.status()


def measure(args):
    """All parts in sequence; their figures."""
    figures = {name: getattr(args, name) for name in ("servers", "shards", "workers")}
    figures |= {"replication": args.replication, "consistency": args.consistency}
    listener = socket.create_server(("127.0.0.1", 0))  # as if the shards were there
    with tempfile.TemporaryDirectory(prefix="snailps-nodes-") as name, listener:
        folder = Path(name)
        (folder / "in.txt").write_text(("x" * (BLOCK_BYTES - 1) + "\n") * BLOCKS)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        master = Master(folder, args, port)
        crowd = None
        try:
            master.start()
            begin = time.monotonic()
            crowd = Crowd(args, master.address, listener.getsockname()[1])
            status = form(master, crowd, args, figures, begin)
            parts = [beat, summary, train]
            if args.replication != "none" and args.servers > 1:
                parts.append(lose)
            if args.facts:
                parts.append(restart)
            for part in parts:
                if args.parts and part.__name__ not in args.parts.split(","):
                    continue
                known = set(figures)
                status = part(master, crowd, args, figures, status)
                new = {name: value for name, value in figures.items() if name not in known}
                print(f"{part.__name__}: {new}", file=sys.stderr, flush=True)
            figures["peak_mb"] = master.peak_mb()
        finally:
            if crowd is not None:
                crowd.close()
            master.close()
    return figures


def targets(figures):
    """Targets: name, limit, whether it is met (None: not measured)."""
    asked = [("formed_s", 20.0), ("rerouted_s", 2.0), ("back_s", 10.0)]
    asked += [("vocabulary_peak_mb", 500.0), ("peak_mb", 1000.0)]
    asked += [(name, 50.0) for name in sorted(figures) if name.endswith("_loop_ms_p999")]
    asked += [(name, 1.0) for name in ("beating_cores", "training_cores")]
    return [
        (name, limit, None if name not in figures else figures[name] <= limit)
        for name, limit in asked
    ]


def print_curve(runs):
    """A table: each figure by servers, and the same by node."""
    nodes = [run["servers"] + run["workers"] for run in runs]
    names = [name for name in runs[-1] if isinstance(runs[-1][name], int | float)]
    print("| figure |", " | ".join(f"{run['servers']} x {run['shards']} x {run['workers']}"
                                   for run in runs), "| by 1,000 nodes |")  # fmt: skip
    print("|---" * (len(runs) + 2) + "|")
    for name in names:
        values = [run.get(name, 0.0) for run in runs]
        by_node = [1000 * value / count for value, count in zip(values, nodes, strict=True)]
        cells = [f"{value:g}" for value in values]
        print(f"| {name} |", " | ".join(cells), "|", ", ".join(f"{v:.3g}" for v in by_node), "|")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--shards", type=int, default=8, help="shards of a server")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--replication", default="sync", choices=["sync", "async", "none"])
    parser.add_argument("--consistency", default="async", choices=["async", "ssp", "bsp"])
    parser.add_argument("--summary-mb", type=int, default=60, help="size of the vocabulary")
    parser.add_argument("--facts", type=int, default=2_000_000,
                        help="of the journal when the master is killed; 0: it is not")  # fmt: skip
    parser.add_argument("--copy-s", type=float, default=0.05, help="a standby is copied in")
    parser.add_argument("--block-s", type=float, default=4.0, help="a block takes a worker")
    parser.add_argument("--seconds", type=float, default=20.0, help="of beating, and of training")
    parser.add_argument("--clients", type=int, default=2, help="processes that simulate nodes")
    parser.add_argument("--curve", default="", help="numbers of servers, ten workers for each")
    parser.add_argument(
        "--parts", default="", help="parts after forming: beat,summary,train,lose,restart"
    )
    parser.add_argument("--log-level", default="error", help="of the master")
    parser.add_argument("--json", action="store_true", help="figures as one JSON object a run")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    args.epochs = 2 + max(args.facts, 100 * BLOCKS) // BLOCKS
    sizes = [int(n) for n in args.curve.split(",")] if args.curve else [args.servers]
    runs = []
    for servers in sizes:
        if args.curve:
            args.servers, args.workers = servers, 10 * servers
        figures = measure(args)
        runs.append(figures)
        asked = targets(figures)
        if args.json:
            print(json.dumps({**figures, "targets": asked}), flush=True)
            continue
        for name, value in figures.items():
            asks = [(limit, met) for asked_name, limit, met in asked if asked_name == name]
            said = [f"  <= {limit:g}: {'met' if met else 'NOT MET'}" for limit, met in asks]
            print(f"{name:26} {value}{''.join(said)}")
    if args.curve:
        print_curve(runs)


if __name__ == "__main__":
    main()
