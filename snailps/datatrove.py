"""A block of a datatrove pipeline that drops copies: ``from snailps.datatrove import DropCopies``.

    documents of a task -> snailps.dedup -> documents that stay

A task sees its own documents only, and holds their texts in memory.  Copies among many files are
the work of `snailps.filter`, which reads and writes them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from snailps.duplicates.dedup import CONTAINED, NEAR, dedup
from snailps.errors import ConfigError

if TYPE_CHECKING:

    class BaseFilter:
        """What is used of datatrove's."""

        def __init__(self, exclusion_writer: Any = None, batch_size: int = 1) -> None: ...

        def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Any]: ...
else:
    try:
        from datatrove.pipeline.filters.base_filter import BaseFilter
    except ImportError as error:
        raise ImportError(
            f"snailps.datatrove is a block for datatrove, which cannot be imported ({error}): pip "
            "install 'datatrove[processing]'"
        ) from error

ALL = (1 << 63) - 1
"""More documents than a task has."""


class DropCopies(BaseFilter):
    """Drops documents that a kept document of the same task covers, as `snailps.dedup` finds them.

    A dropped document has ``copy_of`` in its metadata, the id of the document that covers it; its
    reason is ``copy``.

    Parameters
    ----------
    contained, near : float or None
        As of `snailps.dedup`: shares of 3-grams of words; None: not used.
    within_tasks : bool
        Whether copies may stay that are in the documents of different tasks.
    threads : int
        Threads of a task; 0: one per core.
    exclusion_writer : DiskWriter, optional
        Writes the documents that are dropped.

    Raises
    ------
    ConfigError
        A bound out of range; a pipeline of several tasks, and not `within_tasks`.
    """

    type = "DEDUP"
    name = "snailps copies"

    def __init__(
        self,
        contained: float | None = CONTAINED,
        near: float | None = NEAR,
        *,
        within_tasks: bool = False,
        threads: int = 0,
        exclusion_writer: Any = None,
    ) -> None:
        super().__init__(exclusion_writer, batch_size=ALL)
        self.contained, self.near = contained, near
        self.within_tasks, self.threads = within_tasks, threads
        self._found([])  # what is out of range is said now, and not in a task

    def run(self, data: Iterable[Any], rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Yield the documents that stay, in their order."""
        if world_size > 1 and not self.within_tasks:
            raise ConfigError(
                f"DropCopies: one of {world_size:,} tasks sees its own documents only, so copies "
                "in different tasks would stay. Run this pipeline with tasks=1, filter the files "
                "by snailps.filter(..., keep='not dup.contained >= .98'), or set within_tasks=True"
            )
        yield from super().run(data, rank, world_size)

    def filter(self, doc: Any) -> bool:
        """Not asked: a document is judged beside the others."""
        return True

    def filter_batch(self, batch: list[Any]) -> list[bool | tuple[bool, str]]:
        """Judge all documents of a task."""
        found = self._found([doc.text for doc in batch])
        for doc, stays, of in zip(batch, found.keep.tolist(), found.of.tolist(), strict=True):
            if not stays:
                doc.metadata["copy_of"] = batch[of].id
        return [True if stays else (False, "copy") for stays in found.keep.tolist()]

    def _found(self, texts: list[str]) -> Any:
        return dedup(texts, contained=self.contained, near=self.near, threads=self.threads)
