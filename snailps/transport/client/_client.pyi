from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCANS_AHEAD: int

class Pending:
    @property
    def done(self) -> bool: ...
    @property
    def rows(self) -> NDArray[np.float32]: ...
    def wait(self, timeout_s: float | None = None) -> NDArray[np.float32]: ...
    def abandon(self) -> None: ...

class Forward(Pending):
    @property
    def wire(self) -> int: ...

class Client:
    @property
    def names(self) -> list[str]: ...
    @property
    def timeout_s(self) -> float: ...
    def __init__(
        self,
        connect: Callable[[int], int],
        names: Sequence[str],
        owner: NDArray[np.generic],
        epoch: int,
        job: int,
        incarnation: int,
        timeout_s: float = 60.0,
        wire_ops: object = None,
        failover_s: float = 0.0,
    ) -> None: ...
    def start(self) -> None: ...
    def know_tables(self, tables: Mapping[int, tuple[str, bool]]) -> None: ...
    def pull_async(
        self,
        table: int,
        keys: NDArray[np.uint64],
        rows: NDArray[np.float32],
        state: bool = False,
        wire: int = 0,
        ahead: bool = False,
        clock: int = -1,
    ) -> Pending: ...
    def push_async(
        self,
        table: int,
        keys: NDArray[np.uint64],
        values: NDArray[np.float32],
        state: bool = False,
        merge: bool = False,
        wire: int = 0,
        feedback: bool = True,
        clock: int = -1,
        slot: int = 0,
        lr_scale: float = 1.0,
    ) -> Pending: ...
    def pull(
        self,
        table: int,
        keys: NDArray[np.uint64],
        rows: NDArray[np.float32],
        state: bool = False,
        wire: int = 0,
        clock: int = -1,
    ) -> NDArray[np.float32]: ...
    def push(
        self,
        table: int,
        keys: NDArray[np.uint64],
        values: NDArray[np.float32],
        state: bool = False,
        merge: bool = False,
        wire: int = 0,
        feedback: bool = True,
        clock: int = -1,
        slot: int = 0,
        lr_scale: float = 1.0,
    ) -> None: ...
    def seal_async(self, clock: int, slot: int, slots: int) -> Pending: ...
    def reach_async(self, clock: int) -> Pending: ...
    def forward_async(
        self,
        table: int,
        ptr: NDArray[np.int64],
        keys: NDArray[np.uint64],
        values: NDArray[np.float32] | None,
        dim: int,
        wire: int = 0,
        keep: bool = True,
    ) -> Forward: ...
    def backward_async(
        self,
        forward: Forward,
        gradient: NDArray[np.float32],
        wire: int = 0,
        lr_scale: float = 1.0,
    ) -> Pending: ...
    def cork(self) -> None: ...
    def uncork(self) -> None: ...
    def scan(
        self,
        table: int,
        dim: int,
        fragments: Iterable[int],
        ended: Callable[[], object] | None = None,
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float32]]]: ...
    def correct(
        self, pull: Pending, push: Pending, base: NDArray[np.float32] | None = None
    ) -> int: ...
    def flush(self, timeout_s: float | None = None) -> None: ...
    def open_pushes(self) -> list[Pending]: ...
    def reroute(self, epoch: int, names: Sequence[str]) -> None: ...
    def waits(self) -> list[list[Any]]: ...
    def fail(self, text: str) -> None: ...
    def drop_residues(self) -> None: ...
    @property
    def residue_bytes(self) -> int: ...
    residue_bytes_max: int
    def goodput(self) -> tuple[int, float]: ...
    def counters(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
    def cut(self, shard: int) -> None: ...
