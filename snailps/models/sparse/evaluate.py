"""Check files of examples before a job, evaluate a model on hold-out files, predict.

    input and hold-out files -> head of each -> parsed, checked         (master, before training)
    hold-out files -> blocks -> Batch -> scores -> Judge -> metrics     (master, after training)
    validation files, or lines of the input that are held out -> ...    (master, after each epoch)

Memory: a block of text and its rows at a time; for ranks (AUC) labels, scores and weights of all
examples, 13 bytes each.  Weights are those of the examples, not of their classes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from snailps.api.validation import Validation
from snailps.data.columns import ColumnKind
from snailps.data.elements import shown_names
from snailps.data.encoding import NAME_FIRST, Encoding
from snailps.data.held_out import Side
from snailps.errors import DataError
from snailps.files.blocks import cut, files_of, head_of, read_block, test_files
from snailps.files.input_files import InputFiles
from snailps.models.losses import LOSSES
from snailps.models.sparse.batch import Batch, BatchReader, batch_reader
from snailps.models.sparse.model import SparseModel
from snailps.models.sparse.settings import ClassesSettings, SparseSettings
from snailps.models.stopping import decided_by
from snailps.models.tested_texts import BLOCK_BYTES, texts_of, warn_of_trained

if TYPE_CHECKING:
    from snailps.api.worker import Results

log = logging.getLogger(__name__)

BLOCK_BYTES_MIN = 64 << 10
ROWS_BYTES = 32 << 20
"""Bytes of rows that are pulled at a time for the evaluation, at most."""
ENTRY_BYTES = 5
"""Least bytes of a feature as text, in all but unusual files."""
KEPT_BYTES = 64 << 20
"""Most bytes of validation examples that stay in memory; else files are read anew at each test."""
_READ = "validation examples"
"""In `Results.memo`: all batches; empty if they are too many."""
CHECKED_BYTES = 1 << 20
"""Least bytes of lines to test on that are read before the training, if there are as many."""
HEADS_MAX = 100
"""Files of the input, and hold-out files, that are checked before the training."""


def with_columns(settings: SparseSettings) -> SparseSettings:
    """Declare every column of an input of tables in the settings.

    Columns that `columns` does not declare are inferred from the first file, for all tables and for
    the files of predictions.
    """
    if not settings.label_column or not settings.input:
        return settings
    from snailps.data.table_files import complete

    paths, reading = files_of(settings.input), settings.reading()
    for path in paths:
        reading.takes(path)
    columns = complete(paths, settings.columns, settings.label_column, settings.weight_column)
    if columns != settings.columns:
        log.info("columns, inferred from %s: %s", paths[0], ", ".join(columns))
    return replace(settings, columns=columns)


def with_names(settings: SparseSettings, explicit: Callable[[str], str | None]) -> SparseSettings:
    """Add the names of classes to the settings, if the labels of tables are texts.

    More than two names make a multinomial model, unless the user has set the loss.  The names of a
    continued model are among them.
    """
    encoding = Encoding.of_text(settings.encoding)
    if not settings.label_column or not settings.input or encoding.labels:
        return settings
    from snailps.data.table_files import label_kind, names_of_labels

    paths, column = files_of(settings.input), settings.label_column
    if label_kind(paths, column) is ColumnKind.NUMERIC:
        return settings
    names = names_of_labels(replace(settings, encoding="").reading(), paths)
    names = sorted({*names, *encoding.names})
    shown = shown_names(names) or "none"
    if not settings.class_num:
        raise DataError(
            f"input: column {column!r} of {paths[0]} has texts: {shown}. Loss {settings.loss} "
            "expects numbers"
        )
    grows = len(names) > settings.class_num and (settings.class_num == 2 or bool(encoding.names))
    if grows and explicit("loss") is None and isinstance(settings, ClassesSettings):
        settings = replace(settings, loss="multinomial", classes=len(names))
    if len(names) != settings.class_num:
        raise DataError(
            f"input: expected labels of {settings.class_num:,} classes in column {column!r}, got "
            f"{len(names):,}: {shown}"
        )
    known = replace(encoding, labels=tuple(map(float, range(len(names)))), names=tuple(names))
    return replace(settings, encoding=known.text)


def check(cls: type[SparseModel], settings: SparseSettings) -> None:
    """Check files as `check_input` does, and warn of validation files that are trained, too."""
    check_input(cls, settings)
    warn_of_trained(settings.validation, settings.input)


def check_input(cls: type[SparseModel], settings: SparseSettings) -> None:
    """Raise a `DataError` for missing files, or for first lines that are no examples of this job.

    Called before the training: a malformed hold-out file must not end the job after hours.  Labels
    are checked only once the settings have their encoding.
    """
    is_encoded = Encoding.of_text(settings.encoding).is_measured
    read = settings if is_encoded else replace(settings, class_weights=(), encoding="")
    reading = settings.reading()
    kinds = ("input", files_of), ("test", test_files), ("validation", test_files)
    for name, files in kinds:
        try:
            for path in files(getattr(settings, name))[:HEADS_MAX]:
                if reading.takes(path):
                    from snailps.data.table_files import check_table

                    check_table(path, reading)
                    continue
                batch = batch_reader(read).read(head_of(path), path)
                if not is_encoded:
                    batch.labels = np.zeros_like(batch.labels)
                cls.check_batch(settings, batch, path)
        except DataError as error:
            raise DataError(f"{name}: {_advised(error, settings)}") from None


def _advised(error: DataError, settings: SparseSettings) -> str:
    """The text of an error; of an unknown label with what to do where lines are held out."""
    if not settings.held_out:
        return str(error)
    advice = (
        f"Lines that are held out show no classes (held_out: {settings.held_out:g}): set another "
        "seed, hold out fewer, or name first in the input a small file with some examples of each "
        "class"
    )
    return str(error).replace(NAME_FIRST, advice)


def check_tested(cls: type[SparseModel], settings: SparseSettings, files: InputFiles) -> None:
    """Raise a `DataError` if the lines to test on have no example to measure, or, in their first
    `CHECKED_BYTES`, a malformed one.  Called before the training, for the tests after each epoch.
    """
    s = settings
    if not (s.validation or s.held_out):
        return
    if s.held_out:
        texts: Iterable[tuple[bytes, str, int]] = (
            (
                read_block(piece.path, piece.start, piece.stop, unit="line", scratch=files.scratch),
                piece.path,
                piece.start,
            )
            for piece in cut(files.sources, CHECKED_BYTES)
        )
    else:
        texts = texts_of(
            s.validation, s.scratch_dir, s.scratch_bytes,
            reading=s.reading(), block_bytes=CHECKED_BYTES,
        )  # fmt: skip
    side = s.side(is_held=True)
    reader = batch_reader(replace(s, class_weights=()), bias=cls.has_bias(s), side=side)
    has_any, size = False, 0
    with _prefixed(s):
        for text in texts:
            batch = reader.read(*text)
            has_any |= bool(batch.weights.any() if len(batch.weights) else len(batch))
            size += len(text[0])
            if has_any and size >= CHECKED_BYTES:
                return
    if not has_any:
        raise _nothing_to_measure(s)


@contextmanager
def _prefixed(settings: SparseSettings) -> Iterator[None]:
    """Name the setting that chose the lines to test on in errors of these."""
    try:
        yield
    except DataError as error:
        name = "held_out" if settings.held_out else "validation"
        raise DataError(f"{name}: {_advised(error, settings)}") from None


def _nothing_to_measure(settings: SparseSettings) -> DataError:
    name, advice = "validation", "give other files"
    if settings.held_out:
        name, advice = "held_out", "hold out more lines, or none"
    return DataError(
        f"{name}: expected an example with a weight above 0, got none: there is nothing to "
        f"measure; {advice}"
    )


def validation_of(cls: type[SparseModel], settings: SparseSettings) -> Validation | None:
    """The tests after each epoch; None without files of `validation` and without `held_out`."""
    if not (settings.validation or settings.held_out):
        return None
    paths, side = settings.validation, None
    if settings.held_out:
        paths, side = settings.input, settings.side(is_held=True)

    def test(results: Results) -> dict[str, float]:
        with _prefixed(settings):
            figures = evaluate(cls, results, paths, side=side, keeps=True)
        if not figures["examples"]:
            raise _nothing_to_measure(settings)
        return {name: value for name, value in figures.items() if isinstance(value, float)}

    compared = LOSSES[settings.loss].judge().compared
    return decided_by(settings.stop_by, compared, test, settings.stop_after)


def evaluate(
    cls: type[SparseModel],
    results: Results,
    paths: Sequence[str],
    *,
    side: Side | None = None,
    keeps: bool = False,
) -> dict[str, Any]:
    """Figures of the present rows on the examples of some files, or on one `side` of their lines.

    `keeps`: the examples stay in memory for the next call, if they are few.
    """
    s = results.settings
    assert isinstance(s, SparseSettings)
    extras = cls.extras(results)
    reader = batch_reader(replace(s, class_weights=()), bias=cls.has_bias(s), side=side)
    encoding, judge, bad_lines = reader.encoding, LOSSES[s.loss].judge(), 0
    factor, shift = LOSSES[s.loss].restored(encoding)
    results.exporting.plan([1.0])
    batches = _kept(results, reader, paths) if keeps else _batches(results, reader, paths)
    for batch in batches:
        bad_lines += batch.bad
        if len(batch):
            scores: Any = cls.stored_scores(results, batch, extras)
            if not encoding.is_plain_target:
                scores = scores.astype(float) * factor + shift
            judge.add(encoding.targets_of(batch.labels), scores, batch.weights)
    return {**judge.figures(), **({"bad_lines": bad_lines} if bad_lines else {})}


def _batches(results: Results, reader: BatchReader, paths: Sequence[str]) -> Iterator[Batch]:
    s = results.settings
    assert isinstance(s, SparseSettings)
    for text in texts_of(
        paths,
        s.scratch_dir,
        s.scratch_bytes,
        reading=s.reading(),
        block_bytes=_block_bytes(results),
        progress=results.exporting,
    ):
        yield reader.read(*text)


def _kept(results: Results, reader: BatchReader, paths: Sequence[str]) -> Iterable[Batch]:
    """The batches of the job's validation examples, read once if they are few."""
    kept: list[Batch] | None = results.memo.get(_READ)
    if kept is None:
        kept, size = [], 0
        for batch in _batches(results, reader, paths):
            kept.append(batch)
            size += batch.nbytes
            if size > KEPT_BYTES:
                kept = []
                break
        results.memo[_READ] = kept
    return kept or _batches(results, reader, paths)


def _block_bytes(results: Results) -> int:
    """Bytes of text whose rows fit into `ROWS_BYTES` even if all of its features differ."""
    dim = max(table.dim for table in results.tables.values())
    return max(BLOCK_BYTES_MIN, min(BLOCK_BYTES, ENTRY_BYTES * ROWS_BYTES // (4 * dim)))
