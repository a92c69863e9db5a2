"""snailps: a parameter server for plain CPU machines.

Users need this much: `Worker` to subclass, `Table` and `Tensor`, `JobSettings` and `setting` to
declare with, `local_cluster` to try it, `load` to ask what was trained, `FastText` and its like
for models as objects, and the command ``snailps``.  docs/ and examples/ show how.

    snailps.Worker -> first use -> import of snailps.api.worker

Names are imported when they are first used, so that the command handles Ctrl-C, and prints
``snailps --version``, before NumPy and the compiled parts are loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from snailps import estimators, registry
from snailps._version import __version__

if TYPE_CHECKING:
    from snailps.api.access_method import AccessMethod
    from snailps.api.rotation import Rotation
    from snailps.api.tables import Table, Tensor
    from snailps.api.worker import Block, Results, Worker
    from snailps.config import JobSettings, setting
    from snailps.data.matrix_writer import write_matrix
    from snailps.data.pipeline import Stage
    from snailps.duplicates.dedup import dedup
    from snailps.errors import ConvergenceWarning, SnailError
    from snailps.estimators import *  # noqa: F403
    from snailps.estimators.loading import load
    from snailps.estimators.quantizing import quantize
    from snailps.filtering.job import filter as filter
    from snailps.local.cluster import cluster, connect, default_cluster, local_cluster
    from snailps.local.session import Cluster
    from snailps.local.session import Cluster as LocalCluster
    from snailps.models.parameters import Parameters
    from snailps.serving.reader import TableReader, reader
    from snailps.serving.recommender import Recommender, recommender
    from snailps.serving.saved_tables import SavedTables, open_checkpoint
    from snailps.vectors.calibrating import calibrate
    from snailps.vectors.label_prediction import LabelModel
    from snailps.vectors.query import Vectors

__all__ = [
    "AccessMethod",
    "Block",
    "Cluster",
    "ConvergenceWarning",
    "JobSettings",
    "LabelModel",
    "LocalCluster",
    "Parameters",
    "Recommender",
    "Results",
    "Rotation",
    "SavedTables",
    "SnailError",
    "Stage",
    "Table",
    "TableReader",
    "Tensor",
    "Vectors",
    "Worker",
    "__version__",
    "calibrate",
    "cluster",
    "connect",
    "dedup",
    "default_cluster",
    "load",
    "local_cluster",
    "open_checkpoint",
    "quantize",
    "reader",
    "recommender",
    "setting",
    "write_matrix",
]
__all__ += estimators.__all__

# `filter` is not in `__all__`: `from snailps import *` would hide Python's own.
_HOMES = {
    "config": ("JobSettings", "setting"),
    "data.matrix_writer": ("write_matrix",),
    "data.pipeline": ("Stage",),
    "duplicates.dedup": ("dedup",),
    "errors": ("ConvergenceWarning", "SnailError"),
    "estimators.loading": ("load",),
    "estimators.quantizing": ("quantize",),
    "filtering.job": ("filter",),
    "models.parameters": ("Parameters",),
    "api.access_method": ("AccessMethod",),
    "local.cluster": ("LocalCluster", "cluster", "connect", "default_cluster", "local_cluster"),
    "local.session": ("Cluster",),
    "api.rotation": ("Rotation",),
    "api.tables": ("Table", "Tensor"),
    "api.worker": ("Block", "Results", "Worker"),
    "vectors.calibrating": ("calibrate",),
    "vectors.label_prediction": ("LabelModel",),
    "serving.reader": ("TableReader", "reader"),
    "serving.recommender": ("Recommender", "recommender"),
    "serving.saved_tables": ("SavedTables", "open_checkpoint"),
    "vectors.query": ("Vectors",),
    "estimators": estimators.__all__,
}

registry.MODELS.append("snailps.models.")
registry.OPTIONS.update(
    {
        "ranges": "snailps.master.leases.ranges",
        "rotation": "snailps.master.leases.rotation",
        "rotation.worker": "snailps.worker.checkouts",
        "retention": "snailps.store.core._retention",
        "rounds": "snailps.master.job.round_controller",
        "server_products": "snailps.shard._product_requests",
        "server_products.client": "snailps.transport.client._product_batch",
        "tables": "snailps.data.table_files",
        "tests_in_training": "snailps.master.job.inspection",
    }
)


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            found: object = getattr(importlib.import_module(f"snailps.{home}"), name)
            globals()[name] = found
            return found
    message = f"module 'snailps' has no attribute {name!r}"
    # With these, Python's traceback adds the name that was meant.
    raise AttributeError(message, name=name, obj=importlib.import_module("snailps"))


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for names in _HOMES.values() for name in names)})
