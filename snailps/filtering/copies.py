"""Copies among the rows of a filter: the readings before the one that writes.

    rows that pass all other clauses -> keys, a file a task -> the search, which reads the rows in
    question again -> one file: what each row has of a kept one -> CopySearch.of(task)

Owns the folder ``copies`` in the results' own.  Whoever is killed goes on: files are complete or
absent, and count only for the command that made them.  A row's number is its place among all rows
that take part, in the order of files and rows, so outputs depend on neither threads nor kills.
Must not know what a condition says: `keeps` does.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from snailps.data.formats.table import Target
from snailps.data.in_order import in_order
from snailps.duplicates._pages import PageKeys, sets_of
from snailps.duplicates.page_index import (
    FACTS,
    IndexedFile,
    IndexedPages,
    write_segment,
)
from snailps.duplicates.search import (
    CHUNK_PAGES,
    TABLE_PASSES,
    AnchorTable,
    Batch,
    CandidatePairs,
    Ints,
    JudgedPages,
    KeyChunk,
    Keys,
    Mask,
    Overlaps,
    PageSet,
    batches_of,
    check_disk,
    compared_here,
    facts_of,
    pairs_of,
    pull_anchors,
    similar_pages,
)
from snailps.errors import DataError
from snailps.files.atomic import atomic_file, unfinished_of
from snailps.filtering.page_sets import AskedPairs, PageSets, StoredSets, compared
from snailps.filtering.rows import OpenTask, TextRows
from snailps.filtering.tasks import Task, names_of, task_line, task_of, version_now
from snailps.outward import without_secrets

PAIRS_SHOWN = 20
COVERS_SHOWN = 20
_ENDINGS = "keys", "pairs", "asked", "sets", "overlaps", "kept"
"""Files of a task, in the order in which they are made: keys; on a cluster alone, what its workers
find; for an index, sets of what stays."""
LETTERS_KEPT = 20_000
"""Characters of a text that the report may show beside its cover."""
_FOUND = np.dtype([
    ("row", "<i8"), ("of", "<i8"), ("contained", "<f4"), ("near", "<f4"), ("exact", "?"),
    ("kept", "?"),
])  # fmt: skip

_FACTS = np.dtype([("row", "<i8"), ("words", "<u8"), ("exact", "<u8", (2,))])
_OLD = np.dtype([("page", "<i8"), ("file", "<i8"), ("row", "<i8")])
"""A page of the index that covers others, by the number of its file among those of covers."""


def _key_rows(columns: int) -> np.dtype[Any]:
    """A row of a file of keys; `row`: its number in the task, from 0."""
    return np.dtype([
        ("row", "<i8"), ("words", "<u8"), ("exact", "<u8", (2,)), ("keys", "<u8", (columns,)),
    ])  # fmt: skip


class _KeyTarget(Target):
    """A file of keys that is being written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, rows: NDArray[Any]) -> None:
        self._file.write(rows.tobytes())

    def close(self) -> None:
        """The file's owner closes it."""


class CopySearch:
    """The search of a command; `key`: of the command, `folder`: of the command's results.

    `tasks`: all of the command; `segments`: those of the index `against`; None: as the process that
    has begun the search wrote them down.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        tasks: Sequence[Task] | None,
        against: Path | None = None,
        segments: Sequence[str] | None = None,
    ) -> None:
        self.folder, self._key, self.against = folder / "copies", key, against
        if tasks is not None:
            self.tasks = tasks
        if segments is not None:
            self._segments = segments
        self._page_keys = PageKeys()
        self._rows = _key_rows(self._page_keys.count + 1)

    def begin(self) -> list[Task]:
        """Tasks whose keys are still to be written; call it under the lock of the results."""
        self.folder.mkdir(exist_ok=True)
        files = [self._path(task, ending) for task in self.tasks for ending in _ENDINGS]
        for part in unfinished_of([*files, self._found_path]):
            part.unlink(missing_ok=True)
        return [] if self.is_done() else [t for t in self.tasks if not self.has_keys(t)]

    def list_for_workers(self) -> Path:
        """Write down all tasks, a line each: the input of a cluster's workers."""
        with atomic_file(self._all_path) as file:
            file.writelines(map(task_line, self.tasks))
        if self.against is not None:
            with atomic_file(self._segments_path) as file:
                file.write(json.dumps(list(self._segments)).encode())
        return self._all_path

    @property
    def _all_path(self) -> Path:
        return self.folder / "all.txt"

    @cached_property
    def tasks(self) -> Sequence[Task]:
        return [task_of(line) for line in self._all_path.read_bytes().splitlines()]

    @cached_property
    def _segments(self) -> Sequence[str]:
        names: list[str] = json.loads(self._segments_path.read_bytes())
        return names

    @property
    def _segments_path(self) -> Path:
        return self.folder / "segments.json"

    @cached_property
    def _index(self) -> IndexedPages | None:
        return None if self.against is None else IndexedPages.of(self.against, self._segments)

    @cached_property
    def _old(self) -> IndexedPages | None:
        """Pages of the index, once all keys are there."""
        return None if self._index is None else self._index.after(self._complete.starts[-1])

    @property
    def ranges(self) -> int:
        """Tasks, and after them chunks of the index: what a cluster's workers share."""
        return len(self.tasks) + (len(self._index.parts) if self._index is not None else 0)

    def has_keys(self, task: Task) -> bool:
        return self._record(task) is not None

    # --- the first reading ------------------------------------------------------------------

    def path_of(self, task: Task) -> Path:
        return self._path(task, "keys")

    def _path(self, task: Task, ending: str) -> Path:
        name = hashlib.sha256(f"{self._key} {task.name}".encode("utf-8", "surrogateescape"))
        return self.folder / f"{name.hexdigest()[:32]}.{ending}"

    def target(self, file: IO[bytes]) -> Target:
        """Begin a file of keys."""
        return _KeyTarget(file)

    def keys_of(self, batch: TextRows, rows: NDArray[np.int64]) -> NDArray[Any]:
        """What `target` writes of some rows of a batch."""
        found = np.empty(len(rows), self._rows)
        found["row"] = batch.first - 1 + rows
        begin = 0
        for texts in batches_of(batch.texts(rows)) if len(rows) else ():
            facts = facts_of(texts, self._page_keys)
            part = found[begin : begin + len(facts.words)]
            part["keys"], part["exact"], part["words"] = facts.keys, facts.exact, facts.words
            begin += len(part)
        return found

    def save(self, task: Task, rows: int, scored: Mapping[str, int]) -> None:
        """Record that the keys of a task have their file; `scored`: as in `RowCounts`."""
        size = self.path_of(task).stat().st_size
        record = {"bytes": size, "rows": rows, "scored": dict(scored)}
        with atomic_file(self.path_of(task).with_suffix(".json")) as file:
            file.write(json.dumps(record).encode())

    def _record(self, task: Task) -> dict[str, Any] | None:
        record = _read_json(self.path_of(task).with_suffix(".json"))
        try:
            size = self.path_of(task).stat().st_size
        except OSError:
            return None
        return record if record is not None and record.get("bytes") == size else None

    def rows_of(self, task: Task) -> int:
        """Rows of a task, whether they take part or not; 0: its keys are not there."""
        return int((self._record(task) or {}).get("rows", 0))

    def scored(self) -> Iterator[Mapping[str, int]]:
        """By task, how many texts each model scored in the first reading."""
        for task in self.tasks:
            yield (self._record(task) or {}).get("scored", {})

    def _load(self, task: Task, first: int) -> NDArray[Any]:
        """Some rows of a file of keys; not mapped, as there may be more files than can be open."""
        return np.fromfile(
            self.path_of(task), self._rows, CHUNK_PAGES, offset=first * self._rows.itemsize
        )

    def _load_keys(self, task: Task, first: int) -> tuple[Keys, NDArray[np.uint32]]:
        part = self._load(task, first)
        return np.ascontiguousarray(part["keys"]), part["words"].astype(np.uint32)

    def _chunks(self, task: Task) -> list[KeyChunk]:
        start, stop = self._complete.bounds(task)
        meets_old = bool(self._old)
        return [
            KeyChunk(start + first, partial(self._load_keys, task, first), meets_old=meets_old)
            for first in range(0, stop - start, CHUNK_PAGES)
        ]

    def _old_chunks(self) -> list[KeyChunk]:
        return [self._old.chunk(part) for part in range(len(self._old.parts))] if self._old else []

    def _facts(self, pages: Ints) -> NDArray[Any]:
        """Rows in their tasks, words and hashes of some pages, ascending; of old ones no rows."""
        facts = np.empty(len(pages), _FACTS)
        new = self._new(pages)
        if self._old and len(new) < len(pages):
            stored = self._old.facts(pages[len(new) :])
            for name in ("words", "exact"):
                facts[name][len(new) :] = stored[name]
        for task in self.tasks:
            start, stop = self._complete.bounds(task)
            begin, end = np.searchsorted(pages, [start, stop])
            if begin == end:
                continue
            for first in range(0, stop - start, CHUNK_PAGES):
                after = min(start + first + CHUNK_PAGES, stop)
                begin, end = np.searchsorted(pages, [start + first, after])
                if end > begin:
                    part = self._load(task, first)[pages[begin:end] - start - first]
                    for name in _FACTS.fields or ():
                        facts[name][begin:end] = part[name]
        return facts

    @cached_property
    def _complete(self) -> _PagePlaces:
        """Places of pages once all keys are there; their rows are not known."""
        return self._places(np.empty(0, np.int64))

    def _new(self, pages: Ints) -> Ints:
        """Of pages, ascending, those that are not the index's."""
        return pages[: np.searchsorted(pages, self._complete.starts[-1])]

    @property
    def keys(self) -> int:
        """Keys of all pages."""
        return self._pages_in_table * (self._page_keys.count + 1)

    @property
    def _pages_in_table(self) -> int:
        """All pages; those that ask the index count twice."""
        pages = self._complete.starts[-1]
        return 2 * pages + len(self._old) if self._old else pages

    # --- pairs, on a cluster ----------------------------------------------------------------

    def has_all(self, ending: str) -> bool:
        return all(self._path(task, ending).exists() for task in self.tasks)

    def pass_over(self, number: int, step: int, table: AnchorTable, threads: int) -> None:
        """One of `TABLE_PASSES` over a range; the last one writes a task's pairs."""
        run: Callable[[KeyChunk], Any] = partial(TABLE_PASSES[step], table)
        if self._old and number >= len(self.tasks):
            run(self._old.chunk(number - len(self.tasks)))
            return
        task = self.tasks[number]
        found = list(in_order(run, self._chunks(task), threads))
        if TABLE_PASSES[step] is pull_anchors:
            with atomic_file(self._path(task, "pairs")) as file:
                file.writelines(np.column_stack(pair).tobytes() for pair in found)

    def _found_pairs(self) -> tuple[Ints, Ints]:
        """What the passes of a cluster have found."""
        files = [np.fromfile(self._path(task, "pairs"), np.int64) for task in self.tasks]
        page, anchor = np.concatenate([np.empty(0, np.int64), *files]).reshape(-1, 2).T
        return page, anchor

    # --- comparing, on a cluster ------------------------------------------------------------

    def _compared_by(
        self, workers: Callable[[], object], pairs: CandidatePairs, pages: Ints, foreseen: int
    ) -> Overlaps:
        """Have workers compare pairs."""
        unequal = np.flatnonzero(~pairs.equal)

        def asked_of(bounds: tuple[int, int]) -> Ints:
            """Pairs of the pages of a task, by anchor: of one file after the other."""
            own = unequal[slice(*np.searchsorted(pairs.page[unequal], bounds))]
            return own[np.argsort(pairs.anchor[own], kind="stable")]

        tasks = [*zip(self.tasks, pairwise(self._complete.starts), strict=True)]
        if not self.has_all("overlaps"):
            check_disk(self.folder, len(self._new(pages)), foreseen, "make room there")
            for task, bounds in tasks:
                own, asked = pages[slice(*np.searchsorted(pages, bounds))], asked_of(bounds)
                AskedPairs.write(
                    self._path(task, "asked"), own, self._facts(own)["row"],
                    pairs.page[asked], pairs.anchor[asked],
                )  # fmt: skip
            workers()
        shares = np.ones((len(pairs.page), 2), np.float32)
        for task, bounds in tasks:
            found = np.fromfile(self._path(task, "overlaps"), np.float32)
            shares[asked_of(bounds)] = found.reshape(-1, 2)
            self._path(task, "sets").unlink(missing_ok=True)  # the large ones
        return Overlaps(*pairs, *np.ascontiguousarray(shares.T))

    def write_sets(self, number: int, open_task: Callable[[Task], OpenTask], threads: int) -> None:
        """Read the texts of a task again that are to be compared, and write their sets."""
        task = self.tasks[number]
        rows = AskedPairs(self._path(task, "asked")).rows
        readings = _texts_of(task, rows, open_task) if len(rows) else ()
        PageSets.write(self._path(task, "sets"), readings, len(rows), threads)

    def write_overlaps(self, number: int, threads: int) -> None:
        """Compare the pairs of a task's pages, once all sets are there."""

        def opened(task: Task) -> tuple[AskedPairs, PageSets]:
            asked = AskedPairs(self._path(task, "asked"))
            return asked, PageSets(self._path(task, "sets"), asked.pages)

        asked, own = opened(self.tasks[number])
        bounds = np.searchsorted(asked.anchor, self._complete.starts).tolist()
        with atomic_file(self._path(self.tasks[number], "overlaps")) as file:
            for other, (begin, end) in zip(self.tasks, pairwise(bounds), strict=True):
                if end > begin:
                    page, anchor = asked.page[begin:end], asked.anchor[begin:end]
                    file.write(compared(own, page, opened(other)[1], anchor, threads).tobytes())
            if self._old and (end := len(asked.anchor)) > bounds[-1]:
                page, anchor = asked.page[bounds[-1] : end], asked.anchor[bounds[-1] : end]
                file.write(compared(own, page, self._old, anchor, threads).tobytes())

    def _places(self, rows: Ints, old: _OldPlaces | None = None) -> _PagePlaces:
        """`rows`: of all pages, each its row in its task; `old`: covers in the index."""
        records = []
        for task in self.tasks:
            record = self._record(task)
            if record is None:
                raise DataError(f"keys of {task.name} are not in {self.folder}: run it again")
            records.append(record)
        pages = [record["bytes"] // self._rows.itemsize for record in records]
        return _PagePlaces(self.tasks, pages, [record["rows"] for record in records], rows, old)

    # --- the search -------------------------------------------------------------------------

    @property
    def _found_path(self) -> Path:
        return self.folder / "found"

    def is_done(self) -> bool:
        summary = self.summary()
        try:
            return summary.get("bytes") == self._found_path.stat().st_size
        except OSError:
            return False

    def summary(self) -> dict[str, Any]:
        """What a finished search says of itself; empty: it is not finished."""
        summary = _read_json(self._found_path.with_suffix(".json")) or {}
        return summary if summary.get("key") == self._key else {}

    def manifest(self) -> dict[str, Any]:
        """What the manifest and the report say: counts, the largest covers, and pairs to show."""
        summary = self.summary()
        names = "compared", "removed", "covers", "pairs"
        by_index = ("removed_by_index",) if self.against is not None else ()
        return {name: summary[name] for name in (*names, *by_index)}

    def search(
        self,
        open_task: Callable[[Task], OpenTask],
        keeps: Callable[[Mapping[str, NDArray[Any]]], Mask],
        threads: int,
        scratch: str,
        note: Callable[[str], object],
        workers: Callable[[], object] | None = None,
    ) -> None:
        """Compare all rows of the first reading; DataError: a file was changed since.

        `keeps`: which rows stay, by their values of `dup`; `workers`: has a cluster's workers, who
        have found the pairs, compare them, too.
        """

        def read(pages: Ints) -> Iterator[Iterable[Batch]]:
            rows = self._facts(pages)["row"]
            for task in self.tasks:
                begin, end = np.searchsorted(pages, self._complete.bounds(task))
                if end > begin:
                    yield from _texts_of(task, rows[begin:end], open_task)

        def stored(pages: Ints) -> Iterable[PageSet]:
            return self._old.sets(pages[len(self._new(pages)) :]) if self._old else ()

        def facts(pages: Ints) -> tuple[NDArray[np.uint32], Keys]:
            known = self._facts(pages)
            return known["words"].astype(np.uint32), known["exact"]

        def stay(now: JudgedPages, rows: Ints) -> Mask:
            return keeps({
                "contained": now.contained[rows], "near": now.near[rows],
                "exact": now.exact[rows].astype(np.float32),
            })  # fmt: skip

        count = self._complete.starts[-1]
        find_pairs: Callable[[], tuple[Ints, Ints]] = self._found_pairs
        compare: Callable[..., Overlaps]
        if workers is None:
            chunks = [chunk for task in self.tasks for chunk in self._chunks(task)]
            chunks += self._old_chunks()
            find_pairs = partial(pairs_of, chunks, self._pages_in_table, self.keys, threads)
            compare = partial(
                compared_here, read=read, threads=threads, scratch=scratch, stored=stored
            )
        else:
            compare = partial(self._compared_by, workers)
        pages, done = similar_pages(count, find_pairs, facts, compare, stay, note)
        alone = bool(stay(JudgedPages.none(1), np.zeros(1, np.int64))[0])
        covers = pages[np.unique(done.of[done.of >= 0])]
        files = self._write_old(covers[len(self._new(covers)) :])
        with atomic_file(self._found_path) as file:
            for task in self.tasks:
                self._write_found(file, task, pages, done, alone)
        with atomic_file(self._found_path.with_suffix(".json")) as file:
            summary = {"key": self._key, "bytes": count * _FOUND.itemsize, "old_files": files}
            file.write(json.dumps(summary | self._summary(pages, done, files)).encode())

    def _write_old(self, covers: Ints) -> list[str]:
        """Write down the places of covers in the index; return the names of their files."""
        names = self._old.names(covers) if self._old else []
        files = list(dict.fromkeys(file for file, _ in names))
        number = {file: at for at, file in enumerate(files)}
        rows = np.zeros(len(names), _OLD)
        rows["page"] = covers[: len(names)]
        rows["file"] = [number[file] for file, _ in names]
        rows["row"] = [row for _, row in names]
        if files:
            with atomic_file(self._found_path.with_suffix(".old")) as file:
                file.write(rows.tobytes())
        return files

    def _write_found(
        self, file: IO[bytes], task: Task, pages: Ints, done: JudgedPages, alone: bool
    ) -> None:
        """Write what was found of all pages of a task; `alone`: whether one without pairs stays."""
        start, stop = self._complete.bounds(task)
        for first in range(0, stop - start, CHUNK_PAGES):
            part = self._load(task, first)
            found = np.zeros(len(part), _FOUND)
            found["row"], found["of"], found["kept"] = part["row"], -1, alone
            here = slice(*np.searchsorted(pages, [start + first, start + first + len(part)]))
            rows = pages[here] - start - first
            for name, values in done._asdict().items():
                found[name][rows] = values[here]
            found["of"][rows] = np.where(done.of[here] >= 0, pages[done.of[here]], -1)
            file.write(found.tobytes())

    def _old_places(self, files: Sequence[str]) -> _OldPlaces:
        # An earlier version, which had no index, wrote no file.
        path = self._found_path.with_suffix(".old")
        return _OldPlaces(np.fromfile(path, _OLD) if files else np.empty(0, _OLD), files)

    def _summary(self, pages: Ints, done: JudgedPages, files: Sequence[str]) -> dict[str, Any]:
        places = self._places(self._mapped()["row"], self._old_places(files))

        def place(page: int) -> dict[str, Any]:
            file, row = places.of(int(pages[page]))
            return {"file": file, "row": row}

        def pair(page: int) -> dict[str, Any]:
            shares = {
                name: round(float(values[page]), 6)
                for name, values in (("contained", done.contained), ("near", done.near))
            }
            return {"removed": place(page), "kept": place(int(done.of[page]))} | shares

        covers = done.covers()
        removed = np.flatnonzero(~done.kept & (done.of >= 0))
        # Of equal texts there is nothing to see: the doubtful ones, least alike, come first.
        doubtful = np.lexsort((removed, done.near[removed], done.exact[removed]))
        shown = removed[doubtful[:PAIRS_SHOWN]].tolist()
        largest = np.lexsort((np.arange(len(covers)), -covers))[:COVERS_SHOWN]
        return {
            "compared": self._complete.starts[-1], "removed": len(removed),
            "removed_by_index": int((pages[done.of[removed]] >= self._complete.starts[-1]).sum()),
            "covers": [
                {**place(page), "texts": int(covers[page])}
                for page in largest.tolist() if covers[page]
            ],
            "pairs": [*map(pair, shown)],
            "shown": [int(pages[page]) for page in (*shown, *done.of[shown].tolist())],
        }  # fmt: skip

    # --- the index --------------------------------------------------------------------------

    def sets_path(self, task: Task) -> Path:
        """The file of the sets of a task's rows that stay."""
        return self._path(task, "kept")

    def sets_of(self, batch: TextRows, rows: Ints) -> list[PageSet]:
        """What goes into that file of a batch."""
        return [sets_of(*texts) for texts in batches_of(batch.texts(rows))] if len(rows) else []

    def append(self, path: Path, command: str) -> None:
        """Write the pages that stay, and have words, as a command's segment of the index."""
        found, places = self._mapped(), self._complete
        numbers = {path: number for number, path in enumerate(places.paths)}
        versions = {task.path: task.version for task in self.tasks}

        def kept(task: Task) -> Iterator[NDArray[Any]]:
            start, stop = places.bounds(task)
            for first in range(0, stop - start, CHUNK_PAGES):
                part = self._load(task, first)
                here = slice(start + first, start + first + len(part))
                yield part[found[here]["kept"] & (part["words"] > 0)]

        def facts() -> Iterator[NDArray[Any]]:
            for task, before in zip(self.tasks, places.rows_before, strict=True):
                for part in kept(task):
                    made = np.empty(len(part), FACTS)
                    made["words"], made["exact"] = part["words"], part["exact"]
                    made["file"], made["row"] = numbers[task.path], before + part["row"] + 1
                    yield made

        write_segment(
            path, command,
            [IndexedFile(without_secrets(path), versions[path]) for path in places.paths],
            facts, lambda: (part["keys"] for task in self.tasks for part in kept(task)),
            [StoredSets(self.sets_path(task)) for task in self.tasks],
        )  # fmt: skip

    # --- the last reading -------------------------------------------------------------------

    def found(self) -> FoundCopies:
        """What the search has found, for the reading that writes."""
        found, summary = self._mapped(), self.summary()
        places = self._places(found["row"], self._old_places(summary.get("old_files", ())))
        return FoundCopies(places, found, summary["shown"])

    def _mapped(self) -> NDArray[Any]:
        if not self._found_path.stat().st_size:
            return np.empty(0, _FOUND)
        return np.memmap(self._found_path, _FOUND, "r")


class _OldPlaces(NamedTuple):
    """Rows of `_OLD`, ascending, and the files that they number."""

    rows: NDArray[Any]
    files: Sequence[str]

    def of(self, page: int) -> tuple[str, int]:
        row = self.rows[np.searchsorted(self.rows["page"], page)]
        return self.files[row["file"]], int(row["row"])


class _PagePlaces:
    """Which row of which input a page is.

    `pages`, `all_rows`: by task, how many take part, and all its rows; `rows`: by page, its row in
    its task; `old`: pages of the index, which have the numbers after those.  Parts of a file are
    counted as one file.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        pages: Sequence[int],
        all_rows: Sequence[int],
        rows: Ints,
        old: _OldPlaces | None = None,
    ) -> None:
        self.starts, self.rows, self._old = [0, *accumulate(pages)], rows, old
        self.numbers = {task.name: number for number, task in enumerate(tasks)}
        self.paths = list(dict.fromkeys(task.path for task in tasks))
        names = dict(zip(self.paths, names_of(self.paths), strict=True))
        self._files = [names[task.path] for task in tasks]
        before: dict[str, int] = {}
        self.rows_before: list[int] = []
        """By task, how many rows of its file are in earlier tasks."""
        for file, count in zip(self._files, all_rows, strict=True):
            self.rows_before.append(before.get(file, 0))
            before[file] = self.rows_before[-1] + count

    def bounds(self, task: Task) -> tuple[int, int]:
        """The task's first page, and the one after its last."""
        number = self.numbers[task.name]
        return self.starts[number], self.starts[number + 1]

    def of(self, page: int) -> tuple[str, int]:
        """The file, by the name of its output, or the path by which the index knows it, and the row
        in it, from 1."""
        if page >= self.starts[-1] and self._old is not None:
            return self._old.of(page)
        task = bisect_right(self.starts, page) - 1
        return self._files[task], self.rows_before[task] + int(self.rows[page]) + 1

    def name(self, page: int) -> str:
        return "{}:{}".format(*self.of(page))


class FoundCopies:
    """Values of `dup` of each row; threads may share it."""

    def __init__(self, places: _PagePlaces, found: Any, shown: Sequence[int]) -> None:
        self._places, self._found, self._shown = places, found, np.array(shown, np.int64)

    def of(self, task: Task, batch: TextRows, *, names_covers: bool) -> Mapping[str, NDArray[Any]]:
        """Values of the rows of a batch; rows that took no part have none that is ever asked for.

        `names_covers`: also the names of covers, which cost more.
        """
        rows, pages = self._pages(task, batch)
        found = self._found[pages]
        values: dict[str, NDArray[Any]] = {
            name: np.zeros(batch.rows, np.float32) for name in ("contained", "near")
        }
        values |= {name: np.zeros(batch.rows, bool) for name in ("exact", "kept")}
        for name, of_rows in values.items():
            of_rows[rows] = found[name]
        if names_covers:
            values["of"] = np.full(batch.rows, None, object)
            values["of"][rows] = [
                self._places.name(page) if page >= 0 else None for page in found["of"].tolist()
            ]
        return values

    def shown(self, task: Task, batch: TextRows) -> dict[str, str]:
        """Texts of a batch that the report shows, by file and row."""
        rows, pages = self._pages(task, batch)
        chosen = np.isin(pages, self._shown)
        if not chosen.any():
            return {}
        texts = batch.shown_texts(rows[chosen])
        return {
            self._places.name(page): text[:LETTERS_KEPT]
            for page, text in zip(pages[chosen].tolist(), texts, strict=True)
        }

    def _pages(self, task: Task, batch: TextRows) -> tuple[Ints, Ints]:
        """Rows of a batch, from 0, that took part, and their pages."""
        number = self._places.numbers[task.name]
        start, stop = self._places.starts[number : number + 2]
        of_task, first = self._places.rows[start:stop], batch.first - 1
        begin, end = np.searchsorted(of_task, [first, first + batch.rows])
        return np.asarray(of_task[begin:end]) - first, np.arange(start + begin, start + end)


def _texts_of(
    task: Task, rows: Ints, open_task: Callable[[Task], OpenTask]
) -> Iterator[Iterable[Batch]]:
    """Texts of some rows of a task (ascending, from 0), a batch of the file at a time."""
    with ExitStack() as stack:
        source, begin = stack.enter_context(open_task(task)), 0
        for batch in source.batches(columns=()):
            end = int(np.searchsorted(rows, batch.first - 1 + batch.rows))
            if end > begin:
                yield batches_of(batch.texts(rows[begin:end] - (batch.first - 1)))
            begin = end
        if version_now(task.path) != task.version or begin < len(rows):
            raise DataError(f"{task.path} was changed while it was read: run it again")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
