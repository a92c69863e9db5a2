from collections.abc import Callable
from typing import TypeVar

from snailps.transport.session import ServerSession
from snailps.transport.sockets import Listener

T = TypeVar("T")

class ShardLoop:
    def __init__(
        self,
        listener: Listener,
        make_session: Callable[[], ServerSession],
        park_limit_s: float = 60.0,
    ) -> None: ...
    def run(self) -> None: ...
    def submit(self, function: Callable[[], T], timeout_s: float = 60.0) -> T: ...
    def stop(self) -> None: ...
    def wake(self) -> None: ...
    def counters(self) -> dict[str, int]: ...
