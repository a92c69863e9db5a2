"""The fuzzer at work: connection after connection to a live cluster, which has to end each of them.

Live, seed, frames -> attack -> Tally; raises where something hangs, dies, or grows
"""

import contextlib
import random
import socket
import threading
import time
from dataclasses import dataclass, field

from frame_socket import FrameSocket
from live import SECRET, served
from waiting import LIMIT_S

from fuzz.mutate import ControlCorpus, DataCorpus, handshake
from snailps.transport import messages
from snailps.transport.frame import Frame, Kind, encode_frame
from snailps.transport.handshake import Channel, Hello, Role

FRAG_NUM = 16
BATCH = 50
"""Broken frames of one connection that has shaken hands, at most."""
GROWTH_MB = 50.0


class Hung(AssertionError):
    """A connection was not ended in time; names it, so that it can be made again."""


@dataclass
class Growth:
    """What an attack cost."""

    connections: int = 0
    memory_mb: list = field(default_factory=list)
    descriptors: list = field(default_factory=list)

    @property
    def growth_mb(self):
        """From after the first tenth on; what is touched for the first time is not growth."""
        start = len(self.memory_mb) // 10
        return max(self.memory_mb[start:]) - self.memory_mb[start]


@dataclass
class Tally(Growth):
    """What was sent, and what it cost."""

    frames: int = 0
    served: int = 0


class Attacker:
    """Sends broken frames to one door of a cluster."""

    def __init__(self, live, door, seed):
        self.live, self.door, self.seed = live, door, seed
        self.channel = Channel.DATA if door == "shard" else Channel.CONTROL
        self.corpus = (
            DataCorpus(live.job, FRAG_NUM, live.victim) if door == "shard" else ControlCorpus()
        )
        self.frames = self.connections = 0

    def run(self, frames, over):
        """Connections until so many frames are sent, or `over` is set."""
        while self.frames < frames and not over.is_set():
            self.frames += self.connection(self.connections)
            self.connections += 1

    def connection(self, number):
        """One connection, always the same for the same number; the frames that it sent."""
        random_ = random.Random(f"{self.seed} {self.door} {number}")
        # Other addresses of this machine: ports of closed connections rest for a minute.
        source = (f"127.0.{random_.randrange(1, 255)}.{random_.randrange(1, 255)}", 0)
        where = self.live.addresses[self.door]
        try:
            with socket.create_connection(where, LIMIT_S, source) as sock:
                if random_.random() < 0.5:
                    data, sent = handshake(random_, self.channel, self.live.job)
                else:
                    self._shake(sock, random_)
                    data, sent = self._frames(random_)
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 18):
                    pass
        except ConnectionError:
            pass  # the other side had enough of it, which is its right
        except TimeoutError:
            raise Hung(f"{self.door}, seed {self.seed}, connection {number}") from None
        return sent

    def _shake(self, sock, random_):
        """An honest handshake, by a peer that knows the secret."""
        hello = Hello(
            self.channel, Role.WORKER, random_.randbytes(16), 0, random_.choice((1, 2, 9)),
            self.live.job,
        )  # fmt: skip
        FrameSocket(sock).greet(hello, SECRET.encode())

    def _frames(self, random_):
        """Frames with good headers and broken bodies, and behind them one that is broken itself."""
        count = random_.randrange(1, BATCH)
        parts = [self.corpus.frame(random_) for _ in range(count)]
        if self.door == "master" and random_.random() < 0.2:
            register = messages.Register("driver", "fuzz", 1, 1)
            parts.insert(0, encode_frame(Frame(Kind.CALL, messages.encode(register), request=1)))
        return b"".join([*parts, self.corpus.broken(random_)]), count + 1


def attack(live, seed, frames, *, tell=lambda tally: None):
    """Sends so many frames to both doors at once, while an honest client is served.

    Raises
    ------
    AssertionError
        A process ended, a connection was not ended, honest work failed, or memory grew.
    """
    attackers = [Attacker(live, door, seed) for door in ("master", "shard")]
    tally, over, failed = Tally(), threading.Event(), []

    def run(attacker, share):
        try:
            attacker.run(share, over)
        except BaseException as error:
            failed.append(error)
            over.set()

    threads = [threading.Thread(target=run, args=(attacker, frames // 2)) for attacker in attackers]
    with contextlib.ExitStack() as stack:
        for _ in range(50):  # numbers of pushes are above those of the corpus by then
            live.serve()
        count = stack.enter_context(served(live))
        stack.callback(over.set)
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) or len(tally.memory_mb) < 2:
            time.sleep(0.2)  # between two looks; nothing waits for it
            dead = [name for name, p in live.processes.items() if p.popen.poll() is not None]
            if count and isinstance(count[-1], BaseException):
                over.set()
                break
            if dead:
                over.set()
                failed.append(AssertionError(f"{dead} ended: {live.processes[dead[0]].lines[-9:]}"))
                break
            tally.frames = sum(attacker.frames for attacker in attackers)
            tally.connections = sum(attacker.connections for attacker in attackers)
            tally.served = len(count)
            tally.memory_mb.append(live.memory_mb())
            tally.descriptors.append(live.descriptors())
            tell(tally)
        for thread in threads:
            thread.join(LIMIT_S)
        if failed:
            raise failed[0]
    assert tally.growth_mb < GROWTH_MB, f"grew by {tally.growth_mb:.0f} MB"
    return tally
