from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from snailps.transport.handshake import ServerSession
from snailps.transport.sockets import Listener

T = TypeVar("T")

class ShardLoop:
    def __init__(
        self,
        listener: Listener,
        make_session: Callable[[], ServerSession],
        park_limit_s: float = 60.0,
        silence_limit_s: float = 30.0,
        stuck_limit_s: float = 24.0,
    ) -> None: ...
    def run(self) -> None: ...
    def turn(self, now: float) -> bool: ...
    def post(self, function: Callable[[], T], at_standby: bool = False) -> Future[T]: ...
    def submit(
        self, function: Callable[[], T], timeout_s: float = 60.0, at_standby: bool = False
    ) -> T: ...
    def stop(self) -> None: ...
    def wake(self) -> None: ...
    def counters(self) -> dict[str, int]: ...
