"""A shard without thread or network: a test gives the shipped loop its turns and their times.

    TurnedShard.connect(hello) -> Pipe        Pipe.send -> settle(now) -> Pipe.receive

Sockets of this process carry the bytes, so the bytes of a turn do not depend on the machine.
"""

import socket

from snailps.abi import loops
from snailps.shard.shard_thread import ShardThread
from snailps.transport.frame import FrameDecoder, encode_frame
from snailps.transport.handshake import Channel, ClientSession, Hello, Role, ServerSession

NONCE = b"n" * 16
TURNS_MAX = 10_000


class TurnedShard(ShardThread):
    """One shard; `limits` as in `ShardThread`."""

    def __init__(self, frag_num, hello=None, admit=None, park_limit_s=30.0, **limits):
        hello = hello or Hello(Channel.DATA, Role.SERVER, NONCE)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("")  # a name without a file, that the system makes
        listener.listen(128)
        self.address = listener.getsockname()
        ops = loops.row_ops(), loops.wire_ops()
        super().__init__(listener, lambda: ServerSession(hello, b"", admit), *ops, frag_num,
                         park_limit_s, "turned", **limits)  # fmt: skip
        self.turn(0.0)

    def settle(self, now):
        """Gives turns until nothing is left to do now; the time of the next turn."""
        for _ in range(TURNS_MAX):
            if (due := self.turn(now)) > now:
                return due
        raise AssertionError("the shard comes to no rest")

    def connect(self, hello, now):
        """Connects a peer; the connection and the shard's hello. RemoteError if refused."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.address)
        pipe, session, decoder = Pipe(sock), ClientSession(hello), FrameDecoder()
        pipe.send(encode_frame(session.start()))
        try:
            while not session.ready:
                self.settle(now)
                for frame in decoder.feed(pipe.receive()):
                    answer = session.receive(frame)
                    if answer is not None:
                        pipe.send(encode_frame(answer))
        except BaseException:
            pipe.close()
            raise
        return pipe, session.peer


class Pipe:
    """The far end of a connection of a shard; `ended`: the shard has closed it."""

    def __init__(self, sock):
        self.sock, self.unsent, self.ended = sock, b"", False
        sock.setblocking(False)

    def send(self, data=b""):
        """Sends bytes, after those that found no room before; whether any were sent."""
        self.unsent += data
        try:
            sent = self.sock.send(self.unsent) if self.unsent else 0
        except (BlockingIOError, BrokenPipeError):
            return False
        self.unsent = self.unsent[sent:]
        return sent > 0

    def receive(self):
        """Reads the bytes that have arrived, 1 MiB at most."""
        if self.ended:
            return b""
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            data = b""
        self.ended = not data
        return data

    def close(self):
        self.sock.close()
