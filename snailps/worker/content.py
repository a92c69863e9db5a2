"""The bytes of a leased block: from the files of this host, else from the master.

    piece, layout -> LeasedContent -> read, read_texts, head, open_parts -> Block.data, .texts, ...

Owns which bytes the master is asked for: bytes that this host cannot read (`DataError`), but never
those of a driver's file, which only the worker beside the driver has.  `leases.py` passes `fetch`,
which asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from snailps.api.block import BlockContent
from snailps.errors import DataError
from snailps.files.blocks import HEAD, Place, Unit, read_head
from snailps.files.driver_files import is_driver_file
from snailps.files.joined import (
    Range,
    Text,
    TextParts,
    open_parts,
    place_in_text,
    read_text,
    texts_of,
)
from snailps.files.scratch import Scratch
from snailps.pieces import Layout, Piece

Fetch = Callable[[DataError, str, int], bytes]
"""``fetch(error, unit, text)``: the master's copy of a text, or of a head, that `error` denies."""


class LeasedContent(BlockContent):
    """The content of one lease; `unit` is what its model reads, lines or words."""

    def __init__(
        self, piece: Piece, layout: Layout, unit: Unit, scratch: Scratch, fetch: Fetch
    ) -> None:
        self._piece, self._layout, self._unit = piece, layout, unit
        self._scratch, self._fetch = scratch, fetch
        self._files, self._by_file = layout.joined(piece)
        for file in self._files:
            scratch.expect(file.path, file.version)

    @property
    def place(self) -> Place | None:
        if self._layout.files:
            return self._place_in_files
        return self._place_in_file if self._layout.spread else None

    @property
    def read_texts(self) -> Callable[[], Sequence[Text]] | None:
        return self._read_texts if self._layout.files else None

    def read(self) -> bytes:
        return b"".join(text.data for text in self._read_texts())

    def head(self) -> bytes:
        return self._or_fetched(partial(read_head, self._files[0].path, self._scratch), HEAD, 0)

    def open_parts(self, part_bytes: int) -> TextParts | None:
        piece, spread = self._piece, self._layout.spread
        return open_parts(self._files, piece.start, piece.stop, part_bytes, self._scratch, spread)

    def _ranges(self) -> list[list[Range]]:
        piece, spread = self._piece, self._layout.spread
        return texts_of(self._files, piece.start, piece.stop, spread, by_file=self._by_file)

    def _read_texts(self) -> list[Text]:
        by_file, unit, scratch = self._by_file, self._unit, self._scratch
        texts: list[Text] = []
        for ranges in self._ranges():
            read = partial(read_text, ranges, scratch, by_file=by_file, unit=unit)
            data = self._or_fetched(read, unit, len(texts))
            place = partial(place_in_text, ranges, scratch, by_file=by_file, unit=unit)
            texts.append(Text(data, ranges[0].file.path, ranges[0].first, place))
        return texts

    def _place_in_file(self, offset: int) -> tuple[str, int]:
        ranges = self._ranges()[0]
        return place_in_text(ranges, self._scratch, offset, by_file=True, unit=self._unit)

    def _place_in_files(self, offset: int) -> tuple[str, int]:
        return self._piece.path, -1

    def _or_fetched(self, read: Callable[[], bytes], unit: str, text: int) -> bytes:
        """Read here, or else get the master's copy."""
        try:
            return read()
        except DataError as error:
            if is_driver_file(self._piece.path):  # the master does not have it either
                raise
            return self._fetch(error, unit, text)
