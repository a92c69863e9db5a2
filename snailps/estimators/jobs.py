"""The job of a fit: run on a cluster, followed, and its model written to files of this process.

    settings, input -> run_job -> Finished: figures, history, files of the model's export

Owns which cluster a fit uses.  Knows no estimator.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from snailps.api.results import Results
from snailps.api.worker import load_class
from snailps.data.spool import Spooled
from snailps.dataclass import dataclass, field
from snailps.errors import ParameterError
from snailps.estimators.monitor import Monitor
from snailps.local.cluster import default_cluster
from snailps.local.session import Cluster, within
from snailps.models.packed_tables import Packed


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that is done.

    `files`, which its export wrote, are gone when the context ends; `packed` are rows by table.
    """

    figures: dict[str, Any]
    files: list[Path]
    packed: Mapping[str, Packed] = field(default_factory=dict)


@contextlib.contextmanager
def run_job(
    worker_class: str,
    settings: Mapping[str, Any],
    given: Spooled | list[str],
    monitor: Monitor,
    *,
    cluster: Cluster | None,
    workers: int | None,
    packed: bool = False,
) -> Iterator[Finished]:
    """Train a model, and write its files into a folder that lasts as long as the context.

    `cluster` None: the innermost ``with`` block's, or this process's own, of `workers`.
    `packed`: keep the rows of all tables with their state.
    """
    where = default_cluster(workers) if cluster is None else cluster
    with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
        with where.in_turn():  # another thread's job would replace the tables
            # What a cluster on other hosts reads of this process: the rows to begin with.
            begin = [settings["continue_from"]] if "continue_from" in settings else []
            job = where.run(
                worker_class,
                settings,
                input=given,
                files=begin,
                on_status=monitor.update,
                quiet=monitor.quiet,
            )
            with job.results(output=str(Path(folder, "model"))) as results:
                results.scanned = {} if packed else None
                figures = {**job.figures, **load_class(worker_class, "the job").export(results)}
                names = results.tables if packed else ()
                kept = {name: _packed(results, name) for name in names}
        files = [Path(path) for path in figures.pop("files")]
        monitor.finish(figures, job.history)
        yield Finished(figures, files, kept)


def _packed(results: Results, table: str) -> Packed:
    """All rows of a table with their state, keys ascending."""
    pieces = list(results.packed(table))
    if not pieces:
        declared = results.tables[table]
        none = np.empty((0, declared.dim + declared.state_floats), np.float32)
        return Packed(np.empty(0, np.uint64), none)
    keys = np.concatenate([keys for keys, _ in pieces])
    order = np.argsort(keys)
    return Packed(keys[order], np.concatenate([rows for _, rows in pieces])[order])


def check_cluster(cluster: Any, workers: int | None) -> None:
    """Refuse what is no cluster, and a number of workers for one that has its own."""
    if cluster is not None and not isinstance(cluster, Cluster):
        raise ParameterError(
            "cluster: expected one of snailps.cluster, connect or local_cluster; got "
            f"{cluster!r:.80}"
        )
    if workers is not None and (cluster is not None or within() is not None):
        raise ParameterError(
            f"workers: expected none with a cluster, which has its own; got {workers!r:.80}"
        )
