"""A blocking connection on which a test sends and reads any frames, good or bad."""

from snailps.transport.frame import FrameDecoder, Kind, encode_frame
from snailps.transport.handshake import Channel, ClientSession, Hello, Role, remote_error


class FrameSocket:
    """Sends unchecked bytes, and decodes what arrives."""

    def __init__(self, sock):
        self.sock, self.decoder, self.frames = sock, FrameDecoder(), []

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.close()

    def refused(self):
        """The error that arrives before the connection is closed."""
        frame = self.next()
        assert frame.kind == Kind.ERROR, frame
        assert self.next() is None
        return remote_error(frame)

    def close(self):
        self.sock.close()

    def send(self, *frames):
        self.sock.sendall(b"".join(encode_frame(frame) for frame in frames))

    def next(self):
        """The next frame; None when the peer has closed."""
        while not self.frames:
            try:
                data = self.sock.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self.frames += self.decoder.feed(data)
        return self.frames.pop(0)

    def ask(self, frame):
        self.send(frame)
        return self.next()

    def shake(self, channel=Channel.DATA, secret=b"", incarnation=1, job=7, node=1):
        """Does the handshake of a worker."""
        return self.greet(Hello(channel, Role.WORKER, b"n" * 16, node, incarnation, job), secret)

    def greet(self, hello, secret=b""):
        """Does the handshake with this hello; returns itself."""
        session = ClientSession(hello, secret)
        self.send(session.start())
        while not session.ready:
            answer = session.receive(self.next())
            if answer is not None:
                self.send(answer)
        return self
