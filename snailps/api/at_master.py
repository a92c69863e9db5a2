"""What the master asks a model's class about the job as a whole: the base of `Worker` for it.

    settings -> check, model_name, result_files          Results -> judge, export -> figures

Owns the defaults of class methods that most models write one or two of.  Rarer ones are traits
(`traits.py`).  They run at the master, where no model is made: `master/job/` calls them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snailps.api.results import Results, write_tables


class AtMaster:
    """Class methods that the master calls, with the job's `Settings` or with `Results`."""

    @classmethod
    def check(cls, settings: Any) -> None:
        """Raise `ConfigError` for settings that contradict each other, before the job starts."""

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
    def result_files(cls, settings: Any) -> Sequence[str]:
        """List the paths `export` will write, so that no file is replaced without ``overwrite``.
        Default: ``OUTPUT.npz``, or nothing if the class has its own `export`.
        """
        default = cls.export.__func__ is AtMaster.export.__func__  # type: ignore[attr-defined]
        return (f"{settings.output}.npz",) if default else ()

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Write the finished model, and return figures as `judge` does.  Default: ``OUTPUT.npz``
        with ``NAME.keys`` and ``NAME.rows`` of every table.
        """
        path = Path(f"{results.settings.output}.npz")
        write_tables(path, results)
        return {"files": [str(path)]}
