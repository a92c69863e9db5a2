from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from snailps.roles.access import AccessMethod
from snailps.transport.session import ServerSession

class ShardThread:
    def __init__(
        self,
        listener: Any,
        make_session: Callable[[], ServerSession],
        row_ops: object,
        wire_ops: object,
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
        track: int = 0,
        method: AccessMethod | None = None,
    ) -> None: ...
    def close_round(self, number: int) -> int: ...
    def set_tick(self, tick: int) -> None: ...
    def delete(self, number: int, keys: ArrayLike) -> int: ...
    def expire(self, number: int, before_tick: int) -> int: ...
    def touched(self, number: int, keys: ArrayLike) -> NDArray[np.uint32]: ...
    def versions(self, number: int, keys: ArrayLike) -> NDArray[np.uint64]: ...
    def stats(self) -> dict[str, Any]: ...
