"""Owns the input of a job at the master: its files, and the blocks into which they are cut.

    settings.input -> files -> blocks -> leases      a block that a worker cannot open -> its bytes

Keeps unpacked copies of the input while the job lasts. Must not know leases or passes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.api.plain_values import plain_number
from snailps.api.traits import Cut, trait_of
from snailps.api.worker import Worker
from snailps.config import JobSettings
from snailps.config.consistency import steps_of
from snailps.config.output import refuse_sources
from snailps.config.quoting import split_list
from snailps.dataclass import replace
from snailps.errors import ConfigError
from snailps.files.atomic import human_bytes
from snailps.files.blocks import HEAD, InputFile, Unit, cut, expand, read_head
from snailps.files.driver_files import PREFIX, is_driver_file
from snailps.files.input_files import InputFiles
from snailps.files.joined import Joined, join, read_text, texts_of
from snailps.files.scratch import Scratch
from snailps.master.job.state import JobState
from snailps.outward import distinct_names, without_secrets
from snailps.pieces import Layout, Piece

log = logging.getLogger(__name__)
BLOCKS_LEAST = 50
"""Least number of blocks a worker in an async job with few epochs (a lease takes about 1 ms)."""


class JobInput:
    """Files and blocks; none before `find`."""

    def __init__(self, cls: type[Worker], settings: JobSettings) -> None:
        self._cls, self._settings = cls, settings
        self._trait = trait_of(cls, Cut)
        self._scratch = Scratch(
            settings.scratch_dir,
            settings.scratch_bytes,
            tables=self._trait.reading(settings),
        )
        self._sources: list[InputFile] = []
        self._outward: dict[str, str] = {}  # by path, its name in files that others read
        self._joined: dict[str, Joined] | None = None
        # seed by which blocks are drawn, each spread over its file or files; None: in file order
        self.order: int | None = None
        self._versions: dict[str, str] = {}
        self.total_bytes = 0  # of all files
        self.blocks: Sequence[Piece] = []  # of one epoch
        self._cuts: tuple[Sequence[Piece], list[str], NDArray[np.int64]] | None = None
        self.block_bytes = 0  # about; 0 where the model cuts its input itself

    @property
    def sources(self) -> list[tuple[str, int]]:
        """Name for others, and length, of each input file."""
        return [(self._outward[source.path], source.bytes) for source in self._sources]

    def find(self) -> None:
        """Find the files; may unpack, which takes long."""
        self._sources = expand(self._settings.input, self._scratch)
        if self._settings.output:  # by now also files of folders and patterns
            written = self._cls.result_files(self._settings)
            refuse_sources(written, (source.path for source in self._sources))
        self._outward = distinct_names([source.path for source in self._sources])
        self._versions = {
            source.path: self._scratch.version(source.path) for source in self._sources
        }
        self.total_bytes = sum(source.bytes for source in self._sources)

    @property
    def found(self) -> InputFiles:
        """The files as `find` found them, for what the model decides by them."""
        return InputFiles(self._sources, self._scratch)

    def cut(self, settings: JobSettings, workers: int, counted: int) -> None:
        """Cut the files, by the workers present and as models count them (`counted`)."""
        self._settings = settings
        size = settings.block_bytes or plain_number(
            self._cls,
            "block_bytes",
            self._trait.block_bytes(settings, self.total_bytes, counted),
            int,
        )
        most = -(-self.total_bytes // 10)
        if steps_of(settings).order_is_free:  # else a step consists of blocks
            of_job = self.total_bytes * min(settings.epochs, BLOCKS_LEAST)
            most = max(most, -(-of_job // (BLOCKS_LEAST * counted)))
        pieces = self._trait.pieces(settings, self._sources, workers)
        is_drawn = pieces is None and self._trait.shuffles(settings)
        self.order = settings.seed if is_drawn else None
        if pieces is None:
            self._cut(max(1, min(size, most)))
            if size > most and settings.block_bytes:
                log.warning(
                    "block_bytes: %s is too much for an input of %s: its blocks have %s, so that "
                    "an epoch has %d. With a step of several blocks, set micro_batches by that",
                    human_bytes(size), human_bytes(self.total_bytes), human_bytes(most),
                    len(self.blocks),
                )  # fmt: skip
        else:
            self.blocks = [self._piece(piece) for piece in pieces]

    def _piece(self, piece: Sequence[Any]) -> Piece:
        path, start, stop = piece
        number = partial(plain_number, self._cls, "pieces", kind=int)
        return Piece(plain_number(self._cls, "pieces", path, str), number(start), number(stop))

    def fit(self, summary: bytes) -> None:
        """Cut the files anew by the survey: no block grows. Pieces that the model cut stay."""
        if not self.block_bytes:
            return
        size = plain_number(
            self._cls,
            "fit_block",
            self._trait.fit_block(self._settings, self.block_bytes, self.total_bytes, summary),
            int,
        )
        self._cut(max(1, min(size, self.block_bytes)))

    def dump(self) -> tuple[dict[str, Any], NDArray[np.int64]]:
        """The input of a `JobState`; takes long for the first time since it was cut."""
        if self._cuts is None or self._cuts[0] is not self.blocks:
            places: dict[str, int] = {}
            cuts = [
                (places.setdefault(block.path, len(places)), block.start, block.stop)
                for block in self.blocks
            ]
            names = [self._outward.get(path) or without_secrets(path) for path in places]
            self._cuts = self.blocks, names, np.array(cuts, "<i8").reshape(-1, 3)
        _, paths, cut_array = self._cuts
        return {"sources": self.sources, "paths": paths, "block_bytes": self.block_bytes}, cut_array

    def load(self, state: JobState) -> None:
        self.blocks, self.block_bytes = state.blocks, int(state.about["block_bytes"])
        names = state.names
        paths = {name: path for path, name in self._outward.items() if name != path}
        if paths:  # of this run: a signature may be another one by now
            now = {path: paths.get(name, path) for path, name in names}
            self.blocks = [replace(block, path=now[block.path]) for block in state.blocks]
        self.order = state.figures.get("order")
        self._cuts = self.blocks, [name for _, name in names], state.arrays["cuts"]

    def layout(self, piece: Piece) -> Layout:
        """How the bytes of a piece are found."""
        version = self._versions.get(piece.path, "")  # empty: it is read as it is
        joined = self._spread_files().get(piece.path)
        if joined is None:
            return Layout(version)
        spread, files = joined.source.bytes, joined.files(piece.start, piece.stop)
        if files[0].path == piece.path:  # the piece names its file
            return Layout(version, spread)
        return Layout(version, spread, tuple(files), joined.by_file)

    def _spread_files(self) -> dict[str, Joined]:
        """Files over which blocks are spread, by the name that their blocks have."""
        if self.order is None:
            return {}
        if self._joined is None:
            joined = join(self._sources, self._scratch, self._trait.unit)
            self._joined = {whole.source.path: whole for whole in joined}
        return self._joined

    def read(self, piece: Piece, unit: str, text: int = 0) -> bytes:
        """Bytes of a piece in a unit, of one text of a piece over several, or a head (`HEAD`)."""
        layout = self.layout(piece)
        files, by_file = layout.joined(piece)
        if unit == HEAD:
            return read_head(files[0].path, self._scratch)
        texts = texts_of(files, piece.start, piece.stop, layout.spread, by_file=by_file)
        if text >= len(texts):
            return b""
        of: Unit = "word" if unit == "word" else "line"
        return read_text(texts[text], self._scratch, by_file=by_file, unit=of)

    def close(self) -> None:
        """Remove unpacked input; idempotent."""
        self._scratch.close()
        self._scratch.clean()

    def _cut(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        if self.order is None:
            self.blocks = cut(self._sources, block_bytes)
            return
        places = ((path, joined.cut(block_bytes)) for path, joined in self._spread_files().items())
        self.blocks = [Piece(path, start, stop) for path, cuts in places for start, stop in cuts]


def address_of(path: str) -> str:
    """``HOST:PORT`` of the process that has a driver's file."""
    return path.removeprefix(PREFIX).partition("/")[0]


def check_driver_files(texts: Mapping[str, str], files: Collection[str] = ()) -> None:
    """Refuse settings that name data of a Python process, except `files`, that process's own."""
    for name, text in texts.items():
        if PREFIX not in text:
            continue
        try:
            paths = split_list(text)
        except ValueError:  # not a list; one of its own kind is refused elsewhere
            paths = [text]
        for path in paths:
            if is_driver_file(path) and path not in files:
                raise ConfigError(
                    f"{name}: {path:.80} names data that a Python process has, which only that "
                    "process can name: give the data to fit, or to the cluster's run"
                )
