"""fastText's binary model format: writes version 12; reads it, older versions and floret's.

    BinHeader + words + counts + chunks of rows -> write_bin -> model.bin
    model.bin -> read_bin -> BinModel (header, words, counts, memory-mapped matrices)

Owns every byte offset of the format (docs/files.md shows them) except inside a quantised matrix
(`quantised`).  Must not know what a vector is used for.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from snailps.abi.memory import prefer_huge_pages
from snailps.data._labelled import KeptGrams
from snailps.data._text import without_tails
from snailps.data.normal_forms import mask_of, parts_of
from snailps.data.packed_words import PackedWords
from snailps.dataclass import dataclass, replace
from snailps.errors import ModelFileError, shown_bytes
from snailps.files.atomic import atomic_file
from snailps.files.file_kinds import SEPARATORS
from snailps.files.model_file import refuse_pointer
from snailps.pointers import POINTER_BYTES
from snailps.vectors.calibration import Calibration
from snailps.vectors.quantised import Cursor, QuantisedRows, read_quantised

MAGIC = 793712314
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
VERSION = 12
# Version 11 has the same bytes; only its supervised models, which had no subwords, differ.
VERSION_OLDEST = 11

LOSSES = {"hs": 1, "ns": 2, "softmax": 3, "ova": 4}
MODELS = {"cbow": 1, "skipgram": 2, "supervised": 3}

_HEAD = struct.Struct("<ii 12i d")  # magic, version, twelve arguments, sampling threshold
_COUNTS = struct.Struct("<iii qq")  # entries, words, labels, tokens, pruned n-grams (-1: none)
_MODE_FLORET, _HASHES_MAX = 2, 4
_T_FLORET = 1e-300
"""A sampling threshold below this is no float64 of fastText but two integers of floret's header."""
_NORMALISED, _SAMPLE_DIGITS = 0xEB5A17, 5
"""Of a model with a normal form, 24 of the last 32 bits of the sampling threshold are a mark, and
eight are the parts.  The bits before them hold five digits: fastText keeps it, and prints these."""
_PREFIXED, _PREFIX_MAX = 0x3F1A36, 200
"""Of a classifier, which samples no words, 24 of the first 32 bits may be those of 1e-4, and the
eight after them the length of the labels' prefix; above the maximum are the bits of 1e-4 itself."""
_ENTRY_TAIL = np.dtype([("nul", "u1"), ("count", "<i8"), ("kind", "i1")])  # after its name
_SHAPE = struct.Struct("<?qq")  # quantised?, rows, columns; the values follow
_WORD, _LABEL = 0, 1
ENTRY_BYTES = _ENTRY_TAIL.itemsize
"""Bytes of a word in a file besides its letters."""
_ENTRY_BYTES_MIN = 1 + _ENTRY_TAIL.itemsize  # of one letter
_INT32_MAX = 2**31 - 1
_MAXN_MAX = 1000
"""Longest n-grams that a header may ask for: a word of 1,000 letters has half a million of them."""


class _BinLayout(NamedTuple):
    """Layouts of a program's header, its counts before the dictionary, and a matrix's shape."""

    head: struct.Struct
    counts: struct.Struct
    shape: struct.Struct


_FASTTEXT = _BinLayout(_HEAD, _COUNTS, _SHAPE)
_FLORET = _BinLayout(struct.Struct("<ii 14i d"), _COUNTS, _SHAPE)
"""floret has two more integers after `maxn`: its mode (1: fastText's, 2: its own) and hashes."""
_UNVERSIONED = _BinLayout(struct.Struct("<12i d"), struct.Struct("<iii q"), struct.Struct("<qq"))
"""fastText until spring 2017: without magic, version, pruning and quantisation."""
_IS_SEPARATOR = np.isin(np.arange(256), list(SEPARATORS))
_IS_NEWLINE = np.arange(256) == ord("\n")
_NPZ_HOLDS = "; a .npz may hold words with blanks"

COPIED_BYTES = 1 << 30
"""Commands that use a model for long copy a smaller one, so that its file may be replaced."""
# Words checked or packed at a time.
_TOGETHER = 65536

Float32 = npt.NDArray[np.float32]
Rows: TypeAlias = "Float32 | QuantisedRows"


@dataclass(frozen=True, slots=True)
class BinHeader:
    """The training arguments in a .bin file, mostly for a training that continues.

    ``maxn = 0`` means no subwords; `bucket` is then normally 0.  Vectors trained with NCE are
    stored as "ns", because the format has no NCE.  `tokens` counts the training text, rare words
    included; 0 stands for the sum of the counts.  `hashes` is floret's number of rows for each word
    and n-gram, whose words (except the first) have no rows of their own; 0: a fastText model.
    `normalize` lists the parts of the normal form of texts (`data.normal_forms.PARTS`), which only
    snailps reads; `sample` has five digits then, and 1 stands for 0, no subsampling.  `prefix` is
    the length in bytes of a classifier's prefix of labels, which only snailps reads, too; 0: the
    file does not say.
    """

    dim: int
    bucket: int = 0
    minn: int = 0
    maxn: int = 0
    window: int = 5
    epochs: int = 5
    min_count: int = 5
    negatives: int = 5
    word_ngrams: int = 1
    loss: str = "ns"
    model: str = "skipgram"
    lr_update_rate: int = 100
    sample: float = 1e-4
    tokens: int = 0
    hashes: int = 0
    normalize: str = ""
    prefix: int = 0

    @property
    def grams(self) -> tuple[int, int]:
        """Shortest and longest n-grams in characters; (0, 0): none.

        fastText also writes minn above maxn for none.
        """
        return (self.minn, self.maxn) if self.maxn > 0 and self.maxn >= self.minn else (0, 0)

    @property
    def shape(self) -> dict[str, Any]:
        """Settings that the rows depend on: a continued training must have the same values."""
        is_classifier = self.model == "supervised"
        settings: dict[str, Any] = {"dim": self.dim, "model": self.model}
        if self.loss == "hs":  # `ns` stands for `nce`, too
            settings["loss"] = self.loss
        if is_classifier:
            ngrams = max(self.word_ngrams, 1)
            settings = {"dim": self.dim, "loss": self.loss, "word_ngrams": ngrams}
        settings["normalize"] = self.normalize
        least = max(self.minn, 1)  # fastText treats a `minn` of 0 as 1
        has_grams = self.maxn >= least and (is_classifier or self.bucket > 0)
        settings |= {"minn": least, "maxn": self.maxn} if has_grams else {"maxn": 0}
        has_buckets = self.bucket > 0 and (is_classifier or has_grams)
        return {**settings, "bucket": self.bucket} if has_buckets else settings

    @property
    def habits(self) -> dict[str, Any]:
        """Settings that a continued training takes from the file unless it sets others."""
        settings: dict[str, Any] = {"negatives": self.negatives, "min_count": self.min_count}
        if self.model == "supervised":
            return settings
        return {**settings, "window": self.window, "sample": self.sample}

    def refuse_floret(self, path: str | os.PathLike[str]) -> None:
        """Raise ModelFileError for a model whose words have no rows of their own to train."""
        if self.hashes:
            raise ModelFileError(
                f"{path}: a model of floret's own mode, whose words are sums of {self.hashes} "
                "hashed rows: snailps.load and the commands read it, but snailps cannot train on "
                "with it"
            )


@dataclass(frozen=True, slots=True)
class BinModel:
    """An opened .bin file: words, labels (with their prefix) and counts, all in row order.

    `input` has word rows, then n-gram rows.  `input` and `output` are read-only views of the mapped
    file, which are not aligned to 4 bytes; in a quantised model (.ftz) they are `QuantisedRows`.
    `pruned` says which n-grams of a pruned model have rows.  `calibration` is from the file beside
    it (`files.open_bin`).
    """

    header: BinHeader
    words: PackedWords
    counts: npt.NDArray[np.int64]
    labels: list[bytes]
    input: Rows
    output: Rows
    mapped: mmap.mmap
    label_counts: npt.NDArray[np.int64]
    pruned: KeptGrams | None = None
    calibration: Calibration | None = None


def write_bin(
    path: str | os.PathLike[str],
    header: BinHeader,
    words: Sequence[bytes],
    counts: Sequence[int] | npt.NDArray[np.int64],
    input_chunks: Iterable[Float32] | QuantisedRows,
    output_chunks: Iterable[Float32] | QuantisedRows,
    labels: Sequence[bytes] = (),
    label_counts: Sequence[int] | npt.NDArray[np.int64] = (),
    pruned: KeptGrams | None = None,
) -> None:
    """Write a model that the official ``fasttext`` package loads; memory is one chunk.

    `words` are most frequent first, as fastText requires, with counts of at least 1.  The input
    chunks have ``n + header.bucket`` rows in all, or n and one for each of `pruned`; the output
    chunks have n rows or, for a classifier, one row per label.  Word vectors with quantised input
    rows have no output rows, which no query needs.  fastText's word vectors of a text with labels
    name these, too.
    """
    _check_header(path, header)
    check_words(path, words)
    if labels:
        check_words(path, labels)
    if header.model == "supervised" and not labels:
        raise ModelFileError(f"{path}: expected a supervised model's labels, got none")
    grams = header.bucket if pruned is None else len(pruned)
    outputs = len(labels) if header.model == "supervised" else len(words)
    if _lacks_outputs(header, input_chunks):
        outputs, output_chunks = 0, ()
    matrices = [
        ("input", len(words) + grams, input_chunks), ("output", outputs, output_chunks)
    ]  # fmt: skip
    dictionary = _pack_entries(path, words, counts, _WORD)
    dictionary += _pack_entries(path, labels, label_counts, _LABEL)
    tokens = header.tokens or int(np.sum(counts) + np.sum(label_counts))
    head = _pack_header(path, header) + _COUNTS.pack(
        len(words) + len(labels),
        len(words),
        len(labels),
        tokens,
        -1 if pruned is None else len(pruned),
    )
    pairs = b"" if pruned is None else pruned.pairs.astype("<i4").tobytes()
    size = len(head) + len(dictionary) + len(pairs)
    size += sum(_matrix_bytes(header.dim, rows, chunks) for _, rows, chunks in matrices)
    with atomic_file(path, size) as file:
        file.write(head)
        file.write(dictionary)
        file.write(pairs)
        for name, rows, chunks in matrices:
            for piece in _matrix_pieces(path, f"{name} matrix", header.dim, rows, chunks):
                file.write(piece)


def _lacks_outputs(header: BinHeader, inputs: object) -> bool:
    """Whether a model has no output rows: word vectors whose input rows are quantised."""
    return isinstance(inputs, QuantisedRows) and header.model != "supervised"


def _matrix_bytes(dim: int, rows: int, chunks: Iterable[Float32] | QuantisedRows) -> int:
    return chunks.nbytes if isinstance(chunks, QuantisedRows) else _SHAPE.size + 4 * dim * rows


def _matrix_pieces(
    path: str | os.PathLike[str],
    name: str,
    dim: int,
    rows: int,
    chunks: Iterable[Float32] | QuantisedRows,
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a matrix, which must have `rows` rows."""
    if isinstance(chunks, QuantisedRows):
        if chunks.shape != (rows, dim):
            raise ModelFileError(
                f"{path}: the {name} needs {rows} x {dim} values, got {chunks.shape}"
            )
        yield from chunks.pieces()
        return
    yield _SHAPE.pack(False, rows, dim)
    for chunk in checked_chunks(path, name, chunks, rows, dim):
        yield np.ascontiguousarray(chunk, dtype="<f4").reshape(-1).view(np.uint8).data


def is_large(path: str | os.PathLike[str]) -> bool:
    """Whether a model's file is too large to be copied into the memory of each process."""
    with suppress(OSError):
        return os.path.getsize(path) >= COPIED_BYTES  # noqa: PTH202
    return False


def read_bin(
    path: str | os.PathLike[str],
    *,
    quantised: bool = False,
    file: IO[bytes] | None = None,
    mapped: bool = True,
) -> BinModel:
    """Open a .bin file of snailps, fastText or floret without reading its matrices.

    `quantised` allows `QuantisedRows` (a .ftz).  `file`, such as an unpacked copy, is mapped
    instead of the path.  If `mapped` is False the file is copied into memory and may change
    afterwards; a mapped file must not be overwritten in place (SIGBUS).  The mapping lives as long
    as the arrays.

    Every size in the file is compared with the file's length before memory is allocated for it: a
    damaged or hostile file must not be able to exhaust memory.
    """
    try:
        with open(path, "rb") if file is None else nullcontext(file) as source:
            length = os.fstat(source.fileno()).st_size
            refuse_pointer(path, os.pread(source.fileno(), POINTER_BYTES, 0))
            if length < _UNVERSIONED.head.size:
                raise _too_short(path, length)
            memory = (
                mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
                if mapped
                else _copied(path, source, length)
            )
            prefer_huge_pages(memory)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    header, layout = _unpack_header(path, memory)
    cursor = Cursor(path, memory, layout.head.size)
    words, counts, labels, tokens, kept = _read_dictionary(cursor, layout)
    if kept >= 0 and not quantised:
        raise _quantised(path)
    n = len(words)
    pruned = _read_pruned(cursor, kept, header.bucket) if kept >= 0 else None
    inputs = n + (header.bucket if pruned is None else kept)
    matrix = _map_matrix(cursor, layout, "input", (inputs, header.dim), quantised)
    # A classifier has one output row per label, any other model one per word; a quantised one none.
    outputs = len(labels) if header.model == "supervised" else n
    if _lacks_outputs(header, matrix) and _is_empty_matrix(cursor):
        outputs = 0
    output = _map_matrix(cursor, layout, "output", (outputs, header.dim), quantised)
    if cursor.offset != length:
        raise ModelFileError(
            f"{path}: damaged: the model ends at byte {cursor.offset}, the file at {length}; "
            "fetch or export it again"
        )
    header = replace(header, tokens=tokens)
    return BinModel(header, words, counts[:n], labels, matrix, output, memory, counts[n:], pruned)


def _copied(path: str | os.PathLike[str], file: IO[bytes], length: int) -> mmap.mmap:
    """Copy an open file into memory; ModelFileError if it changes meanwhile."""
    before, memory, done = os.fstat(file.fileno()), mmap.mmap(-1, length), 0
    file.seek(0)
    with memoryview(memory) as view:
        while done < length and (read := file.readinto(view[done:])):  # type: ignore[attr-defined]
            done += read
    after = os.fstat(file.fileno())
    if done < length or (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ModelFileError(f"{path}: was changed while it was read: read it again")
    return memory


def read_header(path: str | os.PathLike[str], file: IO[bytes] | None = None) -> BinHeader:
    """Read the training arguments of a .bin file, without `tokens`; rewinds `file`."""
    try:
        with open(path, "rb") if file is None else nullcontext(file) as source:
            start = source.read(_FLORET.head.size + _COUNTS.size)
            source.seek(0)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    refuse_pointer(path, start[:POINTER_BYTES])
    if len(start) < _UNVERSIONED.head.size:
        raise _too_short(path, len(start))
    return _unpack_header(path, start)[0]


def is_bin(start: bytes) -> bool:
    """Whether a file begins like a .bin of any version."""
    return start.startswith(MAGIC_BYTES) or _is_unversioned(start)


def _is_unversioned(start: bytes) -> bool:
    """Whether a file begins like fastText's .bin before its format had a version."""
    head, counts = _UNVERSIONED.head, _UNVERSIONED.counts
    if len(start) < head.size + counts.size:
        return False
    dim, window, _, _, _, _, loss, model, bucket, minn, maxn, _, sample = head.unpack_from(start)
    size, words, labels, tokens = counts.unpack_from(start, head.size)
    has_arguments = 0 < dim <= 1 << 20 and window >= 0 and loss in (1, 2, 3) and model in (1, 2, 3)
    has_grams = bucket >= 0 and 0 <= minn <= _MAXN_MAX and 0 <= maxn <= _MAXN_MAX
    has_counts = min(words, labels) >= 0 and size == words + labels > 0 and tokens >= 0
    return has_arguments and has_grams and 0 <= sample <= 1 and has_counts


def check_words(
    path: str | os.PathLike[str], words: Sequence[bytes], newlines_only: bool = False
) -> None:
    """Refuse words that a format cannot hold: empty, or with a separator (only a newline)."""
    if not words:
        raise ModelFileError(f"{path}: there are no words to write; is the vocabulary empty?")
    is_separator = _IS_NEWLINE if newlines_only else _IS_SEPARATOR
    packed = PackedWords.of(words)
    for start in range(0, len(words), _TOGETHER):
        part = packed[start : start + _TOGETHER]
        if part.lengths.all() and not is_separator[part.joined()].any():
            continue
        for number, word in enumerate(part, start):
            if not word or is_separator[list(word)].any():
                other = "newline" if newlines_only else "white space and no zero byte"
                raise ModelFileError(
                    f"{path}: word {number} is {shown_bytes(word)}, which the file cannot hold: a "
                    f"word must not be empty and has no {other}" + _NPZ_HOLDS * (not newlines_only)
                )


def checked_chunks(
    path: str | os.PathLike[str], name: str, chunks: Iterable[Float32], rows: int, dim: int
) -> Iterator[Float32]:
    """Yield the chunks, float32[k, dim]; raise ModelFileError unless they have `rows` rows in all.

    A file with too few rows would be read as damaged later, when the trained rows are gone.
    """
    missing = rows
    for chunk in chunks:
        if chunk.ndim != 2 or chunk.shape[1] != dim or chunk.dtype != np.float32:
            raise ModelFileError(
                f"{path}: a chunk of the {name} must be float32[k, {dim}], "
                f"got {chunk.dtype}{list(chunk.shape)}"
            )
        if len(chunk) > missing:
            raise ModelFileError(
                f"{path}: the {name} needs {missing} more rows, a chunk has {len(chunk)}"
            )
        yield chunk
        missing -= len(chunk)
    if missing:
        raise ModelFileError(
            f"{path}: the {name} needs {rows} rows, but only {rows - missing} came"
        )


def bin_bytes(entries: Sequence[PackedWords], rows: int, dim: int, quantised_bytes: int = 0) -> int:
    """Return the size of a file with these words and labels and `rows` rows in both matrices.

    `quantised_bytes` are those of an input matrix that is quantised, whose rows do not count.
    """
    names = sum(words.letters + len(words) * ENTRY_BYTES for words in entries)
    matrices = (quantised_bytes or _SHAPE.size) + _SHAPE.size + 4 * dim * rows
    return _HEAD.size + _COUNTS.size + names + matrices


def _check_header(path: str | os.PathLike[str], header: BinHeader) -> None:
    if header.loss not in LOSSES or header.model not in MODELS:
        raise ModelFileError(
            f"{path}: expected a loss of {sorted(LOSSES)} and a model of {sorted(MODELS)}, "
            f"got {header.loss!r} and {header.model!r}"
        )
    if not (0 < header.dim <= _INT32_MAX and 0 <= header.bucket <= _INT32_MAX):
        raise ModelFileError(
            f"{path}: dim {header.dim} or bucket {header.bucket} is outside the format's range"
        )
    if header.maxn > 0 and header.bucket == 0:
        # fastText takes the hash modulo bucket, so it would divide by zero.
        raise ModelFileError(
            f"{path}: subwords up to {header.maxn} letters need buckets, got bucket 0; "
            "set bucket above 0, or maxn to 0"
        )


def _pack_header(path: str | os.PathLike[str], header: BinHeader) -> bytes:
    layout, more = (_FLORET, (_MODE_FLORET, header.hashes)) if header.hashes else (_FASTTEXT, ())
    try:
        return layout.head.pack(
            MAGIC, VERSION,
            header.dim, header.window, header.epochs, header.min_count, header.negatives,
            header.word_ngrams, LOSSES[header.loss], MODELS[header.model], header.bucket,
            header.minn, header.maxn, *more, header.lr_update_rate, _marked_sample(header),
        )  # fmt: skip
    except struct.error as error:
        raise ModelFileError(f"{path}: an argument does not fit the format: {error}") from error


def _marked_sample(header: BinHeader) -> float:
    """Return the sampling threshold; in its bits are the parts of a normal form and the length of
    a prefix of labels."""
    has_prefix = header.model == "supervised" and 0 < header.prefix <= _PREFIX_MAX
    if not (header.normalize or has_prefix):
        return header.sample
    # 1 samples no word, like 0, whose other bits would be those of floret's header.
    bits = struct.pack("<d", header.sample or 1.0)[4:]
    if has_prefix:
        bits = (_PREFIXED << 8 | header.prefix).to_bytes(4, "little")
    # Without parts, too, so that versions that know no prefix read what they knew.
    mark = (_NORMALISED << 8) | mask_of(header.normalize)
    value: float = struct.unpack("<d", mark.to_bytes(4, "little") + bits)[0]
    return value


def _unmarked(path: str | os.PathLike[str], sample: float, model: str) -> tuple[float, str, int]:
    """Return the sampling threshold, the parts of a normal form in its last bits, and the length of
    the labels' prefix."""
    bits = int.from_bytes(struct.pack("<d", sample), "little")
    if (bits & 0xFFFFFFFF) >> 8 != _NORMALISED:
        return sample, "", 0
    prefix = bits >> 32 & 0xFF
    if model != "supervised" or bits >> 40 != _PREFIXED or prefix > _PREFIX_MAX:
        prefix = 0
    try:
        parts = parts_of(bits & 0xFF)
        return 1e-4 if prefix else float(f"{sample:.{_SAMPLE_DIGITS}g}"), parts, prefix
    except ValueError as error:
        raise ModelFileError(
            f"{path}: its texts have a normal form that this version does not know ({error}): use "
            "a newer snailps"
        ) from None


def _pack_entries(
    path: str | os.PathLike[str],
    entries: Sequence[bytes],
    counts: Sequence[int] | npt.NDArray[np.int64],
    kind: int,
) -> bytes:
    numbers = np.asarray(counts, dtype=np.int64)
    if numbers.shape != (len(entries),):
        raise ModelFileError(f"{path}: expected {len(entries)} counts, got shape {numbers.shape}")
    if numbers.min(initial=1) < 1:
        # fastText builds its table of negatives from the counts, and loops forever on a zero.
        raise ModelFileError(f"{path}: every count must be at least 1, got {numbers.min()}")
    packed = PackedWords.of(entries)
    tails = np.zeros(len(numbers), _ENTRY_TAIL)
    tails["count"], tails["kind"] = numbers, kind
    return packed.with_tails(tails.view(np.uint8).reshape(-1, _ENTRY_TAIL.itemsize)).tobytes()


def _unpack_header(
    path: str | os.PathLike[str], mapped: mmap.mmap | bytes
) -> tuple[BinHeader, _BinLayout]:
    layout, version, mode, hashes = _FASTTEXT, VERSION_OLDEST, 0, 0
    values: Sequence[Any]
    if _is_unversioned(mapped[: _HEAD.size + _COUNTS.size]):
        layout, values = _UNVERSIONED, _UNVERSIONED.head.unpack_from(mapped)
    elif len(mapped) < _HEAD.size:
        raise _too_short(path, len(mapped))
    else:
        magic, version, *values = _HEAD.unpack_from(mapped)
        is_fasttext = magic != MAGIC or not 0 < values[-1] < _T_FLORET
        if not is_fasttext and len(mapped) >= _FLORET.head.size:
            layout = _FLORET
            _, _, *shared, mode, hashes, rate, sample = layout.head.unpack_from(mapped)
            values = [*shared, rate, sample]
    (
        dim, window, epochs, min_count, negatives, word_ngrams, loss, model,
        bucket, minn, maxn, lr_update_rate, sample,
    ) = values  # fmt: skip
    if layout is not _UNVERSIONED and magic != MAGIC:
        raise ModelFileError(
            f"{path}: not a fastText .bin model, by its first 4 bytes. "
            "snailps.load(path) opens other kinds, such as .vec, .npz and word2vec's, which have "
            "vectors only"
        )
    if not VERSION_OLDEST <= version <= VERSION:
        raise ModelFileError(
            f"{path}: expected fastText format {VERSION_OLDEST} or {VERSION}, got {version}; "
            "load and save it with the official package of version 0.9"
        )
    losses = {number: name for name, number in LOSSES.items()}
    models = {number: name for name, number in MODELS.items()}
    sizes = dim >= 1 and bucket >= 0 and minn >= 0 and maxn <= _MAXN_MAX
    sizes &= layout is not _FLORET or (mode in (1, _MODE_FLORET) and 1 <= hashes <= _HASHES_MAX)
    if loss not in losses or model not in models or not sizes:
        raise ModelFileError(
            f"{path}: damaged header: dim {dim}, loss {loss}, model {model}, bucket {bucket}, "
            f"minn {minn}, maxn {maxn}; fetch or export it again"
        )
    if version == VERSION_OLDEST and models[model] == "supervised":
        maxn = 0
    sample, normalize, prefix = _unmarked(path, sample, models[model])
    header = BinHeader(
        dim=dim, bucket=bucket, minn=minn, maxn=maxn, window=window, epochs=epochs,
        min_count=min_count, negatives=negatives, word_ngrams=word_ngrams, loss=losses[loss],
        model=models[model], lr_update_rate=lr_update_rate,
        sample=sample,
        hashes=hashes if mode == _MODE_FLORET else 0,
        normalize=normalize,
        prefix=prefix,
    )  # fmt: skip
    if header.hashes and (header.model == "supervised" or not bucket):
        raise ModelFileError(
            f"{path}: a classifier of floret's own mode, or a model without buckets, which only "
            "floret reads; snailps reads the .bin of floret's -mode fasttext"
        )
    return header, layout


def _read_dictionary(
    cursor: Cursor, layout: _BinLayout
) -> tuple[PackedWords, npt.NDArray[np.int64], list[bytes], int, int]:
    """Read words, all counts, labels, tokens, and the number of unpruned n-grams (-1: all)."""
    mapped = cursor.mapped
    size, nwords, nlabels, tokens, *kept = cursor.unpack(layout.counts)
    if size < 1 or nwords < 0 or nlabels < 0 or nwords + nlabels != size or tokens < 0:
        raise cursor.damaged(
            f"{nwords} words and {nlabels} labels, {size} entries in all, {tokens} tokens"
        )
    cursor.need(size * _ENTRY_BYTES_MIN)
    start, form = cursor.offset, _ENTRY_TAIL
    entries, raw = without_tails(mapped, start, size, form.itemsize)
    if len(entries) < size:
        cursor.part = f"dictionary entry {len(entries)}"
        cursor.need(len(mapped) + 1 - start)
    tails = raw.view(form)[:, 0]
    wrong = np.flatnonzero(tails["kind"] != np.repeat([_WORD, _LABEL], [nwords, nlabels]))
    if len(wrong):
        number = int(wrong[0])
        offset = start + int(entries.starts[number]) + number * form.itemsize
        raise cursor.damaged(f"entry {number} at byte {offset} is of type {tails['kind'][number]}")
    cursor.offset += entries.letters + raw.size
    counts = tails["count"].astype(np.int64)
    return entries[:nwords], counts, [*entries[nwords:]], tokens, kept[0] if kept else -1


def _read_pruned(cursor: Cursor, kept: int, bucket: int) -> KeptGrams:
    """Read which n-grams of a pruned model have rows: the file lists pairs of bucket and row."""
    cursor.part = "list of kept n-grams"
    pairs = cursor.array("<i4", 2 * kept).reshape(kept, 2)
    if kept and (pairs.min() < 0 or pairs[:, 0].max() >= bucket or pairs[:, 1].max() >= kept):
        raise cursor.damaged(f"a bucket or row is not below {bucket} or {kept}")
    return KeptGrams(pairs)


def _map_matrix(
    cursor: Cursor, layout: _BinLayout, name: str, shape: tuple[int, int], quantised: bool
) -> Rows:
    """Return a view of one matrix; its shape must agree with the header and the file's length."""
    cursor.part = f"{name} matrix"
    cursor.need(1)
    matrix: Rows | None = None
    if layout is not _UNVERSIONED and cursor.mapped[cursor.offset] != 0:
        if not quantised:
            raise _quantised(cursor.path)
        cursor.skip(1)
        matrix = read_quantised(cursor, shape[1])
        actual: tuple[int, ...] = matrix.shape
    else:
        actual = cursor.unpack(layout.shape)[-2:]
    if actual != shape:
        raise ModelFileError(
            f"{cursor.path}: damaged: its header declares an {name} matrix of {shape[0]} x "
            f"{shape[1]}, the matrix itself {actual[0]} x {actual[1]}; fetch or export it again"
        )
    return cursor.array("<f4", shape[0] * shape[1]).reshape(shape) if matrix is None else matrix


def _is_empty_matrix(cursor: Cursor) -> bool:
    """Whether the matrix that follows in the file is dense and has no rows."""
    start = cursor.mapped[cursor.offset : cursor.offset + _SHAPE.size]
    return len(start) == _SHAPE.size and _SHAPE.unpack(start)[:2] == (False, 0)


def _too_short(path: str | os.PathLike[str], length: int) -> ModelFileError:
    return ModelFileError(
        f"{path}: not a fastText model: it has {length} bytes, its header alone "
        f"would have {_HEAD.size}; was the copy interrupted?"
    )


def _quantised(path: str | os.PathLike[str]) -> ModelFileError:
    return ModelFileError(
        f"{path}: a quantised or pruned fastText model (.ftz); here only full models can be read. "
        "Use the .bin it was made from; snailps.load reads it for queries and predictions"
    )
