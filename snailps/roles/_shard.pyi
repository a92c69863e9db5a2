from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import ArrayLike

from snailps.transport.session import ServerSession

class ShardThread:
    def __init__(
        self,
        listener: Any,
        make_session: Callable[[], ServerSession],
        row_ops: object,
        frag_num: int,
        park_limit_s: float,
        name: str,
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self, timeout_s: float = 5.0) -> bool: ...
    def take_route(self, epoch: int, fragments: ArrayLike) -> None: ...
    def add_table(
        self,
        number: int,
        dim: int,
        access: int,
        init: int,
        scale: float,
        seed: int,
        hyper: Sequence[float],
    ) -> None: ...
    def stats(self) -> dict[str, Any]: ...
