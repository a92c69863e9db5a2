"""The handshake, both sides in memory: what passes, and that nothing else does."""

import hmac
import json
from dataclasses import replace

import pytest
from cases import examples
from hypothesis import given
from hypothesis import strategies as st

from snailps.errors import ConnectionLost, ProtocolError, RemoteError, SnailError
from snailps.outward import printable
from snailps.transport.frame import (
    HANDSHAKE_BODY_MAX,
    Frame,
    FrameDecoder,
    Kind,
    encode_frame,
)
from snailps.transport.handshake import (
    Channel,
    ClientSession,
    Hello,
    Role,
    ServerSession,
    error_frame,
    remote_error,
)

NONCE_C, NONCE_S = b"c" * 16, b"s" * 16
SECRET = b"between us"


def pair(secret_c=SECRET, secret_s=SECRET, admit=None):
    client = ClientSession(Hello(Channel.DATA, Role.WORKER, NONCE_C, 3, 4, 5), secret_c)
    server = ServerSession(Hello(Channel.DATA, Role.SERVER, NONCE_S, 1, 2, 5), secret_s, admit)
    return client, server


def walk(client, server):
    """The four frames of a handshake, in order."""
    hello_c = client.start()
    hello_s = server.receive(hello_c)
    proof = client.receive(hello_s)
    ready = server.receive(proof)
    assert client.receive(ready) is None
    return [hello_c, hello_s, proof, ready]


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_handshake_with_equal_secrets_makes_both_sides_ready(secret):
    client, server = pair(secret, secret)
    frames = walk(client, server)
    assert [frame.kind for frame in frames] == [Kind.HELLO, Kind.HELLO, Kind.PROOF, Kind.READY]
    assert client.ready
    assert server.ready
    assert server.peer == Hello(Channel.DATA, Role.WORKER, NONCE_C, 3, 4, 5)
    assert (client.peer.role, client.peer.node, client.peer.incarnation) == (Role.SERVER, 1, 2)


def test_handshake_has_known_bytes():
    """A change here is a change of the wire format: raise its version."""
    hello = Hello(Channel.DATA, Role.WORKER, bytes(range(16)), 3, 4, 5, agent="0.1")
    client = ClientSession(hello, b"k")
    server = ServerSession(replace(hello, role=Role.SERVER, nonce=bytes(16)), b"k")
    hello_c, hello_s, proof, ready = walk(client, server)
    assert hello_c.body.hex() == (
        "03 03 0000 03000000 000102030405060708090a0b0c0d0e0f".replace(" ", "")
        + "00" * 32 + "302e31"
    )  # fmt: skip
    assert hello_s.body[:24].hex() == "0302000003000000" + "00" * 16
    signed = hello_c.body + hello_s.body[:24] + bytes(32) + hello_s.body[56:]
    signed += b"".join(number.to_bytes(8, "little") for number in (5, 4, 5, 4))
    assert hello_s.body[24:56] == hmac.digest(b"k", b"server" + signed, "sha256")
    assert proof.body == hmac.digest(b"k", b"client" + signed, "sha256")
    assert ready.body == b""


@pytest.mark.parametrize(
    ("secret_c", "secret_s"), [(SECRET, b"other"), (SECRET, b""), (b"", SECRET)]
)
def test_client_refuses_a_server_that_does_not_know_the_secret(secret_c, secret_s):
    client, server = pair(secret_c, secret_s)
    with pytest.raises(ProtocolError, match="does not know this cluster's secret") as caught:
        client.receive(server.receive(client.start()))
    assert caught.value.code == "secret"
    assert not client.ready


@pytest.mark.parametrize("secret", [b"", SECRET])
@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 4096])
def test_server_refuses_a_proof_of_zeros_of_any_length(secret, length):
    client, server = pair(secret, secret)
    server.receive(client.start())
    with pytest.raises(ProtocolError, match="wrong secret"):
        server.receive(Frame(Kind.PROOF, bytes(length)))
    assert not server.ready


def test_proof_of_another_handshake_is_refused():
    """A replay: the server's nonce is fresh, so an overheard proof is worth nothing."""
    frames = walk(*pair())
    server = ServerSession(Hello(Channel.DATA, Role.SERVER, b"S" * 16, 1, 2, 5), SECRET)
    server.receive(frames[0])
    with pytest.raises(ProtocolError, match="wrong secret"):
        server.receive(frames[2])


def test_replayed_hello_of_the_server_is_refused():
    """A replay the other way: the client's nonce is fresh too."""
    frames = walk(*pair())
    client = ClientSession(Hello(Channel.DATA, Role.WORKER, b"C" * 16, 3, 4, 5), SECRET)
    client.start()
    with pytest.raises(ProtocolError, match="secret"):
        client.receive(frames[1])


def test_reflected_mac_is_refused():
    """The server's own MAC sent back as the proof: the labels differ by direction."""
    client, server = pair()
    hello_s = server.receive(client.start())
    with pytest.raises(ProtocolError, match="wrong secret"):
        server.receive(Frame(Kind.PROOF, hello_s.body[24:56]))


def test_reflected_hello_is_refused():
    """A mirror that knows no secret sends every frame back."""
    client, _ = pair()
    with pytest.raises(ProtocolError, match="secret"):
        client.receive(client.start())


def test_client_that_is_answered_through_a_second_server_session_is_no_oracle():
    """An attacker relays the client's HELLO to another server and its MAC back: roles differ."""
    client, _ = pair()
    other = ServerSession(Hello(Channel.DATA, Role.MASTER, NONCE_S, 1, 2, 5), SECRET)
    relayed = other.receive(client.start())
    forged = replace(relayed, body=bytes([Channel.DATA, Role.SERVER]) + relayed.body[2:])
    with pytest.raises(ProtocolError, match="secret"):
        client.receive(forged)


def test_server_refuses_frames_in_the_wrong_order():
    for kind in Kind:
        if kind != Kind.HELLO:
            with pytest.raises(ProtocolError, match=f"expected HELLO first, got {kind.name}"):
                pair()[1].receive(Frame(kind))
        if kind != Kind.PROOF:
            client, server = pair()
            server.receive(client.start())
            with pytest.raises(ProtocolError, match=f"expected PROOF, got {kind.name}"):
                server.receive(Frame(kind))


def test_client_refuses_frames_in_the_wrong_order():
    for kind in Kind:
        if kind not in (Kind.HELLO, Kind.ERROR):
            with pytest.raises(ProtocolError, match="expected HELLO first"):
                pair()[0].receive(Frame(kind))
        if kind not in (Kind.READY, Kind.ERROR):
            client, server = pair()
            client.receive(server.receive(client.start()))
            with pytest.raises(ProtocolError, match="expected READY"):
                client.receive(Frame(kind))


def test_server_takes_nothing_after_the_handshake():
    client, server = pair()
    frames = walk(client, server)
    with pytest.raises(ProtocolError, match="after the handshake"):
        server.receive(frames[2])


def test_client_passes_on_what_the_server_refuses():
    client, server = pair()
    client.receive(server.receive(client.start()))
    with pytest.raises(RemoteError, match="not here") as caught:
        client.receive(error_frame(ProtocolError("not here", "channel")))
    assert caught.value.code == "channel"


def test_admit_is_asked_after_the_proof_and_may_refuse():
    asked = []

    def admit(hello):
        asked.append(hello)
        raise ProtocolError("full", "full")

    client, server = pair(admit=admit)
    proof = client.receive(server.receive(client.start()))
    assert asked == []
    with pytest.raises(ProtocolError, match="full"):
        server.receive(proof)
    assert asked == [server.peer]
    assert not server.ready


def test_admit_is_not_asked_about_a_client_without_the_secret():
    client, server = pair(b"wrong", admit=lambda hello: pytest.fail("asked"))
    server.receive(client.start())
    with pytest.raises(ProtocolError, match="wrong secret"):
        server.receive(Frame(Kind.PROOF, b"\x01" * 32))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "HELLO of 0 bytes, 56 to 120"),
        (bytes(55), "HELLO of 55 bytes"),
        (bytes(121), "HELLO of 121 bytes"),
        (bytes(56), "unknown channel 0 or role 0"),
        (bytes([9, 1]) + bytes(54), "unknown channel 9"),
        (bytes([1, 9]) + bytes(54), "role 9"),
        (bytes([1, 1, 1]) + bytes(53), "reserved"),
        (bytes([1, 1, 0, 128]) + bytes(52), "reserved"),
        (bytes([1, 1]) + bytes(54) + b"\xff", "ASCII"),
        (bytes([1, 1]) + bytes(22) + b"\x01" + bytes(31), "carries no MAC"),
    ],
)
def test_server_refuses_a_malformed_hello(body, words):
    with pytest.raises(ProtocolError, match=words):
        pair()[1].receive(Frame(Kind.HELLO, body))


def test_every_bit_of_every_handshake_frame_matters():
    """With one bit of kind, job, incarnation or body changed, no side gets ready."""
    good = walk(*pair())
    for number, frame in enumerate(good):
        whole = bytearray(encode_frame(frame))
        # Not looked at: table, epoch and request; job and incarnation except in a HELLO.
        named = range(16, 32) if frame.kind == Kind.HELLO else ()
        for at in [*range(8), *named, *range(48, len(whole))]:
            for bit in range(8):
                whole[at] ^= 1 << bit
                assert not survives(number, bytes(whole)), f"frame {number}, byte {at}, bit {bit}"
                whole[at] ^= 1 << bit


def survives(number, data):
    """Whether the handshake succeeds when its frame `number` arrives as `data`."""
    client, server = pair()
    frame = client.start()
    for step in range(4):
        if step == number:
            try:
                (frame,) = FrameDecoder(HANDSHAKE_BODY_MAX).feed(data)
            except (ProtocolError, ValueError):
                return False
        try:
            frame = client.receive(frame) if step % 2 else server.receive(frame)
        except SnailError:
            return False
    return client.ready and server.ready


def test_unchanged_frames_survive():
    for number, frame in enumerate(walk(*pair())):
        assert survives(number, encode_frame(frame))


@examples(100)
@given(st.lists(st.builds(Frame, st.sampled_from(list(Kind)), st.binary(max_size=130)), max_size=4))
def test_server_fed_any_frames_never_gets_ready_without_the_secret(frames):
    _, server = pair()
    for frame in frames:
        try:
            server.receive(frame)
        except ProtocolError:
            break
    assert not server.ready


# --- errors as frames ----------------------------------------------------------------------------


def test_error_travels_with_code_and_text():
    frame = error_frame(ProtocolError('a "quoted" \n text', "kind"), 7)
    assert (frame.kind, frame.request) == (Kind.ERROR, 7)
    error = remote_error(frame)
    assert (str(error), error.code) == ('a "quoted" \n text', "kind")


def test_error_without_a_code_gets_one():
    assert remote_error(error_frame(ConnectionLost("gone"))).code == "error"


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\u4e2d", "\U0001f40c", "\x00", '"', "\udc80"])
def test_error_with_a_long_text_fits_its_frame(letter):
    """One text of 10,000 letters, however many bytes each of them takes on the wire."""
    frame = error_frame(ProtocolError(letter * 10_000))
    assert len(encode_frame(frame)) <= 48 + HANDSHAKE_BODY_MAX
    text = str(remote_error(frame))
    assert len(text) > 400
    assert set(text) == set(printable(letter))  # a control character is escaped


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"code":1}', b"\xff\xfe", b'"x"'])
def test_unreadable_error_is_still_an_error(body):
    assert "unreadable" in str(remote_error(Frame(Kind.ERROR, body)))


def test_error_body_is_json_with_code_and_text():
    assert json.loads(error_frame(ProtocolError("a", "b")).body) == {"code": "b", "text": "a"}
