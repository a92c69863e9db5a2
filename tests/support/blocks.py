"""Blocks whose bytes a test holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from snailps.api.block import Block, BlockContent
from snailps.files.joined import Text
from snailps.pieces import Piece


class HeldContent(BlockContent):
    """The content of a block: bytes, or a function that returns them."""

    def __init__(
        self,
        data: bytes | Callable[[], bytes] = b"",
        head: bytes = b"",
        texts: Sequence[Text] | None = None,
    ) -> None:
        self._data, self._head, self._texts = data, head, texts

    @property
    def read_texts(self) -> Callable[[], Sequence[Text]] | None:
        texts = self._texts
        return None if texts is None else lambda: texts

    def read(self) -> bytes:
        return self._data if isinstance(self._data, bytes) else self._data()

    def head(self) -> bytes:
        return self._head


def held_block(
    content: bytes | Callable[[], bytes] | BlockContent = b"",
    number: int = 0,
    piece: Piece | None = None,
    *,
    epoch: int = 0,
    seed: int = 7,
    progress: tuple[float, float] = (0.0, 0.5),
    **more: Any,
) -> Block:
    """A block with this content; `piece` is its place, by default a text of its own."""
    if piece is None:
        piece = Piece("text", 0, len(content) if isinstance(content, bytes) else 0)
    if not isinstance(content, BlockContent):
        content = HeldContent(content)
    return Block(number, piece, epoch, seed, progress, content, **more)
