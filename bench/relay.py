#!/usr/bin/env python3
"""Carries Ethernet frames between two devices, each frame late by as much.

    python relay.py FD FD MILLISECONDS        until either device is gone

The descriptors are of TAP devices; `netns.py` makes them.  Order is kept, nothing is dropped, and
there is no limit of bytes: that is for the wires.
"""

import os
import select
import sys
import time
from collections import deque

FRAME_BYTES = 1 << 16


def carry(one: int, other: int, delay_s: float) -> None:
    """Carries frames both ways until a device is gone."""
    ways = {one: (other, deque[tuple[float, bytes]]()), other: (one, deque[tuple[float, bytes]]())}
    for fd in ways:
        os.set_blocking(fd, False)
    while True:
        dues = [late[0][0] for _, late in ways.values() if late]
        wait_s = max(0.0, min(dues) - time.monotonic()) if dues else None
        readable, _, _ = select.select(list(ways), (), (), wait_s)
        now = time.monotonic()
        for fd in readable:
            try:
                while frame := os.read(fd, FRAME_BYTES):
                    ways[fd][1].append((now + delay_s, frame))
                return
            except BlockingIOError:
                pass
        now = time.monotonic()
        for to, late in ways.values():
            while late and late[0][0] <= now:
                select.select((), (to,), ())
                os.write(to, late.popleft()[1])


if __name__ == "__main__":
    carry(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000)
