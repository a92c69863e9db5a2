from typing import Any

HAS_INSTRUCTION: bool

def crc32c(data: Any, value: int = 0, *, by_tables: bool = False) -> int: ...
