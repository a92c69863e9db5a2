"""The base class of models, and its loading.

    class MyModel(snailps.Worker): Settings, tables(), train(block)   ->  worker_class: a:MyModel

Owns the methods that most models override; those of a survey, a rotation, rounds are traits
(`traits.py`), pulls and pushes are in `model_tables.py`.  A model gets settings, blocks and NumPy
arrays, never a socket, a lease or another worker.  `worker/training.py` calls its methods,
`master/job/job.py` the class methods that concern the job as a whole.
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
from snailps.api.traits import NAMES, InRounds, complete, trait_of
from snailps.config import JobSettings, settings_of
from snailps.config.consistency import steps_of
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

    Only `train` must be written.  Order of the calls: `tables`, [`survey` of each leased block],
    `setup`, `prepare` and `train` of each leased block, `finish`.  Class methods are called at the
    master, with an instance of the class's `Settings` or with `Results`.  A survey, a rotation,
    rounds, how the input is cut: all else that a model may write is in docs/workers.md, and with
    its arguments in `snailps.api.traits`.
    """

    Settings: ClassVar[type[JobSettings]] = JobSettings
    """Settings of the model: a frozen dataclass derived from `JobSettings`.

    Fields of the class itself are settings, too: ``width: int = 8`` is ``self.width``.
    """

    _own_settings: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Gives the class its traits, and settings of its plain fields, ``width: int = 8``."""
        super().__init_subclass__()
        if "owes" in vars(cls):  # until 0.1
            raise TypeError(f"{cls.__name__}.owes is called unpushed now")
        complete(cls)
        if isinstance(cls.Settings, type) and issubclass(cls.Settings, JobSettings):
            settings, own = with_fields(cls.Settings, cls, _TAKEN)
            if own:  # else a mixin's would hide those of the class beside it
                cls.Settings = settings
                cls._own_settings = (*cls._own_settings, *own)

    def __init__(self, settings: JobSettings, threads: int = 1) -> None:
        super().__init__()
        self.settings = settings
        for name in self._own_settings:
            setattr(self, name, getattr(settings, name))
        self.threads = threads
        self.workers = 1
        """Workers of the job, this one included, updated between blocks; with ``consistency: bsp``
        `micro_batches`, because that many blocks are trained from the same rows."""
        self.prefetch = 1
        """Blocks that are leased and prepared ahead, at least 1; `setup` may raise it."""
        self.summary = b""
        """Result of the survey, if there is one."""
        self.slowest = 0
        """With ``consistency: ssp``: blocks that the slowest worker has finished, as last
        reported."""

    # --- overridden by the model -----------------------------------------------------------

    def tables(self) -> Sequence[Table | Tensor]:
        """The tables and tensors it needs.  All workers must declare the same."""
        return ()

    def setup(self) -> None:
        """Called once before the first block; tables, `settings` and `summary` are available."""

    def prepare(self, block: Block) -> Any:
        """Parses the next block and starts to pull its rows, in another thread beside `train`: may
        use `settings`, `summary`, pulls, nothing that `train` changes.  Gives `block.prepared`.
        """
        return None

    def train(self, block: Block) -> Mapping[str, float]:
        """Trains on a block.  Returns ``units`` (examples or words in it) and any of ``loss`` (sum
        of losses) with ``examples`` (number of losses), ``lr``, ``bad_lines`` (lines skipped as
        malformed, in the first epoch), ``count NAME`` (added up for `counted`); other numbers are
        ignored.  A ``loss`` that is not finite fails the job.
        """
        raise NotImplementedError(f"{type(self).__name__} has no train()")

    def finish(self) -> None:
        """Called once after the last block; push remaining deltas here."""

    @classmethod
    def model_name(cls, settings: Any) -> str:
        """Name the job for a status: the class's name, unless overridden."""
        return cls.__name__

    @classmethod
    def clocked(cls, settings: Any) -> bool:
        """Whether blocks are contributions to common steps: ``bsp``, or a job in rounds."""
        return steps_of(settings).are_sums or trait_of(cls, InRounds).rounds(settings) > 0

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        """Returns figures of the finished model, also without output: numbers, text, paths, lists
        and dicts of these.  NumPy's scalars and small arrays become plain; else the job fails.
        """
        return {}

    @classmethod
    def check(cls, settings: Any) -> None:
        """Raise `ConfigError` for contradicting settings; at the master, before the job starts."""

    @classmethod
    def result_files(cls, settings: Any) -> Sequence[str]:
        """Paths that `export` will write: no file is replaced unasked.  Default: ``OUTPUT.npz``, or
        nothing if the class has an `export` of its own.
        """
        own = cls.export.__func__ is not Worker.export.__func__  # type: ignore[attr-defined]
        return () if own else (f"{settings.output}.npz",)

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Writes the finished model and returns figures, as `judge` does.  Default: ``OUTPUT.npz``
        with ``NAME.keys`` and ``NAME.rows`` of every table.
        """
        path = Path(f"{results.settings.output}.npz")
        write_tables(path, results)
        return {"files": [str(path)]}


_TAKEN = {*dir(Worker), "settings", "threads", "workers", "prefetch", "summary", "slowest"}
_TAKEN.update(*NAMES.values())
"""Names that mean something else in a model."""


def load_class(path: str, origin: str) -> type[Worker]:
    """The model that ``package.module:Class`` names; `origin`: where the user wrote it."""
    cls = load_named(path, f"{origin}: worker_class: {path}", Worker)
    complete(cls)  # by what a decorator, or its module, has added since it was made
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
