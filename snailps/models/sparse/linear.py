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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from snailps import kernels
from snailps.config import JobSettings, setting
from snailps.errors import ConfigError
from snailps.models.sparse import export
from snailps.models.sparse.batch import Batch, Floats
from snailps.models.sparse.settings import METHODS, SparseSettings
from snailps.models.sparse.worker import EPS, SparseWorker
from snailps.roles.tables import DIM_MAX, Table
from snailps.roles.worker import Results

LOSSES = {"logistic": 0, "squared": 1, "multinomial": 2}
"""Numbers of the losses in `kernels.train_linear`."""
HOT_FLOATS = 64
"""Weights and states of the rows that each thread has a copy of."""


@dataclass(frozen=True, slots=True)
class LinearSettings(SparseSettings):
    """Settings of linear models; by default they come close to what a converged solver gives."""

    loss: Literal["logistic", "squared", "multinomial"] = setting(
        "logistic",
        help="`logistic`: labels are yes (above 0) or no. `squared`: real numbers. `multinomial`: "
        "class numbers from 0.",
        when="Labels are numbers, or more than two classes.",
    )
    classes: int = setting(
        0,
        help="How many classes there are; only for `loss: multinomial`.",
        when="Always with it.",
        unit="classes",
        low=0,
        high=DIM_MAX,
    )
    bias: bool = setting(
        True,
        help="Whether every example has a constant feature, beside its own.",
        when="The examples have one already.",
    )
    formats: tuple[str, ...] = setting(
        ("npz",),
        help="Result files: `npz`, and `liblinear` (a text of weights by index).",
        when="Another program is to read the model.",
    )

    def validate(self, where: Callable[[str], str]) -> None:
        """Refuse classes without the loss that has them, and formats that we cannot write."""
        SparseSettings.validate(self, where)
        if (self.loss == "multinomial") != (self.classes > 1):
            expected = (
                "at least 2" if self.loss == "multinomial" else "0: only multinomial has them"
            )
            raise ConfigError(
                f"{where('classes')}: classes: expected {expected} with loss {self.loss} (from "
                f"{where('loss')}), got {self.classes}"
            )
        wrong = set(self.formats) - {"npz", "liblinear"}
        if wrong or not self.formats:
            raise ConfigError(
                f"{where('formats')}: formats: expected npz, liblinear or both, got "
                f"{', '.join(self.formats) or 'nothing'}"
            )
        if "liblinear" in self.formats and self.columns and not 0 < self.hash_bits <= 24:
            raise ConfigError(
                f"{where('formats')}: formats: liblinear has a line for each possible index, and "
                "columns make keys of 64 bits: set hash_bits to 24 or less"
            )

    @property
    def outputs(self) -> int:
        """Weights of a feature."""
        return max(1, self.classes)


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
        keys, rows = export.stored_rows(results)
        files = []
        if "npz" in s.formats:
            files.append(export.write_npz(f"{s.output}.npz", s, keys, rows, cls.extras(results)))
        if "liblinear" in s.formats:
            files.append(export.write_liblinear(f"{s.output}.liblinear", s, keys, rows))
        return {"files": files, "features": len(keys) - export.has_bias(keys)}
