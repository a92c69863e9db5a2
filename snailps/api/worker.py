"""The base class of models, and how a model's class is loaded.

    class MyModel(snailps.Worker): Settings, tables(), train(block)   ->  worker_class: a:MyModel

Owns the methods that a worker calls block by block (`worker/training.py`).  Its other parts:
settings (`configured.py`), pulls and pushes (`model_tables.py`), what the master asks of the job
as a whole (`at_master.py`), and traits like a survey, a rotation or rounds (`traits.py`).  A model
gets settings, blocks and NumPy arrays, never a socket, a lease or another worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from snailps.api.at_master import AtMaster
from snailps.api.block import Block
from snailps.api.class_loading import load_named
from snailps.api.configured import Configured
from snailps.api.model_tables import ModelTables
from snailps.api.results import Results
from snailps.api.rotation import Checkouts, Rotation
from snailps.api.tables import Table, Tensor
from snailps.api.traits import NAMES, complete
from snailps.config import JobSettings, settings_of
from snailps.errors import ConfigError
from snailps.transport.client._client import Forward, Pending
from snailps.transport.frame import BATCHES_BYTES

__all__ = [
    "BATCHES_BYTES",
    "Block",
    "Checkouts",
    "Forward",
    "Pending",
    "Results",
    "Rotation",
    "Worker",
    "load_class",
]


class Worker(Configured, ModelTables, AtMaster):
    """A model.  Subclass it, declare its tables, and train a block at a time.

    Only `train` must be written.  Each worker calls `tables`, [`survey` of leased blocks], `setup`,
    `prepare` and `train` of leased blocks, `finish`.  The master calls the class methods.  What
    else a model may write is a trait: `snailps.api.traits`, docs/workers.md.

    Examples
    --------
    >>> class Lengths(Worker):
    ...     def tables(self):
    ...         return [Table("lengths", dim=1)]
    ...     def train(self, block):
    ...         keys = [len(line) for line in block.data.splitlines()]
    ...         self.push("lengths", keys, np.ones((len(keys), 1)))
    ...         return {"units": len(keys)}
    """

    def tables(self) -> Sequence[Table | Tensor]:
        """Declare the model's tables and tensors; every worker must declare the same."""
        return ()

    def setup(self) -> None:
        """Prepare the training; called once, when tables, `settings` and `summary` are there."""

    def prepare(self, block: Block) -> Any:
        """Parse a block ahead and start to pull its rows; the result becomes `block.prepared`.
        Runs in another thread beside `train`: it may use nothing that `train` changes.
        """
        return None

    def train(self, block: Block) -> Mapping[str, float]:
        """Train on a block; return ``units`` (examples or words in it) and, if any, ``loss`` (a
        finite sum) with ``examples`` (how many losses), ``lr``, ``bad_lines`` (malformed, in the
        first epoch), ``count NAME`` (added up for `counted`).  Other numbers are ignored.
        """
        raise NotImplementedError(f"{type(self).__name__} has no train()")

    def finish(self) -> None:
        """End the training; called once after the last block: push what is left here."""


Worker._reserved = frozenset(
    {*dir(Worker), "settings", "threads", "workers", "prefetch", "summary", "slowest"}.union(
        *NAMES.values()
    )
)


def load_class(path: str, origin: str) -> type[Worker]:
    """Load the model that ``package.module:Class`` names; `origin` says where a user wrote it."""
    cls = load_named(path, f"{origin}: worker_class: {path}", Worker)
    complete(cls)  # again: a decorator, or its module, may have added methods since
    check_class(cls, f"{origin}: worker_class: {path}")
    return cls


def check_class(cls: type[Worker], where: str) -> None:
    """Refuse a model whose settings class is not valid."""
    try:
        if not (isinstance(cls.Settings, type) and issubclass(cls.Settings, JobSettings)):
            raise TypeError(
                f"{cls.__name__}.Settings must be a class derived from snailps.JobSettings, got "
                f"{cls.Settings!r:.80}"
            )
        settings_of(cls.Settings)
    except (TypeError, NameError) as error:
        raise ConfigError(f"{where}: {error}") from None
