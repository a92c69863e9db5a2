"""A message encoded and packed once, for all its receivers.

    message -> Encoded -> SendQueue of each peer

Must not know sockets, clocks or threads.
"""

from __future__ import annotations

from snailps.transport import messages
from snailps.transport.frame import Kind, pack_body


class Encoded:
    """A message as the body of a control frame, encoded and packed once; made in any thread."""

    __slots__ = ("body", "flags")

    def __init__(self, message: messages.Message) -> None:
        self.body, self.flags = pack_body(Kind.CALL, messages.encode(message))
