from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from snailps.store._store import ShardStore

def copy_fragments(
    store: ShardStore, fragments: NDArray[Any], start: int, buffer: NDArray[Any]
) -> tuple[int, int, list[tuple[int, int, int, int]]]: ...
def put_section(
    store: ShardStore, section: NDArray[Any], tables: Mapping[int, int], marks: bool
) -> int: ...
