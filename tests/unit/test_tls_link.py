"""One relayed connection, whose encrypted socket the test plays: what is moved, how it ends."""

import socket
import ssl

import pytest
from waiting import LIMIT_S

from snailps.transport.security.tls_link import RECORD_BYTES, TlsLink


class Records:
    """Records of a peer, read as OpenSSL's object does it; an exception ends them."""

    def __init__(self, *records):
        self.left = list(records)
        self.written = b""

    def read(self, size, buffer):
        if isinstance(self.left[0], Exception):
            raise self.left[0]
        record = self.left.pop(0)
        assert len(record) <= size
        buffer[: len(record)] = record
        return len(record)

    def write(self, data):
        taken = bytes(data[:RECORD_BYTES])
        self.written += taken
        return len(taken)


class Encrypted:
    """A socket that knows TLS; of Python's own class with the object inside, of another without."""

    def __init__(self, records, own):
        if own:
            self._sslobj = records
        else:
            self.read, self.write = records.read, records.write

    def pending(self):
        return 0

    def setsockopt(self, *given):
        pass


@pytest.fixture(params=[True, False])
def relayed(request):
    """Builds a link; its plain far end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(LIMIT_S)

    def make(*records):
        found = Records(*records)
        link = TlsLink(2, Encrypted(found, request.param), ("127.0.0.1", 1), 0.0)
        link.near = ours
        return link, found, theirs

    with ours, theirs:
        yield make


def test_records_arrive_as_bytes_up_to_a_short_one(relayed):
    full = bytes(range(256)) * (RECORD_BYTES // 256)
    link, records, plain = relayed(full, b"end", b"later")
    assert not link.pump(memoryview(bytearray(1 << 18)), far=True, near=False)
    assert plain.recv(1 << 18, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == full + b"end"
    assert records.left == [b"later"]


def test_end_of_stream_without_farewell_is_the_end_of_what_came_before(relayed):
    link, _, plain = relayed(b"last", ssl.SSLEOFError(8, "EOF occurred"))
    buffer = memoryview(bytearray(1 << 18))
    link.pump(buffer, far=True, near=False)
    assert not link.far_ended
    link.pump(buffer, far=True, near=False)
    assert link.far_ended
    assert plain.recv(100) == b"last"
    assert plain.recv(100) == b""


def test_bytes_leave_record_by_record(relayed):
    link, records, plain = relayed(ssl.SSLWantReadError())
    data = bytes(3 * RECORD_BYTES + 5)
    plain.sendall(data)
    link.pump(memoryview(bytearray(1 << 18)), far=True, near=True)
    assert records.written == data
    assert link.up == b""
