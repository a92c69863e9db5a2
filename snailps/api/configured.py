"""A model's class and its settings: how the class is completed, and a model made of it.

    class MyModel: width: int = 8, survey()   -> MyModel.Settings has `width`, MyModel is `Surveyed`
    MyModel(settings, threads)                -> self.settings, self.width, self.threads

Owns what a worker sets in a model.  Knows no table, no block and no call of the master.
"""

from __future__ import annotations

from typing import ClassVar

from snailps.api.traits import complete
from snailps.config import JobSettings
from snailps.config.fields import with_fields


class Configured:
    """A model's settings, and what else a worker gives it; made by the worker."""

    Settings: ClassVar[type[JobSettings]] = JobSettings
    """Settings of the model: a frozen dataclass derived from `JobSettings`.

    Plain fields of the model's class are settings, too: ``width: int = 8`` is ``self.width``.
    """

    _own_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that are plain fields of the model's class, or of its bases."""
    _reserved: ClassVar[frozenset[str]] = frozenset()
    """Names that plain fields may not take: they mean something else in a model."""

    def __init_subclass__(cls) -> None:
        """Give the class its traits, and make settings of its plain fields."""
        super().__init_subclass__()
        if "owes" in vars(cls):  # until 0.1
            raise TypeError(f"{cls.__name__}.owes is called unpushed now")
        complete(cls)
        if isinstance(cls.Settings, type) and issubclass(cls.Settings, JobSettings):
            settings, fields = with_fields(cls.Settings, cls, cls._reserved)
            if fields:  # else the settings of a mixin would hide those of the class beside it
                cls.Settings = settings
                cls._own_settings = (*cls._own_settings, *fields)

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
