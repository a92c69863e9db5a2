"""The master's end of a control connection, in a test's hands."""

import socket

from waiting import LIMIT_S

from snailps.transport import messages
from snailps.transport.frame import Frame, FrameDecoder, encode_frame


class Far:
    """The master's end of a connection: reads frames, sends what a test likes."""

    def __init__(self):
        self.sock, self.near = socket.socketpair()
        self.sock.settimeout(LIMIT_S)
        self._decoder, self._frames = FrameDecoder(), []

    def next(self):
        """The next frame: its kind, its number and its message."""
        while not self._frames:
            data = self.sock.recv(1 << 16)
            assert data, "closed"
            self._frames += self._decoder.feed(data)
        frame = self._frames.pop(0)
        return frame.kind, frame.request, messages.decode(frame.body)

    def send(self, kind, message, request=0):
        frame = Frame(kind, messages.encode(message), request=request)
        self.sock.sendall(encode_frame(frame))
