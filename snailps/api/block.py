"""A leased piece of input, as a model sees it, and the step of the block that a thread works on.

    lease -> Block -> Worker.prepare -> Worker.train
    block being prepared or trained -> CurrentClockSlots.at, now -> clock, slot

A block has a piece of the input and its terms, and reads its bytes once, from its content.  In a
job with clocks the threads of a worker may be in different steps: the preparing thread in that of
its block, all others in that of the block being trained.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from snailps.api.rotation import Checkouts, NoCheckouts
from snailps.data.blocks import Place
from snailps.data.joined import Text, TextParts
from snailps.dataclass import dataclass, field
from snailps.errors import MisuseError
from snailps.pieces import Piece
from snailps.transport.client._client import Pending
from snailps.transport.messages.terms import Terms

T = TypeVar("T")


class _Term(Generic[T]):
    """A field of a block's terms, by the same name, or `absent`: its terms have no such field."""

    def __init__(self, absent: T) -> None:
        self._absent = absent

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, block: Block | None, owner: type) -> T:
        value: T = getattr(block.terms if block is not None else None, self._name, self._absent)
        return value


class BlockContent:
    """The bytes of a block, read when they are asked for; here of one that has none."""

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
        Where its bytes are; `path`, `start` and `stop` are its fields.
    path : str
        File that contains it; of a block over several files (`data.joined`) a name for messages.
    start, stop : int
        Bytes of that file; a line or word belongs to the block that its first byte lies in.
    epoch : int
        0 for the first.
    seed : int
        uint64 of this block in this epoch: draws from it make the block repeatable.
    progress : tuple of float
        Share of the whole training before and after this block, 0 to 1, for learning rates that
        decay.
    prepared : object
        What `Worker.prepare` returned for this block.
    terms : object, optional
        What the schedule of the job adds, one value (`transport.messages.terms`): the attributes
        from `clock` to `durable` are its fields. None without a clock or rotation.
    clock, slot, slots : int
        With ``consistency: bsp`` and in rounds: this block is contribution `slot` of `slots` to
        step `clock`, and reads rows as they are before that step.  Else -1, 0 and 1.
    index : int
        In rounds: which of the job's workers makes this contribution, 0 to `workers` - 1, so that
        each can have its own data.  Else -1.
    chunk : int
        In a rotation: number of the chunk, over all epochs.  Else -1.
    chunk_index, chunk_blocks : int
        Of a block to encode (`Rotated.encode`): its place in its chunk, from 0; of a partition -1.
        How many blocks the chunk has.
    part, parts : int
        Of a lease of an input partition: its number, from 0; of a block to encode -1.  How many
        its chunk has; of a block to encode 0, as that is decided when all blocks are encoded.
    sizes : tuple of int
        Of a partition: how large each is to be, to the others: all 1, or in proportion to how many
        units a second their workers have trained.  The rows that it has, or its share of the work,
        should be as large.
    output_parts : int
        Of a partition: how many output partitions its chunk has, twice `parts`, times
        `Rotation.sweeps` in the first chunk.
    had : int
        Of a partition: how many of these are durable, by lost workers: `checkouts` hands out the
        others.
    durable : tuple of int
        These output partitions, ascending.
    first : bool
        Whether no block of this training was leased before, to any worker, nor in a run that this
        one continues: servers have only the rows that the job began with, those of a `loader`
        included.  Of a partition: whether no worker has had it before.  Of the rows that no other
        partition has, servers have only what the job began with, too.
    again : bool
        Of a block to encode: whether it was encoded before, and servers have lost it since.
    checkouts : Checkouts
        Of a partition: hands out the output partitions.
    open_parts : callable
        ``open_parts(part_bytes)``: its lines in parts, for threads that read one each; None if it
        is to be read as one (`data`).
    head : callable
        Gives the beginning of the file, to the end of its first line that is not blank: what may
        tell how its lines are to be read.
    place : callable, optional
        File of byte i of `data`, and where it is there, -1 if that is not known; of a block that is
        spread over its file (`data.blocks.strands`), whose `start` and `stop` are no bytes there.
    read_texts : callable, optional
        Reads the texts of a block over several files.
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
        """Return lines or rows of the block, as texts whose first lines may be headers.

        `data` joins the lines of all files of a block over several.
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
    """The current clock slots of a worker's threads."""

    def __init__(self) -> None:
        self._training: ClockSlot | None = None
        self._here = threading.local()

    @contextlib.contextmanager
    def at(self, moment: ClockSlot) -> Iterator[None]:
        """Sets the slot of pulls and pushes: of the calling thread if it prepares a block, else of
        all threads that do not.
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
        """The slot of the calling thread; `MisuseError` within `prepare` unless `preparing`."""
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
