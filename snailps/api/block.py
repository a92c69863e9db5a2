"""A block: a leased piece of input as a model sees it, and the step that each thread works in.

    lease -> Block -> Worker.prepare -> Worker.train
    block in preparation or training -> CurrentClockSlots.at, now -> clock, slot

A block has a piece of the input and its terms, and reads its bytes once.  In a job with clocks, the
threads of a worker may be in different steps: the preparing thread in the step of its block, all
others in the step of the block in training.  Knows no lease and no file.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from snailps.api.rotation import Checkouts, NoCheckouts
from snailps.dataclass import dataclass, field
from snailps.errors import MisuseError
from snailps.files.blocks import Place
from snailps.files.joined import Text, TextParts
from snailps.pieces import Piece
from snailps.transport.client._client import Pending
from snailps.transport.messages.terms import Terms

T = TypeVar("T")


class _Term(Generic[T]):
    """An attribute of a block that reads the field of the same name of its terms.

    Its value is `absent` if the block has no terms, or terms without that field.
    """

    def __init__(self, absent: T) -> None:
        self._absent = absent

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, block: Block | None, owner: type) -> T:
        value: T = getattr(block.terms if block is not None else None, self._name, self._absent)
        return value


class BlockContent:
    """The bytes of a block, read when they are asked for; this base has none."""

    @property
    def place(self) -> Place | None:
        return None

    @property
    def read_texts(self) -> Callable[[], Sequence[Text]] | None:
        return None

    def read(self) -> bytes:
        return b""

    def head(self) -> bytes:
        return b""

    def open_parts(self, part_bytes: int) -> TextParts | None:
        return None


@dataclass(slots=True)
class Block:
    """A piece of input that is leased to this worker.

    Attributes
    ----------
    number : int
        Number of the lease, unique in its pass.
    piece : Piece
        Where its bytes are; `path`, `start` and `stop` are fields of it.
    path : str
        The file; for a block over several files (`files.joined`), a name for messages.
    start, stop : int
        Its bytes in the file.  A line or word belongs to the block that has its first byte.
    epoch : int
        Number of the epoch, from 0.
    seed : int
        uint64, the same for this block in this epoch whoever trains it: draws from it can be
        repeated.
    progress : tuple of float
        Share of the whole training before and after this block, 0 to 1: for step sizes that fall.
    prepared : object
        What `Worker.prepare` returned for this block.
    prepare_s, kernel_s : float
        Processor seconds of `Worker.prepare`, and of the model's kernels, if it counts them (else
        None): what of this block's training does not move rows.
    terms : object, optional
        What the schedule of the job adds, as one value (`transport.messages.terms`): the attributes
        from `clock` to `durable` are fields of it.  None without a clock or rotation.
    clock, slot, slots : int
        With ``consistency: bsp`` and in rounds: this block is contribution `slot` of `slots` to
        step `clock`, and reads rows as they are before that step.  Else -1, 0 and 1.
    index : int
        In rounds: which of the job's workers makes this contribution, 0 to `workers` - 1, so that
        each can have its own data.  Else -1.
    chunk : int
        In a rotation: number of the chunk, counted over all epochs.  Else -1.
    chunk_index, chunk_blocks : int
        For a block to encode (`Rotated.encode`): its place in its chunk, from 0, and how many
        blocks the chunk has.  For a partition -1, and the same.
    part, parts : int
        For an input partition: its number, from 0, and how many its chunk has.  For a block to
        encode -1 and 0: partitions are decided when all blocks are encoded.
    sizes : tuple of int
        For a partition: the relative sizes of all partitions of the chunk; all 1, or in proportion
        to the units a second that their workers have trained.  Rows, or work, should be split so.
    output_parts : int
        For a partition: how many checkouts each lease of its chunk has (`Rotation.checkouts`).
    passes : int
        For a partition: how many passes an epoch has (`Rotation.passes`).
    had : int
        Length of `durable`.
    durable : tuple of int
        For a partition: the checkouts that lost workers have trained and pushed, ascending;
        `checkouts` hands out the others.
    first : bool
        Whether no block of this training was leased before, to any worker, nor in a run that this
        one continues: servers have only the rows that the job started with, including what a
        `loader` has set.  For a partition: whether no worker has had it before; then the same holds
        for the rows that no other partition has.
    again : bool
        For a block to encode: whether it was encoded before, and servers have lost it since.
    checkouts : Checkouts
        For a partition: hands out the output partitions.
    open_parts : callable
        ``open_parts(part_bytes)`` gives its lines in parts, which several threads may read; None if
        it must be read as one (`data`).
    head : callable
        Gives the beginning of the file, to the end of its first line that is not blank: it may say
        how lines are to be read.
    place : callable, optional
        ``place(i)``: the file of byte i of `data`, and its byte there, or -1 if that is unknown.
        None where both follow from `path` and `start`.
    read_texts : callable, optional
        Reads the texts of a block over several files; None for a block of one file.
    """

    number: int
    piece: Piece
    epoch: int
    seed: int
    progress: tuple[float, float]
    content: BlockContent
    terms: Terms | None = None
    first: bool = False
    checkouts: Checkouts = field(default_factory=NoCheckouts)
    prepared: Any = field(default=None, init=False)
    prepare_s: float = field(default=0.0, init=False)
    kernel_s: float | None = field(default=None, init=False)
    again: bool = field(default=False, init=False)
    _data: bytes | None = field(default=None, init=False)
    _pulls: list[Pending] = field(default_factory=list, init=False)
    _step_begun: Pending | None = field(default=None, init=False)

    clock = _Term(-1)
    slot = _Term(0)
    slots = _Term(1)
    index = _Term(-1)
    chunk = _Term(-1)
    chunk_index = _Term(-1)
    chunk_blocks = _Term(0)
    part = _Term(-1)
    parts = _Term(0)
    output_parts = _Term(0)
    passes = _Term(1)
    durable = _Term[tuple[int, ...]](())

    @property
    def path(self) -> str:
        return self.piece.path

    @property
    def start(self) -> int:
        return self.piece.start

    @property
    def stop(self) -> int:
        return self.piece.stop

    @property
    def had(self) -> int:
        return len(self.durable)

    @property
    def sizes(self) -> tuple[int, ...]:
        return getattr(self.terms, "sizes", ()) or (1,) * self.parts

    @property
    def data(self) -> bytes:
        """The bytes of its lines or words, read once."""
        if self._data is None:
            self._data = self.content.read()
        return self._data

    def head(self) -> bytes:
        return self.content.head()

    def open_parts(self, part_bytes: int) -> TextParts | None:
        return self.content.open_parts(part_bytes)

    @property
    def place(self) -> Place | None:
        return self.content.place

    @property
    def read_texts(self) -> Callable[[], Sequence[Text]] | None:
        return self.content.read_texts

    def texts(self) -> Sequence[Text]:
        """Return the block's lines or rows, a text for each file; its first line may be a header.

        `data` has the lines of all files, joined.
        """
        if self.read_texts is not None:
            return self.read_texts()
        return [Text(self.data, self.path, self.start, self.place)]


@dataclass(frozen=True, slots=True)
class ClockSlot:
    """The step of a block in a job with clocks, and the block's slot in it."""

    clock: int
    slot: int
    preparing: bool
    pulls: list[Pending]


class CurrentClockSlots:
    """Which clock slot each thread of a worker pulls and pushes for."""

    def __init__(self) -> None:
        self._training: ClockSlot | None = None
        self._here = threading.local()

    @contextlib.contextmanager
    def at(self, moment: ClockSlot) -> Iterator[None]:
        """Let pulls and pushes in the context belong to this slot.

        In a thread that prepares a block this applies to that thread alone.  In the one that trains
        it applies to all threads that do not prepare: a model may push from threads of its own.
        """
        if moment.preparing:
            self._here.moment = moment
        else:
            self._training = moment
        try:
            yield
        finally:
            if moment.preparing:
                self._here.moment = None
            else:
                self._training = None

    def now(self, what: str, *, preparing: bool = True) -> ClockSlot:
        """Return the slot of the calling thread; `what` names the call, for messages.

        `MisuseError` outside `prepare` and `train`, and inside `prepare` unless `preparing`.
        """
        moment: ClockSlot | None = getattr(self._here, "moment", None) or self._training
        if moment is None:
            raise MisuseError(
                f"{what}() outside prepare() and train(): with clocks (consistency: bsp, or "
                "rounds) rows are those of a block's step, and pushes are parts of one"
            )
        if moment.preparing and not preparing:
            raise MisuseError(
                f"{what}() in prepare(): with clocks (consistency: bsp, or rounds) the step may "
                "not have begun, so use pull_async there, and wait and push in train()"
            )
        return moment
