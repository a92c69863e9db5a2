"""The job of a fit: run on a cluster, followed, and its model written to files of this process.

    settings, input -> run_job -> Finished: figures, history, files of the model's export

Owns which cluster a fit uses.  Knows no estimator.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snailps.api.worker import load_class
from snailps.data.spool import Spooled
from snailps.errors import ClusterError, ParameterError
from snailps.estimators.monitor import Monitor
from snailps.local.cluster import default_cluster
from snailps.local.session import Cluster


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that is done.

    Attributes
    ----------
    figures : dict
    files : list of Path
        What its export wrote; they are gone when the context ends.
    """

    figures: dict[str, Any]
    files: list[Path]


@contextlib.contextmanager
def run_job(
    worker_class: str,
    settings: Mapping[str, Any],
    given: Spooled | list[str],
    monitor: Monitor,
    *,
    cluster: Any,
    workers: int | None,
) -> Iterator[Finished]:
    """Trains a model, and writes its files into a folder that lasts as long as the context.

    Parameters
    ----------
    worker_class : str
    settings : mapping
        Of the job, without input and output.
    given : Spooled or list of str
        The input.
    monitor : Monitor
        Is told of the job.
    cluster : Cluster or None
        Where to train; None: the cluster of the innermost ``with`` block, or this process's own.
    workers : int or None
        Of the latter.

    Raises
    ------
    SnailError
        The job failed.
    """
    where = _cluster_of(cluster, workers)
    if "continue_from" in settings and not where.is_local:
        raise ClusterError(
            "partial_fit needs a cluster of this machine: one on other hosts cannot read a model "
            "of this process yet. Save it where they can, and train with continue_from"
        )
    with tempfile.TemporaryDirectory(prefix="snailps-") as folder:
        with where.in_turn():  # another thread's job would replace the tables
            job = where.run(worker_class, settings, input=given, on_status=monitor.update)
            with job.results(output=str(Path(folder, "model"))) as results:
                figures = {**job.figures, **load_class(worker_class, "the job").export(results)}
        files = [Path(path) for path in figures.pop("files")]
        monitor.finish(figures, job.history)
        yield Finished(figures, files)


def _cluster_of(cluster: Any, workers: int | None) -> Cluster:
    if cluster is None:
        return default_cluster(workers)
    if not isinstance(cluster, Cluster):
        raise ParameterError(
            "cluster: expected one of snailps.cluster, connect or local_cluster; got "
            f"{cluster!r:.80}"
        )
    if workers is not None:
        raise ParameterError(
            f"workers: expected none with a cluster, which has its own; got {workers!r:.80}"
        )
    return cluster
