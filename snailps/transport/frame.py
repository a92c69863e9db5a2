"""The frame: the one definition of what travels on a snailps connection.

    bytes -> FrameDecoder.feed -> Frame ... -> messages.decode -> message
    message -> messages.encode -> Frame -> encode_frame -> bytes

A frame is a fixed little-endian header of 48 bytes and a body.  Owns the header, the kinds, the
flags and the limits.  Must not know what a body means, nor sockets, clocks or threads.  The
compiled side reads the same layout from `_frame.pxd`; `tests/unit/test_frame.py` holds both to the
same golden bytes, and docs/wire_format.md explains them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

import lz4.block

from snailps.dataclass import dataclass
from snailps.errors import MisuseError, ProtocolError

MAGIC = b"SNPS"
VERSION = 2
HEADER = struct.Struct("<4sBBHIIQQQQ")
HEADER_BYTES = HEADER.size

CONTROL_BODY_MAX = 256 << 20
"""Largest body of a control frame, bytes, packed or unpacked: a merged vocabulary fits."""

DATA_BODY_MAX = 1 << 20
"""Largest body of a data frame, bytes; a wide row needs more than `PART_BYTES`."""

HANDSHAKE_BODY_MAX = 4096
"""Largest body before a peer is authenticated, bytes."""

PART_BYTES = 64 << 10
"""Bytes of values in a part of a pull or push, or one row: it stays in cache."""

SCAN_FRAGMENTS_MAX = 1024
"""Most fragments of a SCAN: empty ones cost a turn of the shard, too."""

BATCHES_BYTES = 256 << 20
"""Largest size of the batches kept for a connection: 16 bytes an entry, 4 a float of dL/dZ."""

SLOTS_MAX = 4096
"""Largest number of slots of a clock."""


class Kind(enum.IntEnum):
    """Content of a frame.  Below 16: any connection; 16 to 31: data plane; from 32: control."""

    HELLO = 1
    PROOF = 2
    READY = 3
    ERROR = 4
    HEARTBEAT = 5

    PULL = 16
    PULLED = 17
    PUSH = 18
    PUSHED = 19
    SCAN = 20
    SCANNED = 21
    FORWARD = 22
    PRODUCT = 23
    BACKWARD = 24
    STEPPED = 25
    SEAL = 26
    SEALED = 27
    REACH = 28
    REACHED = 29
    REPLICATE = 30
    REPLICATED = 31

    CALL = 32
    ANSWER = 33
    NOTE = 34


class Flag(enum.IntFlag):
    PACKED = 1
    """Compressed: uint32 unpacked length, one lz4 block.  Control frames only."""


class Option(enum.IntFlag):
    """Properties of the keys and rows in the body of a PULL or PUSH.

    Further bits: 8 and 9 wire type of rows (`WIRE_TYPES`); 12 to 14 bytes of a key beyond a base
    common to the part, 0 = whole keys; 2 to 4 reserved, 0.
    """

    STATE = 1
    """Rows are weights and the optimizer's state."""
    ASSIGN = 2
    """PUSH: the values replace the rows."""
    CLOCK = 32
    """PULL: the rows at a clock.  PUSH: a contribution to a slot of a clock."""
    LR_SCALE = 1024
    """PUSH: the access method's step size is scaled."""


KINDS = frozenset(int(kind) for kind in Kind)
FLAGS = int(Flag.PACKED)
DATA_KINDS = frozenset(range(16, 32))


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, unpacked.

    `table` uint32, 0 for none; `epoch` uint32, of the sender's route, 0 before there is one; `job`
    and `incarnation` uint64, of the cluster and of the sender, 0 before registration; `request`
    uint64, chosen by the requester and repeated in the reply.
    """

    kind: Kind
    body: bytes = b""
    table: int = 0
    epoch: int = 0
    job: int = 0
    incarnation: int = 0
    request: int = 0


def encode_frame(frame: Frame, *, pack: bool = False) -> bytes:
    """Encode a frame; `pack`: compress a control body, if that makes it smaller.  MisuseError: the
    body is over its limit."""
    if pack and frame.kind not in DATA_KINDS:
        body, flags = pack_body(frame.kind, frame.body)
    else:
        body, flags = _within_limit(frame.kind, frame.body), 0
    return encode_header(frame, flags, len(body)) + body


def pack_body(kind: Kind, body: bytes) -> tuple[bytes, int]:
    """Return a body, compressed if that makes it smaller, and its flags.  Not for data frames.
    MisuseError: it is over its limit."""
    _within_limit(kind, body)
    # The bound is a guess, and was not measured: a short body is one small segment either way.
    if len(body) >= 512:
        packed = lz4.block.compress(body, store_size=True)
        if len(packed) < len(body):
            return packed, int(Flag.PACKED)
    return body, 0


def encode_header(frame: Frame, flags: int, body_bytes: int) -> bytes:
    """Encode the header of a frame whose body, of `body_bytes`, is sent separately."""
    return HEADER.pack(
        MAGIC,
        VERSION,
        frame.kind,
        flags,
        frame.table,
        frame.epoch,
        frame.job,
        frame.incarnation,
        frame.request,
        body_bytes,
    )


def _within_limit(kind: Kind, body: bytes) -> bytes:
    limit = body_limit(kind)
    if len(body) > limit:
        raise MisuseError(f"{kind.name} body of {len(body):,} bytes, limit {limit:,}")
    return body


def body_limit(kind: int) -> int:
    if kind < 16:
        return HANDSHAKE_BODY_MAX
    return DATA_BODY_MAX if kind in DATA_KINDS else CONTROL_BODY_MAX


class FrameDecoder:
    """Cut a byte stream into frames.  Sans-IO.

    `body_max` limits every body in addition to the limit of its kind: keep it low until a peer is
    authenticated. Lengths are checked before a body is stored or unpacked.
    """

    def __init__(self, body_max: int = CONTROL_BODY_MAX) -> None:
        self.body_max = body_max
        self._buffer = bytearray()
        self._need = HEADER_BYTES

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Yield each frame that `data` completes.  ProtocolError: the stream is lost, close it."""
        self._buffer += data
        # At the first bytes, not once a header is there: a peer of another protocol may have sent
        # fewer, and now waits for this side.
        if not MAGIC.startswith(self._buffer[:4]) and self._buffer[:4] != MAGIC:
            check_header(bytes(self._buffer[:4]), VERSION, 0, 0, 0, 0)
        while len(self._buffer) >= self._need:
            frame = self._next()
            if frame is not None:
                yield frame

    @property
    def pending_bytes(self) -> int:
        return len(self._buffer)

    @property
    def missing_bytes(self) -> int:
        """The most bytes to read that do not go past the end of the current frame."""
        return max(self._need - len(self._buffer), 0)

    def _next(self) -> Frame | None:
        magic, version, kind, flags, table, epoch, job, incarnation, request, body_bytes = (
            HEADER.unpack_from(self._buffer)
        )
        # Before the body is waited for: it takes as much memory as the header states.
        check_header(magic, version, kind, flags, body_bytes, self.body_max)
        if len(self._buffer) < HEADER_BYTES + body_bytes:
            self._need = HEADER_BYTES + body_bytes
            return None
        body = bytes(memoryview(self._buffer)[HEADER_BYTES : HEADER_BYTES + body_bytes])
        del self._buffer[: HEADER_BYTES + body_bytes]
        self._need = HEADER_BYTES
        if flags & Flag.PACKED:
            limit = min(self.body_max, body_limit(kind))
            body = unpack(body, limit)
        return Frame(Kind(kind), body, table, epoch, job, incarnation, request)


def check_header(
    magic: bytes, version: int, kind: int, flags: int, body_bytes: int, body_max: int
) -> None:
    """Raise ProtocolError, with the `code` for the peer, if a header is unknown or a body too
    long."""
    if magic[:2] == b"\x16\x03":  # how a TLS handshake begins
        raise ProtocolError("it uses TLS, and `tls` is not set here", "magic")
    if magic != MAGIC:
        raise ProtocolError(
            f"expected a snailps frame (magic {MAGIC!r}), got {magic!r}: is this a snailps peer?",
            "magic",
        )
    if version != VERSION:
        raise ProtocolError(
            f"peer speaks wire format {version}, this side {VERSION}: "
            "install the same snailps on every machine",
            "version",
        )
    if kind not in KINDS:
        raise ProtocolError(f"unknown frame kind {kind}", "kind")
    if flags & ~FLAGS or (flags and kind in DATA_KINDS):
        raise ProtocolError(f"unknown flags 0x{flags:04x} for frame kind {kind}", "flag")
    limit = min(body_max, body_limit(kind))
    if body_bytes > limit:
        raise ProtocolError(
            f"{Kind(kind).name} body of {body_bytes:,} bytes, limit {limit:,}", "too-long"
        )


def check_control_kind(frame: Frame) -> None:
    """Refuse kinds other than CALL and NOTE, and a CALL without a number."""
    if frame.kind not in (Kind.CALL, Kind.NOTE):
        raise ProtocolError(f"{frame.kind.name} on a control connection", "kind")
    if frame.kind == Kind.CALL and frame.request == 0:
        raise ProtocolError("CALL without a number", "request")


def unpack(packed: bytes, limit: int) -> bytes:
    """Unpack an lz4 body; ProtocolError: it is longer than `limit`, or damaged."""
    if len(packed) < 4:
        raise ProtocolError(f"packed body of {len(packed)} bytes, at least 4 expected", "packed")
    stated = int.from_bytes(packed[:4], "little")
    # lz4 allocates what is stated here, before it has seen whether the bytes unpack to that.
    if stated > limit:
        raise ProtocolError(f"packed body unpacks to {stated:,} bytes, limit {limit:,}", "too-long")
    try:
        body: bytes = lz4.block.decompress(packed)
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise ProtocolError(f"damaged packed body: {error}", "packed") from None
    if len(body) != stated:
        raise ProtocolError(f"packed body unpacks to {len(body):,}, states {stated:,}", "packed")
    return body
