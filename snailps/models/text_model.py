"""Base class of models of text: their survey of words, and their `.bin` files.

    survey: bytes of a block -> word counts -> `TextModel.summarize`, at the master
    export: ranges of keys -> rows in pieces, at the master
    warm start: shape, words and rows of a model file -> settings, vocabulary, tables

Owns the keys of words and of n-gram buckets.  No mathematics: the model trains rows, `local_sgd`
moves them.
"""

from __future__ import annotations

import itertools
import mmap
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.traits import SurveyPart
from snailps.api.worker import Block, Results
from snailps.config import JobSettings
from snailps.data._normaliser import Normaliser
from snailps.data._text import WordCounter
from snailps.data.huffman import Tree
from snailps.data.packed_words import PackedWords
from snailps.data.vocabulary import LABEL_PREFIX, Vocabulary
from snailps.errors import ModelFileError
from snailps.files.scratch import release_whole
from snailps.models.block_trainer import BlockTrainer
from snailps.models.local_sgd import Floats, Keys
from snailps.models.pace import Pace, of_workers
from snailps.models.packed_tables import opened
from snailps.models.shared_settings import check_optimizer
from snailps.vectors.fasttext_bin import BinHeader, read_bin, write_bin

Settings = TypeVar("Settings", bound=JobSettings)

BUCKET_KEY = 1 << 40
"""Key of n-gram bucket 0, in a table whose key i is word i: so a vocabulary may grow, and no bucket
moves."""
BLOCK_BYTES_MAX = 6 << 20
"""About a million words of English.  Larger blocks pull fewer rows a word, but take more memory."""
BLOCK_BYTES_SMALL = 64 << 10
"""Size below which several workers double a block, because most of its rows are negatives."""
EXPORT_ROWS = 50_000
EXPORT_BYTES = 8 << 20
"""Most rows, and bytes of rows, that the master pulls at a time."""
PUT_SHARE = 2
"""Rows are set in pieces of 1 / PUT_SHARE of that, since each is in memory three times: as present,
as wanted and as pushed."""
_UNREAD_BYTES = 8
"""Bytes before a part's counts: how many words were too long to be read."""


def normal_form_of(parts: str, label_prefix: bytes = LABEL_PREFIX) -> Callable[[bytes], bytes]:
    """Return what gives a text its normal form, of these `parts` (`normal_forms.PARTS`)."""
    return Normaliser(parts, label_prefix=label_prefix).of if parts else lambda text: text


class WordSurveyor:
    """Merge the workers' word counts into a summary, ``summarize(counter)``."""

    def __init__(self, summarize: Callable[[WordCounter], bytes]) -> None:
        self._summarize = summarize
        self._counter = WordCounter()

    def add(self, part: bytes) -> None:
        self._counter.merge(part[_UNREAD_BYTES:])
        self._counter.unread += int.from_bytes(part[:_UNREAD_BYTES], "little")

    def result(self) -> bytes:
        return self._summarize(self._counter)


class WordPart:
    """Counts the words of a worker's blocks, of the text that `text_of` gives of each."""

    def __init__(self, text_of: Callable[[Block], bytes] = lambda block: block.data) -> None:
        self._counter, self._text_of = WordCounter(), text_of

    @property
    def size_bytes(self) -> int:
        return _UNREAD_BYTES + self._counter.dump_bytes

    def add(self, block: Block) -> None:
        self.count(self._text_of(block))

    def count(self, text: bytes) -> None:
        """Count the words of whole lines, as `text_of` gives them."""
        self._counter.count(text)

    def take(self) -> bytes:
        """The counts; counting begins anew."""
        counter, self._counter = self._counter, WordCounter()
        return counter.unread.to_bytes(_UNREAD_BYTES, "little") + counter.dump()


class TextModel(BlockTrainer):
    """A model of text, whose survey counts words; its tables have access ``add`` or ``adagrad``."""

    counts: ClassVar[Literal["examples", "words"]] = "words"
    optimizers: ClassVar[tuple[str, ...]] = ("add",)
    """Allowed values of `optimizer` besides ``auto``."""

    paces: ClassVar[tuple[Pace, ...]] = (
        Pace(10, BLOCK_BYTES_MAX),
        Pace(40, BLOCK_BYTES_MAX, BLOCK_BYTES_SMALL, 40),
    )
    """Paces for a single worker, and for several (`pace.of_workers`)."""

    @classmethod
    def check(cls, settings: Any) -> None:
        """Refuse access methods that do not add up deltas."""
        why = f"{cls.__name__}, whose workers push differences"
        check_optimizer(settings, cls.optimizers, why)

    @classmethod
    def pace(cls, settings: Any, workers: int) -> Pace:
        return of_workers(workers, *cls.paces)

    @classmethod
    @abstractmethod
    def summarize(cls, settings: Any, counter: WordCounter) -> bytes:
        """Make the survey's summary: the vocabularies."""

    @classmethod
    def surveyor(cls, settings: Any) -> WordSurveyor:
        return WordSurveyor(partial(cls.summarize, settings))

    def survey_part(self) -> SurveyPart:
        return WordPart()


def bucket_keys(first: int, last: int) -> Keys:
    """The buckets' own keys."""
    return np.arange(BUCKET_KEY + first, BUCKET_KEY + last, dtype=np.uint64)


def write_model(
    results: Results, path: str, words: Vocabulary, outputs: Vocabulary, buckets: int, s: Any,
    keys_of: Callable[[int, int], Keys], /, **own: Any,
) -> None:  # fmt: skip
    """Write a model's `.bin`; output rows belong to labels, or to the words themselves.

    ``keys_of(first, last)`` gives the key of the row of each bucket from `first` to `last - 1`.
    """
    header = BinHeader(
        dim=s.dim,
        bucket=buckets,
        minn=s.minn if s.maxn else 0,
        maxn=s.maxn,
        epochs=s.epochs,
        min_count=s.min_count,
        negatives=s.negatives,
        tokens=words.tokens,
        normalize=s.normalize,
        **own,
    )
    progress, what = results.exporting, f"writing {path}"
    inputs = itertools.chain(
        key_ranges(results, "input", (0, len(words))), _bucket_rows(results, buckets, keys_of)
    )
    rows = key_ranges(results, "output", (0, len(outputs)))
    write_bin(
        path,
        header,
        words.words,
        words.counts,
        progress.count(what, len(words) + buckets, "rows", inputs),
        progress.count(what, len(outputs), "rows", rows),
        *(() if outputs is words else (outputs.words, outputs.counts)),
    )


def _bucket_rows(
    results: Results, buckets: int, keys_of: Callable[[int, int], Keys]
) -> Iterator[Floats]:
    """Yield the rows of all buckets, in pieces; a row of several of a piece is pulled once."""
    step = export_rows(results.tables["input"].dim)
    places: deque[NDArray[np.int64]] = deque()

    def keys() -> Iterator[Keys]:
        for at in range(0, buckets, step):
            different, of_piece = np.unique(
                keys_of(at, min(at + step, buckets)), return_inverse=True
            )
            places.append(of_piece)
            yield different

    for rows in results.pulls("input", keys()):
        yield rows[places.popleft()]


def key_ranges(results: Results, table: str, *ranges: tuple[int, int]) -> Iterator[Floats]:
    """Yield the rows of key ranges (first, count), in pieces."""
    step = export_rows(results.tables[table].dim)
    return results.pulls(
        table,
        (
            np.arange(min(step, count - at), dtype=np.uint64) + np.uint64(first + at)
            for first, count in ranges
            for at in range(0, count, step)
        ),
    )


def export_rows(dim: int) -> int:
    return max(1, min(EXPORT_ROWS, EXPORT_BYTES // (4 * dim)))


def vocabulary_of(words: Sequence[bytes], counts: NDArray[np.int64], tokens: int) -> Vocabulary:
    """Make the vocabulary of a model file; each word counts at least once."""
    counts = np.maximum(counts, 1)
    return Vocabulary(PackedWords.of(words), counts, max(tokens, int(counts.sum())))


def put_model(
    results: Results, s: Settings, words: Vocabulary, labels: Vocabulary | None, *, buckets: bool
) -> None:
    """Set all rows of the `.bin` of `continue_from`: its input and its output matrix.

    The file's words and labels must be among `words` and `labels`; `buckets` says whether it has
    rows of n-grams.  Rows of a tree's inner nodes become rows of the new tree, which has more
    leaves, or other counts.  `ModelFileError` if the file has changed since the survey.
    """
    path: str = s.continue_from  # type: ignore[attr-defined]
    model = read_bin(opened(s))
    n = len(model.words)
    of_words = of_outputs = words.lexicon.indices(PackedWords.of(model.words))
    targets, counts, rows = words, model.counts, model.output[:]
    if labels is not None:
        of_outputs = labels.lexicon.indices(PackedWords.of(model.labels))
        targets, counts = labels, model.label_counts
    if min(of_words.min(initial=0), of_outputs.min(initial=0)) < 0:
        raise ModelFileError(f"{path}: changed while its text was counted; start again")
    model.mapped.madvise(mmap.MADV_SEQUENTIAL)
    if model.header.loss == "hs":
        check_finite(path, rows)
        rows = Tree.of(counts).regrown(rows[:-1], Tree.of(targets.counts), of_outputs)
        of_outputs = np.arange(len(rows))
    matrices = [("input", of_words, model.input[:n]), ("output", of_outputs, rows)]
    if buckets:
        grams = np.arange(len(model.input) - n) + BUCKET_KEY
        matrices.append(("input", grams, model.input[n:]))
    results.exporting.plan([len(rows) for _, _, rows in matrices])

    def pieces(
        keys: NDArray[np.integer[Any]], rows: Floats
    ) -> Iterator[tuple[NDArray[np.uint64], Floats]]:
        step = max(1, export_rows(rows.shape[1]) // PUT_SHARE)
        for at in range(0, len(rows), step):
            piece = np.array(rows[at : at + step])  # a copy: mapped rows are not aligned
            model.mapped.madvise(mmap.MADV_DONTNEED)  # frees the pages of rows that were read
            check_finite(path, piece)
            yield keys[at : at + step].astype(np.uint64), piece

    for table, keys, rows in matrices:
        what = f"reading {path}"
        counted = results.exporting.count(
            what, len(rows), "rows", pieces(keys, rows), lambda piece: len(piece[0])
        )
        results.puts(table, counted)
    release_whole(path)


def check_finite(path: str, rows: Floats) -> None:
    if not np.isfinite(rows).all():
        raise ModelFileError(
            f"{path}: holds values that are no numbers: its training diverged, or the file is "
            "damaged"
        )
