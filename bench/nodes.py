"""One real master and many simulated nodes: how long until all beat, and what the master costs.

    python bench/nodes.py --nodes 1000 --json
    python bench/nodes.py --nodes 1000 --watch      # while `snailps status --watch` asks

A node here is two real connections and nothing else: it registers, acknowledges the route, is told
to start, and beats.  All of them live in `--clients` processes with one loop each, which speak the
wire format through our own session and frames.  The master is `snailps master` as it is shipped.
"""

import argparse
import json
import multiprocessing
import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from snailps.transport import messages
from snailps.transport.frame import CONTROL_BODY_MAX, Frame, FrameDecoder, Kind, encode_frame
from snailps.transport.session import NONCE_BYTES, Channel, ClientSession, Hello, Role

LIMIT_S = 120.0
BEAT = encode_frame(Frame(Kind.HEARTBEAT))
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
AT_ONCE = 64
"""Connections that a client process opens before it looks at the answers."""


class Line:
    """One connection of a node: its handshake, then whole frames."""

    def __init__(self, address, hello, on_ready, on_frame):
        self.sock = socket.create_connection(address)
        self.sock.setblocking(False)
        self.session, self.decoder = ClientSession(hello), FrameDecoder(CONTROL_BODY_MAX)
        self._on_ready, self._on_frame = on_ready, on_frame
        self.send(self.session.start())

    def send(self, frame):
        """Sends a frame: small, so that the socket takes it whole."""
        self.sock.sendall(encode_frame(frame, pack=True))

    def read(self):
        """Handles what has come; how many bytes, 0: the peer has closed."""
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionResetError:
            return 0
        for frame in self.decoder.feed(data):
            if self.session.ready:
                self._on_frame(frame)
                continue
            answer = self.session.receive(frame)
            if answer is not None:
                self.send(answer)
            if self.session.ready:
                self._on_ready()
        return len(data)


class Node:
    """A server or worker that does nothing but belong."""

    def __init__(self, client, role, index):
        self._client, self._role, self._index = client, role, index
        self.routed = self.started = self.beats = 0
        self.pulse = None
        hello = Hello(Channel.CONTROL, role, os.urandom(NONCE_BYTES))
        self.line = client.open(hello, self._register, self._frame)

    def _register(self):
        shards = [["127.0.0.1", 20_000 + self._index]] if self._role == Role.SERVER else []
        message = messages.Register(self._role.name.lower(), "simulated", 1, 1, shards)
        self.line.send(Frame(Kind.CALL, messages.encode(message), request=1))

    def _frame(self, frame):
        if frame.kind == Kind.ERROR:
            raise RuntimeError(frame.body)
        message = messages.decode(frame.body)
        if isinstance(message, messages.Welcome):
            hello = Hello(
                Channel.PULSE, self._role, os.urandom(NONCE_BYTES), message.node,
                message.incarnation, message.job,
            )  # fmt: skip
            self.pulse = self._client.open(hello, lambda: None, self._beat)
        elif isinstance(message, messages.Start):
            self.started = 1
        elif frame.kind == Kind.CALL:
            self.routed += isinstance(message, messages.TakeRoute)
            stats = isinstance(message, messages.Ask)
            answer = messages.Report({"shards": [], "peak_rss_mb": 1}) if stats else messages.Ok()
            self.line.send(Frame(Kind.ANSWER, messages.encode(answer), request=frame.request))

    def _beat(self, frame):
        self.beats += 1

    @property
    def there(self):
        """Registered, routed, told to start (a worker) and heard by heartbeat."""
        return bool(self.routed and self.beats and (self.started or self._role == Role.SERVER))


class Client:
    """Some nodes, served by one thread."""

    def __init__(self, address, ends):
        self._address = address
        self.ends = ends
        self._poll = select.epoll()
        self._lines = {}
        self.nodes = []

    def open(self, hello, on_ready, on_frame):
        """A new connection, served from now on."""
        line = Line(self._address, hello, on_ready, on_frame)
        self._lines[line.sock.fileno()] = line
        self._poll.register(line.sock, select.EPOLLIN)
        return line

    def turn(self, limit_s):
        """Serves what comes within a time."""
        for fd, _ in self._poll.poll(limit_s):
            if not self._lines[fd].read():
                if self.ends():
                    return
                raise RuntimeError("the master closed a connection")

    def run(self, roles, told, until):
        """Joins, tells when all are there, and beats on until it is told to end."""
        for at, (index, role) in enumerate(roles):
            self.nodes.append(Node(self, role, index))
            if at % AT_ONCE == 0:
                self.turn(0)
        beat_at = time.monotonic()
        said = False
        while not until.is_set():
            self.turn(0.05)
            if time.monotonic() >= beat_at:
                beat_at += 1.0
                for node in self.nodes:
                    if node.pulse is not None and node.pulse.session.ready:
                        node.pulse.sock.send(BEAT)
            if not said and all(node.there for node in self.nodes):
                said = True
                told.put(time.monotonic())


def client_main(address, roles, told, until):
    try:
        Client(address, until.is_set).run(roles, told, until)
    except Exception as error:
        told.put(repr(error))
        raise


def cpu_s(pid):
    """Processor time of a process so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def peak_mb(pid):
    """Most memory that a process has had, MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


def start_master(folder, nodes, servers):
    """A master that waits for so many nodes; the process and its address."""
    (folder / "in.txt").write_text("a few words to count\n" * 1000)
    settings = {
        "worker_class": "snailps.models.word_vectors:WordVectors", "input": folder / "in.txt",
        "output": folder / "out", "expected_node_num": nodes, "expected_servers": servers,
        "on_node_loss": "recover", "listen_addr": "127.0.0.1:0", "log_level": "warning",
        "min_count": 1, "json_log": folder / "log", "json_log_interval": 1,
        "replication": "none",  # these servers have no shards that could follow others
    }  # fmt: skip
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    read, write = os.pipe()
    command = [sys.executable, "-m", "snailps", "master", *sets, "--ready-fd", str(write)]
    master = subprocess.Popen(command, pass_fds=(write,), stdin=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as ready:
        host, _, port = ready.readline().strip().rpartition(":")
    return master, (host, int(port))


def start_watch(address):
    """`snailps status --watch`, which writes a document a second."""
    where = f"master_addr={address[0]}:{address[1]}"
    command = [sys.executable, "-m", "snailps", "status", "--watch", "--json", "--set", where]
    watch = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    watch.stdout.readline()  # it has begun
    return watch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000, help="servers and workers together")
    parser.add_argument("--servers", type=int, default=50, help="how many of them are servers")
    parser.add_argument("--clients", type=int, default=2, help="processes that simulate them")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long they beat then")
    parser.add_argument("--watch", action="store_true", help="look at its status once a second")
    parser.add_argument("--json", action="store_true", help="figures as one JSON object")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    roles = [(i, Role.SERVER if i < args.servers else Role.WORKER) for i in range(args.nodes)]
    told, until = multiprocessing.Queue(), multiprocessing.Event()
    with tempfile.TemporaryDirectory() as folder:
        master, address = start_master(Path(folder), args.nodes, args.servers)
        begin, cpu = time.monotonic(), cpu_s(master.pid)
        clients = [
            multiprocessing.Process(
                target=client_main, args=(address, roles[at :: args.clients], told, until)
            )
            for at in range(args.clients)
        ]
        try:
            for client in clients:
                client.start()
            ends = [told.get(timeout=LIMIT_S) for _ in clients]
            if any(isinstance(end, str) for end in ends):
                raise SystemExit(f"a client failed: {ends}")
            joined_s = max(ends) - begin
            joined_cpu = cpu_s(master.pid) - cpu
            watch = start_watch(address) if args.watch else None
            settled = time.monotonic()
            cpu = cpu_s(master.pid)
            time.sleep(args.seconds)
            rate = (cpu_s(master.pid) - cpu) / (time.monotonic() - settled)
            alive = master.poll() is None
            if watch is not None:
                watch.kill()
                pages = watch.communicate()[0].count(b'"phase"')
            figures = {
                "nodes": args.nodes,
                "servers": args.servers,
                "joined_s": round(joined_s, 2),
                "master_cpu_s_joining": round(joined_cpu, 2),
                "master_cores_beating": round(rate, 3),
                "master_peak_mb": round(peak_mb(master.pid), 1) if alive else None,
                **({"pages": pages} if watch is not None else {}),
                "all_there": alive and all(client.is_alive() for client in clients),
            }
        finally:
            until.set()
            master.kill()
            master.wait()
            for client in clients:
                client.join(5.0)
                client.kill()
    if args.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
