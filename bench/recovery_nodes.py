"""Simulated nodes at one real master: the part `nodes` of recovery.py.

    threads: dial -> Register        loop: Welcome -> pulse, TakeRoute -> Ok        master: /proc

A node here is two sockets, of which one is served by the same compiled heartbeat that real nodes
have: no rows, no blocks.  What is asked is what the master makes of so many.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from words import ROOT, say

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from faults.counting import COUNTED
from processes import Cluster

from snailps.cli.status import ask
from snailps.config import parse_addr
from snailps.transport import messages
from snailps.transport._pulse import Pulse
from snailps.transport.control import dial
from snailps.transport.frame import Frame, FrameDecoder, Kind, encode_frame
from snailps.transport.session import Channel, Role

DIALLERS = 8
LIMIT_S = 120.0
WATCHED_S = 10.0
SERVERS = 0.1
"""Share of the nodes that say they are servers."""


class Crowd:
    """Nodes that register, take the route and keep their hearts beating."""

    def __init__(self, address, number, servers):
        self.address, self.number, self.servers = parse_addr(address, "master"), number, servers
        self.routed = self.beating = 0
        self.over = False
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._new = []
        self._pulse = Pulse(1.0)
        self._pulse.start()
        self._pool, self._beats = ThreadPoolExecutor(DIALLERS), ThreadPoolExecutor(DIALLERS)
        self._sockets = []
        self._loop = threading.Thread(target=self._serve, daemon=True)

    def start(self):
        """Sends all of them to the master."""
        self._loop.start()
        for index in range(self.number):
            self._pool.submit(self._register, index)

    def close(self):
        """Everybody leaves."""
        self.over = True
        for pool in (self._pool, self._beats):
            pool.shutdown(cancel_futures=True)
        self._loop.join(LIMIT_S)
        self._pulse.stop()
        for sock in self._sockets:
            sock.close()

    def _dial(self, channel, role, **who):
        return dial(self.address, channel, role, whom="the master", limit_s=LIMIT_S,
                    give_up=lambda: self.over, **who)  # fmt: skip

    def _register(self, index):
        role = Role.SERVER if index < self.servers else Role.WORKER
        sock = self._dial(Channel.CONTROL, role)
        endpoints = [["127.0.0.1", 1024 + index]] if role == Role.SERVER else []
        name = role.name.lower()
        hello = messages.Register(name, f"host{index // 8}", index + 1, 2, endpoints)
        sock.sendall(encode_frame(Frame(Kind.CALL, messages.encode(hello), request=1)))
        with self._lock:
            self._sockets.append(sock)
            self._new.append((sock, role))

    def _beat(self, role, welcome):
        sock = self._dial(Channel.PULSE, role, node=welcome.node, incarnation=welcome.incarnation,
                          job=welcome.job)  # fmt: skip
        self._pulse.add(sock, welcome.node)
        with self._lock:
            self.beating += 1

    def _serve(self):
        while not self.over:
            with self._lock:
                new, self._new = self._new, []
            for sock, role in new:
                self._selector.register(sock, selectors.EVENT_READ, (role, FrameDecoder()))
            for key, _ in self._selector.select(0.02):
                self._read(key.fileobj, *key.data)

    def _read(self, sock: socket.socket, role, decoder):
        data = b""
        with contextlib.suppress(OSError):
            data = sock.recv(1 << 16)
        if not data:
            self._selector.unregister(sock)
            return
        for frame in decoder.feed(data):
            if frame.kind == Kind.ANSWER and frame.request == 1:
                self._beats.submit(self._beat, role, messages.decode(frame.body))
            elif frame.kind == Kind.CALL:
                answer = Frame(Kind.ANSWER, messages.encode(messages.Ok()), request=frame.request)
                sock.sendall(encode_frame(answer))
                with self._lock:
                    self.routed += b'"TakeRoute"' in frame.body[:4096]


def nodes(args):
    """Seconds until all are registered, routed and beating; the master's core and memory."""
    servers = max(1, int(args.nodes * SERVERS))
    with tempfile.TemporaryDirectory(prefix="snailps-bench-") as name:
        folder = Path(name)
        (folder / "notes").mkdir()
        (folder / "in.txt").write_text("0\n" * 1000)
        job = {"worker_class": COUNTED, "input": "in.txt", "notes": str(folder / "notes")}
        cluster = Cluster(folder, {"on_node_loss": "recover", "log_level": "warning"}, job,
                          servers=servers, workers=args.nodes - servers)  # fmt: skip
        with contextlib.closing(_Closing(cluster)):
            master = cluster.master(*args.sets)
            crowd = Crowd(cluster.address, args.nodes, servers)
            begin, used = time.monotonic(), cpu_s(master.pid)
            crowd.start()
            while min(crowd.routed, crowd.beating) < args.nodes:
                if master.popen.poll() is not None or time.monotonic() - begin > LIMIT_S:
                    raise SystemExit(
                        f"bench: {crowd.routed} routed, {crowd.beating} beating: {master.errors}"
                    )
                time.sleep(0.01)
            there_s, used_s = time.monotonic() - begin, cpu_s(master.pid) - used
            say(f"nodes: {args.nodes} there after {there_s:.1f} s; watching for {WATCHED_S:g} s")
            begin, used = time.monotonic(), cpu_s(master.pid)
            time.sleep(WATCHED_S)
            idle = (cpu_s(master.pid) - used) / (time.monotonic() - begin)
            if master.popen.poll() is not None:
                raise SystemExit(f"bench: the master ended: {master.errors}")
            status = ask(cluster.address)
            row = {
                "part": "nodes", "nodes": args.nodes, "servers": servers,
                "there_s": round(there_s, 2), "cores_meanwhile": round(used_s / there_s, 2),
                "cores_after": round(idle, 3), "rss_mb": round(rss_mb(master.pid)),
                "members": len(status["nodes"]), "phase": status["phase"],
            }  # fmt: skip
            master.popen.send_signal(signal.SIGKILL)
            crowd.close()
    row["targets"] = [
        ("nodes: registered, routed and beating <= 5 s", row["there_s"], there_s <= 5),
        ("nodes: master's cores < 1", row["cores_meanwhile"], max(used_s / there_s, idle) < 1),
        ("nodes: master's memory < 300 MB", row["rss_mb"], row["rss_mb"] < 300),
        ("nodes: members still there", row["members"], row["members"] == args.nodes),
    ]
    return row


class _Closing:
    """A cluster whose end is not judged: its nodes were simulated."""

    def __init__(self, cluster):
        self._cluster = cluster

    def close(self):
        self._cluster.close(check=False)


def cpu_s(pid):
    """Processor time of a process so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid):
    """Most memory of a process so far, MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    raise AssertionError(f"process {pid} has no VmHWM")
