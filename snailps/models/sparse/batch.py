"""Makes batches for kernels from text and matrix files: parsed, filtered, features numbered.

    bytes -> pieces -> ExampleReader (in threads) -> KeyNumbers -> admission -> Batch

Owns the order of these steps.  A batch refers to features by places in the array of its keys' rows;
it has no rows itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.block import Block
from snailps.data._admission import Admitted
from snailps.data._examples import Examples
from snailps.data._key_numbering import KeyNumbers
from snailps.data._shuffling import drawn_order, entries_in_order, pointers_in_order
from snailps.data.encoding import FLOAT_MAX, LIMIT, NO_KEYS, Encoding
from snailps.data.examples import ExampleReader
from snailps.data.held_out import Side, examples_where
from snailps.dataclass import dataclass, field, replace
from snailps.errors import DataError
from snailps.files.blocks import Place
from snailps.files.joined import TextParts
from snailps.files.matrix_file import even_rows, is_matrix
from snailps.models.losses import LOSSES
from snailps.models.sparse.settings import SparseSettings

TABLE = "weights"
"""The table of features' rows."""
BIAS_KEY = (1 << 64) - 1
"""Key of the constant feature; LIBSVM's and LIBFFM's are below 2^63."""
PIECE_BYTES = 1 << 20
"""Least size of a piece: its arrays fit in a core's second cache, and threads end together."""

PLAIN = Encoding()
NO_FIELDS = np.empty(0, np.int32)
WITHOUT_FIELDS = (
    "none. LIBSVM has none: write label field:feature:value (libffm), or a matrix file with fields="
)
P = TypeVar("P")
T = TypeVar("T")
Floats = NDArray[np.float32]
Keys = NDArray[np.uint64]


@dataclass(slots=True)
class Batch:
    """Examples with numbered features, as CSR: example i has the entries ``ptr[i]:ptr[i + 1]``.

    `places` refer to `keys`, which are distinct and in the order of their first appearance, so that
    frequent keys come first; the last is `BIAS_KEY`, at place `bias` (-1: there is none).  `fields`
    are LIBFFM's, or columns of CSV; empty for LIBSVM.  Empty `weights` mean ones.  `bad` counts
    malformed lines, which are left out.  Examples are trained in `order` (None: as stored).
    `beyond` has the keys of clipped values.
    """

    labels: Floats
    ptr: NDArray[np.int64]
    places: NDArray[np.int32]
    values: Floats
    fields: NDArray[np.int32]
    keys: Keys
    bias: int
    weights: Floats
    bad: int
    order: NDArray[np.uint32] | None = None
    beyond: Keys = field(default_factory=lambda: NO_KEYS)

    def __len__(self) -> int:
        return len(self.labels)

    def drawn(self, seed: int) -> Batch:
        """Give the batch a training order drawn from a seed."""
        return replace(self, order=drawn_order(seed, len(self)))

    def places_of_first(self, count: int) -> NDArray[np.int32]:
        """Places of the examples that are trained first."""
        if self.order is None:
            return self.places[: self.ptr[count]]
        found: NDArray[np.int32] = entries_in_order(self.places, self.ptr, self.order[:count])
        return found

    def laid_out(self) -> Batch:
        """Store the batch's examples in training order."""
        if self.order is None:
            return self
        ptr, order = self.ptr, self.order
        arrays: list[NDArray[Any]] = [self.places, self.values, self.fields]
        places, values, fields = (
            entries_in_order(array, ptr, order) if len(array) else array for array in arrays
        )
        return Batch(
            self.labels[order], pointers_in_order(ptr, order), places, values, fields, self.keys,
            self.bias, self.weights[order] if len(self.weights) else self.weights, self.bad,
            beyond=self.beyond,
        )  # fmt: skip

    def counts(self, row_num: int) -> Floats:
        """How many examples have the feature of each row, float32 (row_num,)."""
        counts = np.bincount(self.places, minlength=row_num).astype(np.float32)
        if self.bias >= 0:
            counts[self.bias] = len(self)
        return counts

    @property
    def nbytes(self) -> int:
        arrays = (self.labels, self.ptr, self.places, self.values, self.fields, self.keys)
        of_order = 0 if self.order is None else self.order.nbytes
        return sum(array.nbytes for array in (*arrays, self.weights)) + of_order

    def edges(self, parts: int, first: int = 0, last: int | None = None) -> list[int]:
        """Edges of `parts` ranges of examples, from `first` on, with about equally many entries."""
        stop = len(self) if last is None else last
        if parts == 1:  # NumPy's calls would take longer than all else here
            return sorted({first, stop})
        if self.order is not None:  # in a drawn order any range has about as many
            return sorted({first + (stop - first) * part // parts for part in range(parts + 1)})
        wanted = np.linspace(float(self.ptr[first]), float(self.ptr[stop]), parts + 1)[1:-1]
        inner = np.clip(np.searchsorted(self.ptr, wanted), first, stop)
        return sorted({first, *inner.tolist(), stop})


def classes_of(
    encoding: Encoding, labels: NDArray[np.float64], path: str, weights: Floats
) -> NDArray[np.int64]:
    """Return the class of each label, from 0: yes is 1."""
    numbers = np.asarray(encoding.labels_of(labels, path, weights), np.float32)
    return np.ceil(np.maximum(numbers, 0)).astype(np.int64)


class BatchReader:
    """Makes batches from text; not thread-safe.

    `class_weights` are by class (empty: all 1): labels of 0 or less are class 0, labels between two
    classes belong to the next, so that above 0 means yes.  Features that are not `admitted` are
    left out.  Values are cut to the `bounds` of a finished model, then encoded, then clipped to
    `limit`. `fields` is the number of fields that examples must have; with 0 fields are dropped.
    With `trains`, examples of weight 0 are left out, as if their lines were not there.
    """

    def __init__(
        self,
        reader: ExampleReader,
        *,
        threads: int = 1,
        bias: bool = False,
        class_weights: Sequence[float] = (),
        admitted: Admitted | None = None,
        encoding: Encoding = PLAIN,
        limit: float = FLOAT_MAX,
        fields: int = 0,
        bounds: Encoding = PLAIN,
        trains: bool = False,
    ) -> None:
        self._trains = trains
        self._reader, self._fields, self._bounds = reader, fields, bounds
        self.encoding, self._limit = encoding, limit
        self._numbers = KeyNumbers()
        self._bias = bias
        self._class_weights = np.array(class_weights, np.float32)
        self._admitted = admitted
        self._pool = ThreadPoolExecutor(threads, "snailps-parse") if threads > 1 else None

    @property
    def first_bad(self) -> str:
        return self._reader.first_bad

    def read(
        self, data: bytes, path: str = "", start: int = 0, place: Place | None = None
    ) -> Batch:
        """Make the batch of a text of whole lines, which starts at byte `start` of file `path`."""
        return self.numbered(self.parse(data, path, start, place), path)

    def encoded(self, examples: Examples) -> tuple[Examples, Keys]:
        """Encode values (labels stay); returns the examples, and the keys of clipped values."""
        return self.encoding.encoded(self._bounds.bounded(examples), self._limit)

    def placed(
        self,
        examples: Examples,
        places: NDArray[np.int32],
        bias: int,
        path: str = "",
        beyond: Keys = NO_KEYS,
    ) -> Batch:
        """Make the batch of `encoded` examples whose features have places; without `keys`."""
        labels = np.asarray(
            self.encoding.labels_of(examples.labels, path, examples.weights), np.float32
        )
        keys = np.empty(0, np.uint64)
        return Batch(
            labels, examples.ptr, places, examples.values, examples.fields, keys, bias,
            examples.weights, examples.bad, beyond=beyond,
        )  # fmt: skip

    def numbered(self, examples: Examples, path: str = "") -> Batch:
        examples, beyond = self.encoded(examples)
        keys, places = self._numbers.number(examples.keys)
        batch = self.placed(examples, places, -1, path, beyond)
        batch.keys = keys
        if self._admitted is not None:
            _leave_out(batch, self._admitted.admit(keys))
        if self._bias:
            batch.bias = len(batch.keys)
            batch.keys = np.append(batch.keys, np.uint64(BIAS_KEY))
        return batch

    def parse(
        self, data: bytes, path: str = "", start: int = 0, place: Place | None = None
    ) -> Examples:
        """Parse the examples of a text, with all threads."""
        if self._pool is None:  # in one piece, so that nothing is joined
            return self._read(data, path, start, place=place)
        return joined(self.pieces(data, lambda examples: examples, path, start, place))

    def _read(
        self,
        data: bytes,
        path: str,
        start: int,
        part: tuple[int, int] | None = None,
        place: Place | None = None,
    ) -> Examples:
        """Parse the examples of a text: with fields if the model has fields, whatever the file has,
        and with the weights of their classes.
        """
        examples = self._reader.read(data, path, start, part, place)
        if len(self._class_weights):
            examples = examples._replace(weights=self._weights(examples, path))
        if self._trains:
            examples = weighed(examples)
        if self._fields == 0 and len(examples.fields):
            return examples._replace(fields=NO_FIELDS)
        if self._fields > 0 and len(examples.keys) > len(examples.fields):
            raise DataError(
                f"{path}: expected fields 0 to {self._fields - 1}, got {WITHOUT_FIELDS}, or set "
                "fields: 0 for a plain factorization machine"
            )
        return examples

    def pieces(
        self,
        data: bytes,
        then: Callable[[Examples], T],
        path: str = "",
        start: int = 0,
        place: Place | None = None,
    ) -> list[T]:
        """Parse a text in pieces by several threads, which call `then`; its results, in order."""
        parts, has_rows = len(data) // PIECE_BYTES, is_matrix(data)
        if parts < 2 or not (has_rows or self._reader.learn_format(data, start)):
            return [then(self._read(data, path, start, place=place))]
        edges = even_rows(data, path, parts) if has_rows else _even_lines(data, parts)

        def read(part: tuple[int, int]) -> T:
            return then(self._read(data, path, start, part, place))

        try:
            return self._map(read, itertools.pairwise(edges))
        except DataError:
            self._reader.read(data, path, start, place=place)  # raises, with the line number
            raise

    def pieces_of(self, parts: TextParts, then: Callable[[Examples], T]) -> list[T]:
        """Read parts of files by several threads, which call `then`; its results, in order.

        The format must be known (`knows_format`).
        """

        def read(part: int) -> T:
            read_texts = [
                self._read(text.data, text.path, text.start, place=text.place)
                for text in parts.texts(part)
            ]
            return then(joined(read_texts) if read_texts else self._reader.read(b""))

        return self._map(read, range(len(parts.parts)))

    def knows_format(self, block: Block) -> bool:
        """Whether a block's format is set, or known by an earlier text or the file's head."""
        if self._reader.columns and self._reader.is_guessed:
            self._reader.learn_format(block.head())
        return self._reader.knows_format

    def read_block(self, block: Block) -> Batch:
        return self.numbered(self.parse_block(block), block.path)

    def parse_block(self, block: Block) -> Examples:
        """Parse the examples of all texts of a block."""
        self.knows_format(block)
        return joined([self.parse(*text) for text in block.texts()] or [self.parse(b"")])

    def _map(self, read: Callable[[P], T], parts: Iterable[P]) -> list[T]:
        """Read all parts with all threads; the results, in order."""
        return list(map(read, parts) if self._pool is None else self._pool.map(read, parts))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _weights(self, examples: Examples, path: str) -> Floats:
        """Compute the weight of each example: its own times the weight of its class."""
        of_examples = examples.weights
        classes = classes_of(self.encoding, examples.labels, path, of_examples)
        if len(classes) and classes.max() >= len(self._class_weights):
            raise DataError(
                f"{path}: class {classes.max()} has no weight: class_weights has "
                f"{len(self._class_weights)} numbers, classes are counted from 0"
            )
        weights = self._class_weights[classes]
        return weights * of_examples if len(of_examples) else weights


def _even_lines(data: bytes, parts: int) -> list[int]:
    """Edges of ranges of whole lines of about the same length."""
    edges = [0]
    for part in range(1, parts):
        edges.append(data.find(b"\n", max(edges[-1], len(data) * part // parts)) + 1 or len(data))
    return [*edges, len(data)]


def batch_reader(
    settings: SparseSettings,
    *,
    threads: int = 1,
    bias: bool = False,
    admitted: Admitted | None = None,
    needs_labels: bool = True,
    encodes: bool = True,
    trains: bool = False,
    side: Side | None = None,
) -> BatchReader:
    """Make the reader for these settings.

    `encodes`: values are encoded, for a model in training; a finished model takes them as written.
    `trains`: the model trains on the batches, so encoded values are clipped to `LIMIT`, and lines
    that are held out are left out.  `side` reads the lines of one side alone.
    """
    reader = ExampleReader(
        settings.format,
        columns=settings.text_columns,
        hash_bits=settings.hash_bits,
        on_bad_line=settings.on_bad_line,
        needs_labels=needs_labels,
        label_min=LOSSES[settings.loss].label_min,
        side=settings.side(is_held=False) if trains else side,
    )
    is_needed = encodes or "clipped" in settings.encoding
    known = Encoding.of_text(settings.encoding) if is_needed else PLAIN
    return BatchReader(
        reader,
        threads=threads,
        bias=bias,
        class_weights=settings.weights_of_classes,
        admitted=admitted,
        encoding=known if encodes else PLAIN,
        bounds=PLAIN if trains else known,
        trains=trains,
        limit=LIMIT if trains else FLOAT_MAX,
        fields=getattr(settings, "fields", 0),
    )


def check_classes(batch: Batch, classes: int, where: str) -> None:
    """Raise a `DataError` for labels that are not 0 to `classes` - 1; with 0 classes, for none."""
    labels = batch.labels
    if not classes or len(labels) == 0:
        return
    wrong = labels[(labels < 0) | (labels >= classes) | (labels != np.floor(labels))]
    if len(wrong):
        raise DataError(
            f"{where}: expected labels 0 to {classes - 1}, as classes: {classes} says, got "
            f"{wrong[0]:g}. Number the classes from 0, or set classes to their number"
        )


def joined(pieces: Sequence[Examples]) -> Examples:
    """Join the examples of several texts; missing weights are 1 if other texts have weights."""
    if len(pieces) == 1:
        return pieces[0]
    if any(len(piece.weights) for piece in pieces):
        pieces = [
            piece
            if len(piece.weights)
            else piece._replace(weights=np.ones(len(piece.labels), np.float32))
            for piece in pieces
        ]
    return Examples(**_in_sequence(pieces, "labels", "keys", "values", "fields", "weights"))


def weighed(examples: Examples) -> Examples:
    """Leave out examples without a weight above 0, which count for nothing."""
    if not len(examples.weights):
        return examples
    return examples_where(examples, examples.weights > 0)


def _in_sequence(parts: Sequence[Any], *names: str) -> dict[str, Any]:
    """The arrays of these names of all parts in sequence, with ``ptr`` and ``bad``."""
    starts = np.cumsum([0, *(part.ptr[-1] for part in parts[:-1])]).tolist()
    ptrs = [part.ptr[1:] + start for part, start in zip(parts, starts, strict=True)]
    return {
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
        "ptr": np.concatenate([np.zeros(1, np.int64), *ptrs]),
        "bad": sum(part.bad for part in parts),
    }


def _leave_out(batch: Batch, admitted: NDArray[np.bool_]) -> None:
    """Remove the keys that are not admitted, and their entries."""
    if admitted.all():
        return
    kept = admitted[batch.places]
    number = (np.cumsum(admitted) - 1).astype(np.int32)
    before = np.concatenate(([0], np.cumsum(kept)))
    batch.keys, batch.ptr = batch.keys[admitted], before[batch.ptr].astype(np.int64)
    batch.places, batch.values = number[batch.places[kept]], batch.values[kept]
    if len(batch.fields):
        batch.fields = batch.fields[kept]
