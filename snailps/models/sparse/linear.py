"""Logistic, linear and multinomial regression on sparse examples.

    Batch, rows (weights, state) -> kernels.train_linear -> the same rows, trained
    tables -> OUTPUT.npz, and OUTPUT.liblinear where it is asked for

A row is a feature's weight, or one weight a class; the bias is a row of its own.
`kernels.train_linear` computes, `worker.SparseWorker` moves rows.
After H. B. McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from snailps import kernels
from snailps.api.tables import Table
from snailps.api.worker import Results
from snailps.config import JobSettings, setting
from snailps.data.encoding import FARTHEST
from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.models.block_trainer import Rates, Span, Sums
from snailps.models.losses import LOSSES
from snailps.models.sparse import export
from snailps.models.sparse.batch import Batch, Floats
from snailps.models.sparse.settings import ClassesSettings
from snailps.models.sparse.worker import EPS, SparseWorker

HOT_FLOATS = 64
"""Floats of the rows that each thread has a copy of."""


@dataclass(frozen=True, slots=True)
class LinearSettings(ClassesSettings):
    """Settings of linear models; the defaults come close to the result of a converged solver."""

    bias: bool = setting(
        True,
        help="Whether a constant feature is added to every example.",
        when="`false` if the examples contain a constant feature.",
    )
    formats: tuple[str, ...] = setting(
        ("npz",),
        help="Result files: npz, liblinear. `liblinear` is a text of weights by index.",
        when="Another program reads the model.",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        ClassesSettings.validate(self, where)
        wrong = set(self.formats) - {"npz", "liblinear"}
        if wrong or not self.formats:
            raise ConfigError(
                f"{where('formats')}: expected npz, liblinear or both, got "
                f"{', '.join(self.formats) or 'nothing'}"
            )
        if "liblinear" in self.formats and not LOSSES[self.loss].solver:
            raise ConfigError(
                f"{where('formats')}: LIBLINEAR has no loss {self.loss}: expected npz"
            )
        hashed = bool(self.columns or self.label_column)
        if "liblinear" in self.formats and hashed and not 0 < self.hash_bits <= 24:
            raise ConfigError(
                f"{where('formats')}: liblinear has a line for each possible index, and "
                "columns make keys of 64 bits: set hash_bits to 24 or less"
            )


class Linear(SparseWorker):
    """Logistic, linear and multinomial regression; see the module's docstring."""

    Settings = LinearSettings
    settings: LinearSettings
    shape = ("bias",)

    def tables(self) -> Sequence[Table]:
        return (self.table(self.settings.outputs),)

    def train_part(
        self, batch: Batch, rows: Floats, part: Span, rates: Rates, *, shared: bool
    ) -> Sums:
        s = self.settings
        return kernels.train_linear(
            rows,
            batch.ptr,
            batch.places,
            batch.values,
            batch.labels,
            batch.weights,
            outputs=s.outputs,
            hot=min(max(1, HOT_FLOATS // s.outputs), len(rows)) if shared else 0,
            eps=EPS,
            **self.of_part(batch, part, rates),
        )

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "logistic"

    @classmethod
    def has_bias(cls, settings: LinearSettings) -> bool:
        return settings.bias

    @classmethod
    def farthest(cls, settings: LinearSettings) -> float:
        """No limit if there is a bias, which takes what centring subtracts."""
        return FARTHEST if cls.has_bias(settings) else 0.0

    @classmethod
    def scores(
        cls, settings: LinearSettings, rows: Floats, batch: Batch, extras: Mapping[str, Floats]
    ) -> Floats:
        """Add up products of values and weights, and the bias."""
        return kernels.linear_scores(
            rows,
            batch.ptr,
            batch.places,
            batch.values,
            outputs=settings.outputs,
            bias=batch.bias,
        )

    @classmethod
    def result_files(cls, settings: LinearSettings) -> Sequence[str]:
        return [f"{settings.output}.{name}" for name in settings.formats]

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        s = results.settings
        assert isinstance(s, LinearSettings)
        with export.stored_rows(cls, results, stages=len(s.formats)) as stored:
            files = []
            if "npz" in s.formats:
                extras = cls.decoded_extras(results)
                files.append(export.write_npz(f"{s.output}.npz", results, stored, extras))
            if "liblinear" in s.formats:
                files.append(export.write_liblinear(f"{s.output}.liblinear", s, stored))
        return {"files": files, "features": stored.features}
