"""The queue of frames to a peer: buffers, which peers that get the same message share.

    message -> Encoded (once, for all receivers) -> SendQueue of each peer -> socket

Owns no connection, and never waits.
"""

from __future__ import annotations

import socket
from collections import deque

from snailps.transport.control.encoded import Encoded
from snailps.transport.frame import Frame, Kind, encode_header

SEND_BYTES = 256 << 10
"""Most bytes of one call to the socket, or of one buffer."""
SHARED_BYTES = 4 << 10
"""A smaller body is copied after its header, into one buffer."""
BUFFERS_MAX = 16
"""Most buffers of one call."""


class SendQueue:
    """Frames to be sent on one connection, in order.  `size`: queued bytes; `untaken`: bytes added
    since the socket last took any."""

    __slots__ = ("_buffers", "size", "untaken")

    def __init__(self) -> None:
        self._buffers: deque[memoryview] = deque()
        self.size = self.untaken = 0

    def __len__(self) -> int:
        return self.size

    def add(self, data: bytes | memoryview) -> None:
        """Add bytes, which must not change."""
        self._buffers.append(memoryview(data))
        self.size += len(data)
        self.untaken += len(data)

    def add_message(self, kind: Kind, encoded: Encoded, request: int = 0) -> None:
        body = encoded.body
        head = encode_header(Frame(kind, request=request), encoded.flags, len(body))
        if len(body) < SHARED_BYTES:
            self.add(head + body)
        else:
            self.add(head)
            self.add(body)

    def send(self, sock: socket.socket) -> bool:
        """Send once; return whether the socket took anything.  OSError: the connection is
        broken."""
        chosen: list[memoryview] = []
        room = SEND_BYTES
        for buffer in self._buffers:
            if room <= 0 or len(chosen) == BUFFERS_MAX:
                break
            chosen.append(buffer[:room])
            room -= len(chosen[-1])
        try:
            sent = sock.sendmsg(chosen)
        except BlockingIOError:
            return False
        self.size -= sent
        self.untaken = 0
        while sent:
            first = self._buffers[0]
            if sent < len(first):
                self._buffers[0] = first[sent:]
                return True
            sent -= len(first)
            self._buffers.popleft()
        return True
