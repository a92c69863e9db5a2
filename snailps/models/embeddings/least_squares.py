"""Alternating least squares of choices: ranges of names are solved, pass after pass.

    lines of the file that the training continues -> table `LINES`                 (at the master)
    pass 0: lines of a block -> packed, by range of their user, and of their item -> table `LINES`
    pass 1: rows of a range of items -> their Gram matrix -> table `GRAMS`
    pass 2, 4, ...: users      pass 3, 5, ...: items
        lines of a range (kept packed), rows of the other side -> PULL, once a pass
        Gram matrices of all ranges of the other side -> summed in the order of the ranges, once
        -> conjugate gradients -> rows, Gram matrix of the range -> assigned

A pass reads what the one before has written, and every push assigns, so a range that is trained
again writes the same bits: a lost worker costs its range.  All that a name's row is computed from
has the same order with any number of workers: lines of a range are sorted by name, ranges follow
from the input alone, and threads share rows, never a sum.  A pair that the input has twice is two
lines, and weighs twice as much.  Lines that servers have lost (possible without
``replication: sync``) end the job with a `DataError`: nothing writes them again after pass 0.

Owns weights, penalties and what lies where; the solver is `kernels.solve_rows`, and the master
decides who trains which range (`master/leases/ranges.py`).

After S. Rendle, W. Krichene, L. Zhang, Y. Koren, "Revisiting the performance of iALS on item
recommendation benchmarks", RecSys 2022: the penalty of a row grows with its frequency.
docs/design/least-squares.md has what was measured.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.passes import Passes
from snailps.api.range_passes import PassRange, RangePasses
from snailps.api.tables import Table
from snailps.api.worker import Block, Pending
from snailps.data.name_columns import Names
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, DataError, ModelFileError
from snailps.kernels import _packed_pairs as packed_pairs
from snailps.models.embeddings.files import rows_of
from snailps.models.embeddings.settings import MfSettings
from snailps.models.embeddings.worker import TABLE, EmbeddingWorker
from snailps.models.local_sgd import Floats, Keys
from snailps.models.rotation import shared_blocks
from snailps.models.rotation.shared_blocks import ChunkPlace, LostBlocks
from snailps.models.rows import Ids

log = logging.getLogger(__name__)

LINES, GRAMS = "lines", "grams"
USER, ITEM = 0, 1
STEPS = 5
"""Steps of conjugate gradients, which start from zero.  From the last row fewer would do, but a
range that is solved again would start from its own result, and write other bits.  Recall@10 (tags,
64 factors): .792 with 3 steps, .799 with 5."""
NU = 0.5
"""Exponent of a row's frequency in its penalty."""
UNOBSERVED = 3
"""`a0: auto`: all pairs together weigh so many times the lines, and no pair more than a line.
docs/design/least-squares.md has other rules, on ten real sets."""
EPOCHS, EPOCHS_ON = 6, 2
"""Epochs of a training, and of one that continues a model whose rows are nearly right."""
RANGE_LINES = 1 << 16
"""Lines of a range on average, at least: some 40 ms of one core.  With a quarter as many, pulls of
rows that several ranges name cost a single worker as much again."""
NAME_LINES, NAME_FLOATS = 4, 8
"""A name costs as much as so many lines, and one more for so many factors: products with the Gram
matrix, and a row that is written and replicated.  By lines alone ranges of rare names took three
times as long as others, for which all workers waited at the end of a pass."""
RANGES_MAX = 96
"""Most ranges of a side.  A lease costs some 2 ms at master and worker, a tenth of 14 M lines' time
with 215 ranges a side; of 96, eight workers still have a dozen each."""
PREPARING = 1
"""Passes over ranges before the training: one, for the Gram matrices of the items' first rows."""
KNOWN_PTR, KNOWN_ITEMS, KNOWN_WEIGHTS = "known.ptr", "known.items", "known.weights"
KNOWN_MAX = 1 << 24
"""Most lines of a training that the model's file keeps, 4 bytes each, 8 with weights:
recommendations leave their pairs out, and a training that continues the model learns them again."""
OF_INPUT, OF_FILE = 0, 2
"""Where lines come from: blocks of the input, or the file that the training continues."""
FILE_BLOCK_LINES = 1 << 18
"""Lines of a block that the master makes from a file."""
LINES_AT, FILE_BLOCKS_AT = RANGES_MAX, RANGES_MAX + 1
"""Places in the head of a block: of the number of its lines, and, in a block made from a file, of
the number of these blocks.  Before them is where each range ends."""
LINES_BYTES = 512 << 20
"""Packed lines that a worker keeps for later passes, some 2 bytes each and side: 130 M of one
worker."""
ROWS_BYTES = 512 << 20
"""Rows of the other side that a worker keeps during a pass; beyond, it pulls them again."""
NO_WEIGHTS = np.zeros(0, np.float32)
"""All lines have weight 1."""
NAMES_END = 1 << 24
"""Numbers of names are below this, which bounds the bytes of a packed line; so are lines and words
of a block, up to which float32 is exact."""

AskRows = Callable[[Ids, Floats], Pending]
"""Starts to pull the rows of some names into an array."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the objective: a0 of pairs without a line, l2 of the penalty and its `scale`.

        sum of |w| (x.y - [w > 0])^2 over lines + a0 x sum of (x.y)^2 over all pairs
        + l2 x scale x sum of f^nu |row|^2 over rows

    w is the weight of a line: 1, or with ``weights: values`` its value.  f, the frequency of a row,
    is the number of its lines, of any weight, + a0 x rows of the other side.  `scale` makes the
    penalties add up to what they would be with nu = 1, so l2 means the same for any nu.
    """

    a0: float
    l2: float
    scale: float

    @classmethod
    def of(cls, settings: MfSettings, names: Names) -> Weights:
        """Take the weights of the settings; "auto" is a0 = 3 d, at most 1, where d is the share of
        all pairs that have a line."""
        users, items = (counts.astype(np.float64) for counts in names.counts)
        density = min(1.0, max(1.0, users.sum()) / max(1, len(users) * len(items)))
        a0 = settings.a0 or float(min(1.0, UNOBSERVED * density))
        frequencies = np.concatenate((users + a0 * len(items), items + a0 * len(users)))
        return cls(a0, settings.decay, float(frequencies.sum() / (frequencies**NU).sum()))

    def penalties(self, counts: NDArray[np.int64], others: int) -> Floats:
        """Compute the factor of |row|^2 for each name from its count of lines; the other side has
        `others` rows."""
        frequencies = counts + self.a0 * others
        return (self.l2 * self.scale * frequencies**NU).astype(np.float32)


def passes_of(settings: MfSettings, names: Names) -> RangePasses:
    """Cut the training into passes over ranges; depends on the input alone, not on the workers.

    Gram matrices are summed range by range: other ranges would change the last bits.
    """
    lines = int(names.counts[USER].sum())
    fewest = min(map(len, names.names))
    ranges = max(1, min(RANGES_MAX, lines // RANGE_LINES, fewest))
    return RangePasses(ranges, 2 * settings.epochs, per_epoch=2, before=PREPARING)


def epochs_of(settings: Any) -> Passes:
    """Choose the epochs of a training, or of one that continues a model."""
    epochs = EPOCHS_ON if settings.continue_from else EPOCHS
    return Passes(epochs, epochs)


def check(settings: MfSettings) -> None:
    """Refuse schedules that passes over ranges do not have."""
    for name, allowed in (
        ("consistency", ("async",)),
        ("assign", ("auto", "shared")),
        ("max_steps", (0,)),
    ):
        value = getattr(settings, name)
        if value not in allowed:
            raise ConfigError(
                f"{name}: expected {allowed[0]} with loss als, got {value}: its passes wait for "
                "each other, and give the same rows with any number of workers. Leave it out, or "
                "set loss: softmax or pairwise"
            )
    if settings.optimizer != "auto":
        raise ConfigError(
            f"optimizer: expected auto with loss als, got {settings.optimizer}: rows are solved, "
            "not trained by steps. Leave it out, or set loss: softmax or pairwise"
        )


def tables(settings: MfSettings) -> tuple[Table, ...]:
    """Declare three tables: rows; lines, by side and block; a key for each row of a Gram matrix.

    `wire: auto` means float32 here: its choice depends on the network, and so would the bits.
    """
    wire = "float32" if settings.wire == "auto" else settings.wire
    rows = Table(
        TABLE,
        settings.dim,
        init="normal",
        scale=settings.first_scale,
        seed=settings.seed,
        wire=wire,
    )
    return rows, shared_blocks.table(LINES, finite=False), Table(GRAMS, settings.dim)


def solver_of(settings: MfSettings, names: Names) -> NDArray[np.float64]:
    """Give `NewRows` its weights: a0, and l2 times its scale."""
    weights = Weights.of(settings, names)
    return np.array([weights.a0, weights.l2 * weights.scale])


class NewRows:
    """Solves rows of names that the training did not have, from all rows of the other side.

    The Gram matrix of a million rows takes half a second, once; each name then some microseconds.
    """

    def __init__(self, others: Floats, solver: NDArray[np.float64]) -> None:
        self._others, (self._a0, self._factor) = others, solver.tolist()
        rows = _padded(others)
        gram = np.zeros((rows.shape[1],) * 2)
        kernels.add_gram(rows, gram, first=0, last=len(gram))
        self._gram = (self._a0 * gram).astype(np.float32)

    def solve(self, places: NDArray[np.int64]) -> Floats:
        """Solve the row, float32 (dim,), of a name that has lines with these others."""
        dim = self._others.shape[1]
        row = kernels.padded(1, dim)
        frequency = len(places) + self._a0 * len(self._others)
        kernels.solve_rows(
            _padded(np.ascontiguousarray(self._others[places])),
            self._gram,
            np.array([0, len(places)]),
            np.arange(len(places), dtype=np.int32),
            np.zeros(0, np.float32),
            np.array([self._factor * frequency**NU], np.float32),
            row,
            steps=STEPS,
            first=0,
            last=1,
        )
        solved: Floats = row[0, :dim].copy()
        return solved


def _padded(rows: Floats) -> Floats:
    """Pad rows to the stride that kernels need; rows that have it are not copied."""
    if rows.shape[1] % kernels.PAD == 0 and rows.ctypes.data % (4 * kernels.PAD) == 0:
        return rows
    padded = kernels.padded(len(rows), rows.shape[1])
    if len(rows):
        kernels.copy_rows(rows, padded)
    return padded


def known_lines(
    results: shared_blocks.Puller, settings: MfSettings, names: Names
) -> KnownLines | None:
    """Collect the lines of the training, with those of the file that it continues.

    None, with a warning, if they are more than `KNOWN_MAX`, the file lacked its own, or servers
    have lost some.
    """
    total = int(names.counts[USER].sum())
    if total > KNOWN_MAX:
        _unlisted(total, f"more than {KNOWN_MAX:,}")
        return None
    try:
        written = written_lines(results, settings, names)
    except LostBlocks:
        _unlisted(total, "and servers have lost some")
        return None
    if settings.continue_from and not written.of_file:
        _unlisted(total, f"and {settings.continue_from} lacks its own")
        return None
    if len(written.known.items) < total:
        log.warning(
            "the training ended before it had read all lines of the input: its model's file "
            "lists those that it had read"
        )
    if written.come_again:
        log.warning(
            "most pairs of %s come again in this input, and each line weighs beside the earlier "
            "one: give new lines alone",
            settings.continue_from,
        )
    return written.known


class Written(NamedTuple):
    """Lines that servers have: all, the number that came with the file that the training continues,
    and whether most pairs of the file come again in an input of at least half as many lines."""

    known: KnownLines
    of_file: int
    come_again: bool


def written_lines(results: shared_blocks.Puller, settings: MfSettings, names: Names) -> Written:
    """Read the lines that servers have by now, a range of users at a time: beside the result, there
    is memory for one range.

    In pass 0 they are those of the blocks before the first that is not written.  `LostBlocks`: a
    block lacks a part.
    """
    counts, others = names.counts[USER], len(names.counts[ITEM])
    ranges = passes_of(settings, names).ranges
    heads = _heads_of_all(results, settings, int(counts.sum()))
    of_file, of_input = (int(heads[source][:, LINES_AT].sum()) for source in (OF_FILE, OF_INPUT))
    ptr = np.zeros(len(counts) + 1, np.int64)
    items = np.empty(of_file + of_input, np.int32)
    weights = np.empty(len(items) if settings.weighs else 0, np.float32)
    filled = pairs = again = 0
    bounds = bounds_of(counts, ranges, settings.dim)
    for part, (first, stop) in enumerate(itertools.pairwise(bounds.tolist())):
        lines = {
            source: _read(results, _place(USER, source), part, of_source)
            for source, of_source in heads.items()
        }
        known = _unpacked(lines.values(), stop - first, others, settings.weighs)
        here = slice(filled, filled + len(known.items))
        ptr[first + 1 : stop + 1] = filled + known.ptr[1:]
        items[here], weights[here] = known.items, known.weights
        filled = here.stop
        if 0 < of_file <= 2 * of_input:
            before, now = (
                np.unique(_pairs(*_unpacked([of], stop - first, others, settings.weighs).pairs()))
                for of in (lines[OF_FILE], lines[OF_INPUT])
            )
            pairs += len(before)
            again += np.count_nonzero(np.isin(before, now))
    return Written(KnownLines(ptr, items, weights), of_file, 2 * again > pairs)


def _unlisted(lines: int, why: str) -> None:
    log.warning(
        "the model's file has no list of the %s lines of its training (%s): recommendations do not "
        "leave out items that a user has, unless they are given, and a training that continues it "
        "forgets these lines",
        f"{lines:,}",
        why,
    )


def _heads_of_all(
    results: shared_blocks.Puller, settings: MfSettings, total: int
) -> dict[int, Floats]:
    """Read the heads of all blocks of `LINES`, by source; `total` is the sum of their lines, but of
    a training that ended in pass 0, which has the blocks before the first that it lacks."""
    heads = {OF_FILE: np.zeros((0, shared_blocks.ROW_FLOATS), np.float32)}
    if settings.continue_from:
        heads[OF_FILE] = _heads_of_file(results, USER)
    of_input = [heads[OF_FILE][:0]]
    lacking = total - int(heads[OF_FILE][:, LINES_AT].sum())
    while lacking > 0:
        try:
            head = shared_blocks.heads(results, _place(USER, OF_INPUT), [len(of_input) - 1])
        except LostBlocks:
            break
        of_input.append(head)
        lacking -= int(head[0, LINES_AT])
    heads[OF_INPUT] = np.concatenate(of_input)
    return heads


def _pairs(users: NDArray[Any], items: NDArray[Any]) -> NDArray[np.int64]:
    """Number pairs, so that they sort by user, then by item."""
    numbers: NDArray[np.int64] = users.astype(np.int64)
    numbers <<= 32
    numbers |= items
    return numbers


class RangeLines(NamedTuple):
    """Lines of a range as blocks have them, packed, and the words that are from each block."""

    words: Floats
    sizes: NDArray[np.int64]


def _read(puller: shared_blocks.Puller, place: ChunkPlace, part: int, heads: Floats) -> RangeLines:
    """Read the lines of a range from blocks with these heads, in the order of the blocks."""
    ends = np.zeros((len(heads), part + 2), np.int64)
    ends[:, 1:] = heads[:, : part + 1]
    begins, stops = ends[:, part], ends[:, part + 1]
    words = np.empty(int((stops - begins).sum()), np.float32)
    shared_blocks.read(puller, place, begins.tolist(), stops.tolist(), words)
    return RangeLines(words, stops - begins)


def _unpacked(lines: Iterable[RangeLines], names: int, others: int, weighs: bool) -> KnownLines:
    """Sort the lines of a range of `names`, whatever blocks they came in.

    DataError: servers have other lines than those of this training.
    """
    words, sizes = map(np.concatenate, zip(*lines, strict=True))
    try:
        return KnownLines(*packed_pairs.unpack(words, sizes, names, others, weighs))
    except ValueError as error:
        raise DataError(f"table {LINES!r}: {error}: start the training again") from None


def check_memory(settings: MfSettings, users: int, items: int, free: int, why: str) -> None:
    """Refuse a training whose rows the master could not test, which it would find out at its end.

    A test takes all rows at once, so these are the least that it needs; servers and workers on the
    same host come on top.  `free`: bytes that may be allocated, 0 if unknown.
    """
    needed = 4 * settings.dim * (users + items)
    if not 0 < free < needed:
        return
    fits = free // (4 * max(1, users + items))
    cure = f"lower dim to {fits}" if fits else "train on fewer names"
    raise DataError(
        f"loss als: rows of {users:,} users and {items:,} items with dim {settings.dim} take "
        f"{needed / 1e9:,.1f} GB, and the master tests them in memory, of which {free / 1e9:,.1f} "
        f"GB are free ({why}): leave out test and held_out, {cure}, or start the master where "
        "there is more memory"
    )


def lines_in_file(settings: MfSettings, arrays: Mapping[str, NDArray[Any]]) -> KnownLines | None:
    """Get the lines of the file that a training continues; None if it lacks them, or weights."""
    known = KnownLines.in_file(arrays, settings.continue_from)
    lacks_weights = known is not None and settings.weighs and not len(known.weights)
    return None if lacks_weights else known


def blocks_of_file(
    settings: MfSettings, names: Names, known: KnownLines | None
) -> Iterator[tuple[Keys, Floats]]:
    """Yield rows of `LINES`, a block at a time, of the lines of the file that a training continues.

    There is a block without lines if the file has none, as workers do not know that.
    """
    ranges = passes_of(settings, names).ranges
    users, items = known.pairs() if known else np.zeros((2, 0), np.int32)
    weights = known.weights if known else NO_WEIGHTS
    edges = range(0, max(1, len(users)), FILE_BLOCK_LINES)
    for side in (USER, ITEM):
        bounds = bounds_of(names.counts[side], ranges, settings.dim)
        for index, at in enumerate(edges):
            of_block = slice(at, at + FILE_BLOCK_LINES)
            own, other = (column[of_block] for column in (users, items)[:: -1 if side else 1])
            head, words = packed_block(own, other, weights[of_block], bounds)
            head[FILE_BLOCKS_AT] = len(edges)
            yield shared_blocks.rows_of(_place(side, OF_FILE), index, head, words)


def _heads_of_file(puller: shared_blocks.Puller, side: int) -> Floats:
    """Read the heads of the blocks that `blocks_of_file` made."""
    place = _place(side, OF_FILE)
    first = shared_blocks.heads(puller, place, [0])
    return shared_blocks.heads(puller, place, range(int(first[0, FILE_BLOCKS_AT])))


def forgetting(names: Names, users: int, items: int) -> str:
    """Warn that a model is continued whose file lacks the lines of its training; "" if none of its
    `users` and `items`, the first of `names`, has a line in the input.

    A row is a function of its own lines: a new line of a user, trained alone, takes the place of
    all earlier ones.
    """
    counts = [
        int(np.count_nonzero(of_kind[:number]))
        for of_kind, number in zip(names.counts, (users, items), strict=True)
    ]
    if not any(counts):
        return ""
    return (
        "the file lacks the lines of its training (they were more than "
        f"{KNOWN_MAX:,}, or an earlier version wrote it): {counts[USER]:,} of its users and "
        f"{counts[ITEM]:,} of its items are solved from the lines of this input alone. Give their "
        "earlier lines again, as a further file of input; names without lines keep their rows"
    )


def packed_block(
    own: NDArray[Any], other: NDArray[Any], weights: Floats, bounds: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Pack lines by the range of their own names; return head and words of their block."""
    own, other = own.astype(np.int64, copy=False), other.astype(np.int64, copy=False)
    words, ends = packed_pairs.pack(own, other, weights, bounds)
    head = np.zeros(FILE_BLOCKS_AT + 1, np.float32)
    head[: len(ends)], head[LINES_AT] = ends, len(own)
    return head, words


def _place(side: int, source: int) -> ChunkPlace:
    """Where blocks of lines are, sorted by ranges of a side; `source`: `OF_INPUT` or `OF_FILE`."""
    return ChunkPlace(LINES, source + side, source + side)


def bounds_of(counts: NDArray[np.int64], ranges: int, dim: int) -> NDArray[np.int64]:
    """Cut names, in their order, into ranges that take about equally long with `dim` factors.

    Returns the first name of each range, then the number of names.

    A name counts as `NAME_LINES` and more lines beside its own.
    """
    ends = np.cumsum(counts + NAME_LINES + dim // NAME_FLOATS)
    wanted = ends[-1] * np.arange(1, ranges) / ranges if len(ends) else np.zeros(ranges - 1)
    inner = np.searchsorted(ends, wanted, side="left") + 1
    bounds = np.concatenate(([0], inner, [len(counts)]))
    bounds = np.minimum(np.maximum.accumulate(bounds), len(counts))
    return bounds.astype(np.int64)


@dataclass(frozen=True, slots=True)
class KnownLines:
    """Lines of a training, or of a range: user i has ``items[ptr[i] : ptr[i + 1]]``, ascending.

    An item that has two lines comes twice.  `weights` (float32) has one a line, or none where all
    are 1.  A range of items has users in the place of items.
    """

    ptr: NDArray[np.int64]
    items: Ids
    weights: Floats

    @classmethod
    def of(
        cls,
        users: NDArray[np.integer],
        items: NDArray[np.integer],
        user_num: int,
        weights: Floats = NO_WEIGHTS,
    ) -> KnownLines:
        """Make it from lines in any order; a pair may come twice, with two weights."""
        pairs = _pairs(users, items)
        if len(weights):
            order = np.lexsort((weights, pairs))
            pairs, weights = pairs[order], weights[order]
        else:
            pairs.sort()  # four times as fast as their order
        counts = np.bincount(users, minlength=user_num)
        ptr = np.concatenate(([0], np.cumsum(counts)))
        return cls(ptr, pairs.astype(np.int32), weights)  # the lower half of each

    @classmethod
    def in_file(cls, arrays: Mapping[str, NDArray[Any]], path: str) -> KnownLines | None:
        """Read it from the arrays of a model's file; None if the file lacks it: other loss, or too
        many lines.

        ModelFileError: it does not fit the names of the file.
        """
        if not {KNOWN_PTR, KNOWN_ITEMS} <= arrays.keys():
            return None
        ptr, items = arrays[KNOWN_PTR], arrays[KNOWN_ITEMS]  # not narrowed before the check
        weights = arrays.get(KNOWN_WEIGHTS, NO_WEIGHTS)
        users, item_num = (len(arrays[rows_of(kind)]) for kind in ("users", "items"))
        fits = (
            all(of_file.dtype.kind in "iu" for of_file in (ptr, items))
            and weights.dtype.kind in "iuf"
            and ptr.shape == (users + 1,)
            and items.ndim == 1
            and weights.shape in ((0,), items.shape)
            and ptr[0] == 0
            and bool((ptr[:-1] <= ptr[1:]).all())
            and ptr[-1] == len(items)
            and bool(((items >= 0) & (items < item_num)).all())
        )
        if not fits:
            raise ModelFileError(
                f"{path}: expected lines of {users:,} users and {item_num:,} items, got others: "
                f"{KNOWN_PTR} {ptr.shape}, {KNOWN_ITEMS} {items.shape}. Train that model again"
            )
        return cls(ptr.astype(np.int64), items.astype(np.int32), weights.astype(np.float32))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the arrays for a model's file."""
        weights = {KNOWN_WEIGHTS: self.weights} if len(self.weights) else {}
        return {KNOWN_PTR: self.ptr, KNOWN_ITEMS: self.items, **weights}

    def pairs(self) -> tuple[Ids, Ids]:
        """Give the pairs of all lines, as their users and their items."""
        users = np.repeat(np.arange(len(self.ptr) - 1, dtype=np.int32), np.diff(self.ptr))
        return users, self.items

    def repeated(self) -> int:
        """Count the lines whose pair an earlier line has."""
        again = self.items[1:] == self.items[:-1]
        begins = np.unique(self.ptr)[1:-1]  # of users' lines but the first ones
        again[begins - 1] = False
        return int(np.count_nonzero(again))

    def counts(self, item_num: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Count the lines of each user, and of each of the `item_num` items."""
        return np.diff(self.ptr), np.bincount(self.items, minlength=item_num)

    def partners(self, side: int, name: int) -> NDArray[np.int64]:
        """Find the items of a user, or the users of an item, which reads all pairs."""
        if side == USER:
            return self.items[self.ptr[name] : self.ptr[name + 1]].astype(np.int64)
        return np.searchsorted(self.ptr, np.flatnonzero(self.items == name), side="right") - 1


class OtherSide:
    """What the ranges of a pass read: rows of the other side, and the sum of its Gram matrices.

    Nothing in a pass writes them, so its ranges share what was pulled: each row once, as long as
    there is room in `rows`.  `places` runs in `prepare`, `wait` in `train`.
    """

    def __init__(
        self, pass_index: int, count: int, rows: Floats, dim: int, ask: AskRows, grams: Pending
    ) -> None:
        self.pass_index = pass_index
        self._rows, self._dim, self._ask, self._grams = rows, dim, ask, grams
        self._gram: Floats | None = None
        self._pulls: deque[Pending] = deque()
        self._asked = self._waited = self._held = 0
        self._place = np.full(count, -1, np.int32)

    def places(self, others: Ids) -> tuple[Floats, Ids, int]:
        """Ask for rows that no range has asked for: rows, places of `others`, pulls to wait for."""
        lacking, places = packed_pairs.place(others, self._place, self._held)
        if self._held + len(lacking) > len(self._rows):
            self._place.fill(-1)
            self._held = 0
            lacking, places = packed_pairs.place(others, self._place, 0)
            # Other memory: earlier ranges still read what they have asked for.
            self._rows = kernels.padded(max(len(lacking), len(self._rows)), self._dim)
        if len(lacking):
            stop = self._held + len(lacking)
            self._pulls.append(self._ask(lacking, self._rows[self._held : stop]))
            self._held, self._asked = stop, self._asked + 1
        return self._rows, places, self._asked

    def wait(self, pulls: int, a0: float) -> Floats:
        """Wait for the first pulls; return a0 times the sum of Gram matrices, padded."""
        while self._waited < pulls:
            self._pulls.popleft().wait()
            self._waited += 1
        if self._gram is None:
            whole = np.zeros((self._dim, self._dim))
            for matrix in self._grams.wait().reshape(-1, self._dim, self._dim):
                whole += matrix
            stride = self._rows.shape[1]
            self._gram = np.zeros((stride, stride), np.float32)
            self._gram[: self._dim, : self._dim] = a0 * whole
        return self._gram


@dataclass(slots=True)
class GramTask:
    """A prepared range of the preparing pass: its own rows, on their way."""

    rows: Pending


@dataclass(slots=True)
class SolveTask:
    """A prepared range: its lines, the rows of the other side that it waits for, and their places.

    `idle`: own rows without lines, on their way; None if there are none.
    """

    lines: KnownLines
    other: OtherSide
    rows: Floats
    places: Ids
    pulls: int
    idle: Pending | None


RangeTask = GramTask | SolveTask


class RangeTrainer:
    """Prepares and trains ranges for a `MatrixFactorization` worker, after its `setup`.

    `prepare` runs beside `train`; it changes `_kept`, `_other` and `_room`, which `train` does not
    read.
    """

    def __init__(self, model: EmbeddingWorker, settings: MfSettings, names: Names) -> None:
        self._model, self._dim, self._weighs = model, settings.dim, settings.weighs
        self._counts, self._continues = names.counts, bool(settings.continue_from)
        self.weights = Weights.of(settings, names)
        ranges = passes_of(settings, names).ranges
        self._bounds = [bounds_of(counts, ranges, self._dim) for counts in names.counts]
        if max(len(counts) for counts in names.counts) >= NAMES_END:
            raise DataError(
                f"loss als: expected fewer than {NAMES_END:,} users and items, got "
                f"{len(names.counts[USER]):,} and {len(names.counts[ITEM]):,}: use loss softmax"
            )
        self._kept: dict[tuple[int, int], Floats] = {}
        self._kept_bytes = 0
        self._room: Floats | None = None
        self._other: OtherSide | None = None
        self._pool = ThreadPoolExecutor(model.threads, "snailps-solve")

    def close(self) -> None:
        """End the threads, and free lines and rows: the master writes the model meanwhile."""
        self._pool.shutdown()
        self._kept.clear()
        self._other = self._room = None

    # --- a range ----------------------------------------------------------------------------------

    def prepare(self, block: Block) -> RangeTask | None:
        terms = block.terms
        assert isinstance(terms, PassRange)
        if not terms.pass_index:
            self._store(block, terms)
            return None
        self._model.forget_names()
        side = _side(terms)
        if terms.pass_index <= PREPARING:
            own = np.arange(*self._names_in(side, terms.range_index))
            return GramTask(self._model.pull_async(TABLE, self._model.keys_of(side, own)))
        if self._other is None or self._other.pass_index != terms.pass_index:
            self._other = self._other_side(terms.pass_index, 1 - side)
        lines = self._lines_of(side, terms)
        rows, places, pulls = self._other.places(lines.items)
        idle = self._idle(side, terms.range_index)
        idle_rows = (
            self._model.pull_async(TABLE, self._model.keys_of(side, idle)) if len(idle) else None
        )
        return SolveTask(lines, self._other, rows, places, pulls, idle_rows)

    def _other_side(self, pass_index: int, side: int) -> OtherSide:
        """Begin a pass that reads a side, in the memory of the pass before: its ranges are done."""
        counts, stride = list(map(len, self._counts)), -(-self._dim // kernels.PAD) * kernels.PAD
        if self._room is None:
            self._room = kernels.padded(min(max(counts), ROWS_BYTES // (4 * stride)), self._dim)
        grams = self._model.pull_async(GRAMS, self._gram_keys(side))
        ask = partial(self._pull, side)
        return OtherSide(pass_index, counts[side], self._room, self._dim, ask, grams)

    def train(self, block: Block) -> Mapping[str, float]:
        """Solve a range, and start to assign its rows and their Gram matrix."""
        terms, task = block.terms, block.prepared
        assert isinstance(terms, PassRange)
        if task is None:
            return {"units": 0}
        side, part = _side(terms), terms.range_index
        if isinstance(task, GramTask):
            self._assign_gram(side, part, _padded(task.rows.wait()))
            return {"units": 0}
        gram = task.other.wait(task.pulls, self.weights.a0)
        first, stop = self._names_in(side, part)
        counts = self._counts[side][first:stop]
        rows = kernels.padded(stop - first, self._dim)
        penalties = self.weights.penalties(counts, len(self._counts[1 - side]))
        arguments = (
            task.rows, gram, task.lines.ptr, task.places, task.lines.weights, penalties, rows,
        )  # fmt: skip
        solve = partial(kernels.solve_rows, *arguments, steps=STEPS)
        loss = sum(self._in_threads(solve, _equal_parts(task.lines.ptr, self._model.threads)))
        lines = len(task.places)
        if not np.isfinite(loss):
            return {"loss": float("nan"), "examples": float(lines)}
        solved = np.flatnonzero(counts)
        values = rows if len(solved) == len(rows) else rows[solved]
        self._model.assign_async(
            TABLE,
            self._model.keys_of(side, first + solved),
            np.ascontiguousarray(values[:, : self._dim]),
        )
        if task.idle:  # names without lines keep the rows that they have
            rows[counts == 0, : self._dim] = task.idle.wait()
        self._assign_gram(side, part, rows)
        return {"units": float(lines), "loss": loss, "examples": float(lines)}

    def _names_in(self, side: int, part: int) -> tuple[int, int]:
        first, stop = self._bounds[side][part : part + 2].tolist()
        return first, stop

    def _idle(self, side: int, part: int) -> NDArray[np.int64]:
        """Names of a range that have no lines: they come from the model that training continues."""
        first, stop = self._names_in(side, part)
        return first + np.flatnonzero(self._counts[side][first:stop] == 0)

    def _pull(self, side: int, names: Ids, out: Floats) -> Pending:
        """Pull rows of names into the first columns of `out`."""
        return self._model.pull_async(TABLE, self._model.keys_of(side, names), out[:, : self._dim])

    def _in_threads(self, function: Callable[..., Any], edges: list[int]) -> list[Any]:
        """Call a kernel on ranges of rows, one range a thread; no row depends on another."""
        spans = [span for span in itertools.pairwise(edges) if span[1] > span[0]]
        if len(spans) < 2:
            return [function(first=first, last=last) for first, last in spans]
        tasks = [self._pool.submit(function, first=first, last=last) for first, last in spans]
        return [task.result() for task in tasks]

    # --- Gram matrices ----------------------------------------------------------------------------

    def _gram_keys(self, side: int, parts: range | None = None) -> Keys:
        """Keys of the Gram matrices of some ranges of a side; by default of all."""
        parts = range(len(self._bounds[side]) - 1) if parts is None else parts
        first = (side * RANGES_MAX + parts.start) * self._dim
        return np.arange(first, first + len(parts) * self._dim, dtype=np.uint64)

    def _assign_gram(self, side: int, part: int, rows: Floats) -> None:
        stride = rows.shape[1]
        gram = np.zeros((stride, stride))
        parts = np.linspace(0, 1, self._model.threads + 1)
        edges = (stride * (1 - np.sqrt(1 - parts))).astype(int)  # equal areas of a triangle
        self._in_threads(partial(kernels.add_gram, rows, gram), edges.tolist())
        keys = self._gram_keys(side, range(part, part + 1))
        values = gram[: self._dim, : self._dim].astype(np.float32)
        self._model.assign_async(GRAMS, keys, values)

    # --- lines, in a table ------------------------------------------------------------------------

    def _store(self, block: Block, terms: PassRange) -> None:
        """Write the lines of a block, once for each side, sorted by range."""
        numbered, weights = self._model.numbered(block)
        for side in (USER, ITEM):
            own, other = numbered[side], numbered[1 - side]
            if len(own) >= NAMES_END:
                raise DataError(f"{block.path}: {len(own):,} lines in a block: lower block_bytes")
            head, words = packed_block(own, other, weights, self._bounds[side])
            rows = shared_blocks.rows_of(_place(side, OF_INPUT), terms.range_index, head, words)
            self._model.assign_async(LINES, *rows)

    def _lines_of(self, side: int, terms: PassRange) -> KnownLines:
        """Get the lines of a range: kept from an earlier pass, up to `LINES_BYTES`, or read.

        DataError: servers have lost some of them.
        """
        part = terms.range_index
        first, stop = self._names_in(side, part)
        shape = stop - first, len(self._counts[1 - side]), self._weighs
        words = self._kept.get((side, part))
        if words is not None:
            return _unpacked([RangeLines(words, np.array([len(words)]))], *shape)
        try:
            place = _place(side, OF_INPUT)
            heads = {place: shared_blocks.heads(self._model, place, range(terms.block_count))}
            if self._continues:
                heads[_place(side, OF_FILE)] = _heads_of_file(self._model, side)
            pieces = [
                _read(self._model, place, part, of_source) for place, of_source in heads.items()
            ]
        except LostBlocks as lost:
            raise DataError(
                f"servers have lost lines of blocks {lost.indices[:3]} of the input, as one was "
                "lost without its last pushes (replication: async, or none): start again, from a "
                "checkpoint if there is one, or with replication: sync"
            ) from None
        lines = _unpacked(pieces, *shape)
        words = packed_pairs.pack_sorted(lines.ptr, lines.items, lines.weights)
        if self._kept_bytes + words.nbytes <= LINES_BYTES:
            self._kept[side, part] = words
            self._kept_bytes += words.nbytes
        return lines


def _side(terms: PassRange) -> int:
    """The side whose rows a pass writes."""
    return ITEM if terms.pass_index <= PREPARING else (terms.pass_index - PREPARING - 1) % 2


def _equal_parts(ptr: NDArray[np.int64], parts: int) -> list[int]:
    """Edges of ranges of names with about as many lines each."""
    inner = np.searchsorted(ptr, ptr[-1] * np.arange(1, parts) / parts)
    return [0, *np.minimum(inner, len(ptr) - 1).tolist(), len(ptr) - 1]
