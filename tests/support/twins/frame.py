"""Names for what only compiled code uses of `_frame.pxd`: limits, options, kinds of records."""

import enum

STREAM_BODY_MAX = 8 << 20
"""Largest body of a frame to a standby, bytes: a push of `DATA_BODY_MAX`, its keys written out."""
ROW_BYTES_MAX = 256 << 10
"""Largest row of weights, bytes."""
EXAMPLE_ENTRIES_MAX = 65_536
"""Largest number of entries that an example of a FORWARD may have at one shard: one part."""
BATCHES = 8
"""Batches that a shard keeps for a connection; a ninth takes the place of the first."""


class Replica(enum.IntEnum):
    """What a REPLICATE carries, as its first word says."""

    BEGIN = 1
    """Fragments of the stream, clock and tick of the primary, fenced incarnations."""
    STAGED = 2
    """Contributions to a slot of the clock, or what is summed of them already."""
    SLOTS = 3
    """Which slots are sealed."""
    FRAGMENT = 4
    """A fragment begins anew: its push marks."""
    ROWS = 5
    """Rows of a table in it."""
    WHOLE = 6
    """... and that was all of it."""
    SEEDED = 7
    """The standby has all: from here on pushes are acknowledged when it has them."""
    ORDER = 8
    """What the master had the primary do."""
    RESUME = 9
    RETENTION = 10
    """In place of BEGIN, for a standby that has all: clock and tick, which are the same there."""


class ProductOption(enum.IntFlag):
    """What a FORWARD or BACKWARD carries; in their bodies.

    Besides these bits: bits 8 and 9 are the wire type of the rows of Z or dL/dZ, bits 12 to 14
    the bytes that a key takes beyond a base, as in `frame.Option`.
    """

    KEEP = 1
    """FORWARD: the shard keeps this batch for a BACKWARD."""
    QUIET = 2
    """FORWARD: keep it only; the reply is empty."""
    ONES = 4
    """FORWARD: every value is 1 and none travels."""
    STORED = 8
    """FORWARD: a key without a row counts 0, not its first value."""
