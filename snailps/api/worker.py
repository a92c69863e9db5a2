"""The base class of models, and how a model's class is loaded.

    class MyModel(snailps.Worker): Settings, tables(), train(block)   ->  worker_class: a:MyModel

Owns the methods that most models override.  Methods of a survey, a rotation or rounds are traits
(`traits.py`); pulls and pushes are in `model_tables.py`.  A model gets settings, blocks and NumPy
arrays, never a socket, a lease or another worker.  `worker/training.py` calls its methods, and
`master/job/job.py` the class methods, which concern the job as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from snailps.api.block import Block
from snailps.api.class_loading import load_named
from snailps.api.model_tables import ModelTables
from snailps.api.results import Results, write_tables
from snailps.api.rotation import Checkouts, Rotation
from snailps.api.tables import Table, Tensor
from snailps.api.traits import NAMES, complete
from snailps.config import JobSettings, settings_of
from snailps.config.fields import with_fields
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


class Worker(ModelTables):
    """A model.  Subclass it, declare its tables, and train a block at a time.

    Only `train` must be written.  A worker calls `tables`, [`survey` of each leased block],
    `setup`, `prepare` and `train` of each leased block, `finish`.  The master calls class methods,
    with the class's `Settings` or with `Results`.  What else a model may write, like a survey, a
    rotation or rounds, is in docs/workers.md, and with its arguments in `snailps.api.traits`.

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

    Settings: ClassVar[type[JobSettings]] = JobSettings
    """Settings of the model: a frozen dataclass derived from `JobSettings`.

    Plain fields of the model's class are settings, too: ``width: int = 8`` is ``self.width``.
    """

    def __init_subclass__(cls) -> None:
        # Gives the class its traits, and makes settings of its plain fields, ``width: int = 8``.
        super().__init_subclass__()
        if "owes" in vars(cls):  # until 0.1
            raise TypeError(f"{cls.__name__}.owes is called unpushed now")
        complete(cls)
        if isinstance(cls.Settings, type) and issubclass(cls.Settings, JobSettings):
            settings, own = with_fields(cls.Settings, cls, _TAKEN)
            if own:  # else the settings of a mixin would hide those of the class beside it
                cls.Settings = settings
                cls._own_settings = (*cls._own_settings, *own)

    def __init__(self, settings: JobSettings, threads: int = 1) -> None:
        super().__init__()
        self.settings = settings
        for name in self._own_settings:
            setattr(self, name, getattr(settings, name))
        self.threads = threads
        self.workers = 1
        """How many workers train the job, this one included; changes between blocks only.  With
        ``consistency: bsp`` it is `micro_batches`, the number of blocks that read the same rows."""
        self.prefetch = 1
        """How many blocks are leased and prepared ahead, at least 1; `setup` may raise it."""
        self.summary = b""
        """Result of the survey; empty without one."""
        self.slowest = 0
        """With ``consistency: ssp``: how many blocks the slowest worker has finished, as far as the
        master has reported it."""

    # --- overridden by the model -----------------------------------------------------------

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
        """Train on a block.  Returns ``units`` (examples or words in it) and, if there are any,
        ``loss`` (a sum) with ``examples`` (how many losses), ``lr``, ``bad_lines`` (malformed, in
        the first epoch), ``count NAME`` (added up for `counted`); other numbers are ignored.  A
        ``loss`` that is NaN or infinite fails the job.
        """
        raise NotImplementedError(f"{type(self).__name__} has no train()")

    def finish(self) -> None:
        """End the training; called once after the last block: push what is left here."""

    @classmethod
    def model_name(cls, settings: Any) -> str:
        """Name the job in a status; default: the name of the class."""
        return cls.__name__

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        """Compute figures of the finished model, with or without output: numbers, text, paths,
        lists and dicts of these, NumPy's scalars and small arrays.  Else the job fails.
        """
        return {}

    @classmethod
    def check(cls, settings: Any) -> None:
        """Raise `ConfigError` for settings that contradict each other, before the job starts."""

    @classmethod
    def result_files(cls, settings: Any) -> Sequence[str]:
        """List the paths `export` will write, so that no file is replaced without ``overwrite``.
        Default: ``OUTPUT.npz``, or nothing if the class has its own `export`.
        """
        own = cls.export.__func__ is not Worker.export.__func__  # type: ignore[attr-defined]
        return () if own else (f"{settings.output}.npz",)

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Write the finished model, and return figures as `judge` does.  Default: ``OUTPUT.npz``
        with ``NAME.keys`` and ``NAME.rows`` of every table.
        """
        path = Path(f"{results.settings.output}.npz")
        write_tables(path, results)
        return {"files": [str(path)]}


_TAKEN = {*dir(Worker), "settings", "threads", "workers", "prefetch", "summary", "slowest"}
_TAKEN.update(*NAMES.values())
"""Names that a model's plain fields may not take: they mean something else in a model."""


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
