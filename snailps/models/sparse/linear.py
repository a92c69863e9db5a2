"""Logistic, linear and multinomial regression on sparse examples.

    Batch, rows (weights, state) -> kernels.train_linear -> the same rows, trained
    tables -> OUTPUT.npz, and OUTPUT.liblinear where it is asked for

A row is a feature's weight, or one weight a class; the bias is a row of its own.  The arithmetic is
`kernels.train_linear`, how rows come and go `worker.SparseWorker`.

References
----------
H. B. McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from snailps import kernels
from snailps.api.tables import Table
from snailps.api.worker import Results
from snailps.config import JobSettings
from snailps.models.sparse import export
from snailps.models.sparse.batch import Batch, Floats, check_classes
from snailps.models.sparse.linear_settings import LinearSettings
from snailps.models.sparse.settings import METHODS
from snailps.models.sparse.worker import EPS, SparseWorker

LOSSES = {"logistic": 0, "squared": 1, "multinomial": 2}
"""Numbers of the losses in `kernels.train_linear`."""
HOT_FLOATS = 64
"""Weights and states of the rows that each thread has a copy of."""


class Linear(SparseWorker):
    """Logistic, linear and multinomial regression; see the module's docstring."""

    Settings = LinearSettings
    settings: LinearSettings

    def tables(self) -> Sequence[Table]:
        """One table: weights of a feature, with their state; zeros at first."""
        return (self.table(self.settings.outputs),)

    def setup(self) -> None:
        """Notes how many rows are hot."""
        super().setup()
        self._hot = HOT_FLOATS // self.settings.outputs

    def train_part(
        self,
        batch: Batch,
        rows: Floats,
        part: tuple[int, int],
        rates: tuple[float, float],
        *,
        shared: bool,
        seed: int,
    ) -> tuple[float, float]:
        """Trains on examples from `part[0]` to before `part[1]`."""
        s = self.settings
        return kernels.train_linear(
            rows,
            batch.ptr,
            batch.places,
            batch.values,
            batch.labels,
            batch.weights,
            outputs=s.outputs,
            loss=LOSSES[s.loss],
            method=METHODS[s.method],
            bias=batch.bias,
            hot=min(max(1, self._hot), len(rows)) if shared else 0,
            lr_start=rates[0],
            lr_stop=rates[1],
            eps=EPS,
            l1=s.l1,
            l2=s.l2,
            beta=s.beta,
            first=part[0],
            last=part[1],
        )

    @classmethod
    def has_bias(cls, settings: JobSettings) -> bool:
        """As the settings say."""
        assert isinstance(settings, LinearSettings)
        return settings.bias

    @classmethod
    def check_batch(cls, settings: JobSettings, batch: Batch, where: str) -> None:
        """Refuses labels that are no classes."""
        assert isinstance(settings, LinearSettings)
        check_classes(batch, settings.classes, where)

    @classmethod
    def loss_of(cls, settings: JobSettings) -> str:
        """The loss of the settings."""
        assert isinstance(settings, LinearSettings)
        return settings.loss

    @classmethod
    def scores(
        cls, settings: JobSettings, rows: Floats, batch: Batch, extras: Mapping[str, Floats]
    ) -> Floats:
        """Products of values and weights, and the bias."""
        assert isinstance(settings, LinearSettings)
        return kernels.linear_scores(
            rows,
            batch.ptr,
            batch.places,
            batch.values,
            outputs=settings.outputs,
            bias=batch.bias,
        )

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Writes the files that `formats` names."""
        s = results.settings
        assert isinstance(s, LinearSettings)
        with export.stored_rows(results, stages=len(s.formats)) as stored:
            files = []
            if "npz" in s.formats:
                files.append(export.write_npz(f"{s.output}.npz", s, stored, cls.extras(results)))
            if "liblinear" in s.formats:
                files.append(export.write_liblinear(f"{s.output}.liblinear", s, stored))
        return {"files": files, "features": stored.features}
