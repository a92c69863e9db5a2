"""The job of a fit: runs on a cluster, is monitored, and exports its model to a local folder.

    settings, input -> run_job -> Finished: figures, files of the model's export

Owns which cluster a fit uses.  Must not know estimators.
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
class FinishedJob:
    """The results of a job.

    The export wrote `files`, which are deleted when the context of `run_job` ends.  `packed` are
    rows with optimizer state, by table.
    """

    figures: dict[str, Any]
    files: list[Path]
    packed: Mapping[str, Packed] = field(default_factory=dict)


_STARTS = ("continue_from", "pretrained")
"""Settings that name a file from which a job starts."""


@contextlib.contextmanager
def run_job(
    worker_class: str,
    settings: Mapping[str, Any],
    source: Spooled | list[str],
    monitor: Monitor,
    *,
    cluster: Cluster | None,
    workers: int | None,
    packed: bool = False,
) -> Iterator[FinishedJob]:
    """Train a model and export it into a folder that lasts as long as the context.

    `cluster` None: the cluster of the innermost ``with`` block, else this process's own with
    `workers` workers.  `packed`: also fetch the rows of all tables with their optimizer state.
    """
    session = default_cluster(workers) if cluster is None else cluster
    with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
        with session.in_turn():  # a job of another thread would replace the tables before export
            # Sent along, because workers on other hosts cannot open files of this host.
            start_files = [settings[name] for name in _STARTS if name in settings]
            job = session.run(
                worker_class,
                settings,
                input=source,
                files=start_files,
                on_status=monitor.update,
                quiet=monitor.quiet,
            )
            with job.results(output=str(Path(folder, "model"))) as results:
                results.scanned = {} if packed else None
                figures = {**job.figures, **load_class(worker_class, "the job").export(results)}
                names = results.tables if packed else ()
                tables = {name: packed_table(results, name) for name in names}
        files = [Path(path) for path in figures.pop("files")]
        monitor.finish(figures, job.history)
        yield FinishedJob(figures, files, tables)


def packed_table(results: Results, table: str) -> Packed:
    """Fetch all rows of a table with their state, in ascending order of keys."""
    pieces = list(results.packed(table))
    if not pieces:
        declared = results.tables[table]
        no_rows = np.empty((0, declared.dim + declared.state_floats), np.float32)
        return Packed(np.empty(0, np.uint64), no_rows)
    keys = np.concatenate([keys for keys, _ in pieces])
    order = np.argsort(keys)
    return Packed(keys[order], np.concatenate([rows for _, rows in pieces])[order])


def check_cluster(cluster: Any, workers: int | None) -> None:
    """Raise ParameterError for a cluster of another type, or for `workers` beside a cluster."""
    if cluster is not None and not isinstance(cluster, Cluster):
        raise ParameterError(
            "cluster: expected one of snailps.cluster, connect or local_cluster; got "
            f"{cluster!r:.80}"
        )
    if workers is not None and (cluster is not None or within() is not None):
        raise ParameterError(
            f"workers: expected none with a cluster, which has its own; got {workers!r:.80}"
        )
