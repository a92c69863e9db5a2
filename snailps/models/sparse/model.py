"""A model of sparse examples as the master sees it: its scores, and the rows of its file.

    rows of the servers + batch -> stored_scores            evaluation on hold-out files
    trained rows -> decoded -> rows of the .npz, for values as they are written

Owns what `evaluate`, `export` and `warm_start` ask of a model's class.  Knows no block and no
thread: `worker.SparseWorker` trains.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps.api.worker import Results
from snailps.config import JobSettings
from snailps.data.encoding import Encoding
from snailps.models.block_trainer import BlockTrainer
from snailps.models.losses import LOSSES
from snailps.models.packed_tables import GrownClasses, Packed, grown
from snailps.models.sparse.batch import BIAS_KEY, TABLE, Batch, Floats, Keys, check_classes
from snailps.models.sparse.settings import ClassesSettings, SparseSettings


class SparseModel(BlockTrainer):
    """The class methods by which commands and the master use a finished model, or its file."""

    Settings: ClassVar[type[JobSettings]] = SparseSettings
    settings: SparseSettings
    shape: ClassVar[tuple[str, ...]] = ()
    """Settings that must equal the file's where a training continues a model."""

    @classmethod
    @abstractmethod
    def scores(
        cls, settings: Any, rows: Floats, batch: Batch, extras: Mapping[str, Floats]
    ) -> Floats:
        """Compute scores (n, outputs) of a batch before any link, by weights of its keys."""

    @classmethod
    def stored_scores(cls, results: Results, batch: Batch, extras: Mapping[str, Floats]) -> Floats:
        """Compute `scores` with the servers' rows, at the master."""
        return cls.scores(results.settings, results.pull(TABLE, batch.keys), batch, extras)

    @classmethod
    def has_bias(cls, settings: Any) -> bool:
        """Whether every example has a constant feature, whose row has key `BIAS_KEY`."""
        return True

    @classmethod
    def constant_loss(cls, settings: SparseSettings) -> float:
        """Loss of the best constant score, on a sample of labels."""
        return LOSSES[settings.loss].constant_loss(Encoding.of_text(settings.encoding))

    @classmethod
    def extras(cls, results: Results) -> Mapping[str, Floats]:
        """Arrays that the model in training has besides its rows, by name."""
        return {}

    @classmethod
    def grown(
        cls, before: Any, after: Any, classes: GrownClasses, packed: Mapping[str, Packed]
    ) -> Mapping[str, Packed]:
        """Grow a model's rows with state to more classes.

        Default: for rows that have a weight for each output.
        """
        return {**packed, TABLE: grown(packed[TABLE], classes, BIAS_KEY)}

    @classmethod
    def centred_rows(cls, results: Results) -> Floats:
        """Read the rows of centred columns, as they were trained."""
        assert isinstance(results.settings, SparseSettings)
        keys = Encoding.of_text(results.settings.encoding).centred_keys
        if len(keys) == 0:
            return np.empty((0, results.tables[TABLE].dim), np.float32)
        return results.pull(TABLE, keys)

    @classmethod
    def decoded(cls, settings: Any, keys: Keys, rows: Floats, centred: Floats) -> Floats:
        """Compute rows (n, dim) of the finished model, for values and targets as written.

        Default, for rows of weights: multiply by the factors of values and targets; subtract from
        the bias what `centred` rows have added, and add the mean of targets.
        """
        encoding = Encoding.of_text(settings.encoding)
        made: Floats = rows * factors_of(settings, keys)[:, None]
        constant = cls.constant_of(encoding, centred)
        made[keys == BIAS_KEY] = rows[keys == BIAS_KEY] + constant
        factor, shift = LOSSES[settings.loss].restored(encoding)
        made *= np.float32(factor)
        made[keys == BIAS_KEY] += np.float32(shift)
        return made

    @classmethod
    def constant_of(cls, encoding: Encoding, centred: Floats) -> Any:
        """Compute what the centres add to scores, float64 (outputs,), or a number."""
        return -(encoding.offsets @ centred)

    @classmethod
    def decoded_extras(cls, results: Results) -> dict[str, NDArray[Any]]:
        """Arrays of the finished model's file besides its rows.

        ``intercept``, float64 (1,), is for targets: it is added to scores without the bias, whose
        float32 row cannot hold all digits of a large mean.
        """
        settings = results.settings
        assert isinstance(settings, SparseSettings)
        if settings.class_num:
            return dict(cls.extras(results))
        encoding, constant = Encoding.of_text(settings.encoding), 0.0
        if cls.has_bias(settings):
            constant = float(results.pull(TABLE, np.array([BIAS_KEY], np.uint64))[0, 0])
            constant += float(np.ravel(cls.constant_of(encoding, cls.centred_rows(results)))[0])
        factor, shift = LOSSES[settings.loss].restored(encoding)
        return {**cls.extras(results), "intercept": np.array([constant * factor + shift])}

    @classmethod
    def check_batch(cls, settings: Any, batch: Batch, where: str) -> None:
        """Refuse examples that the model cannot train on; called before and during the job."""
        if isinstance(settings, ClassesSettings):
            check_classes(batch, settings.classes, where)


def factors_of(settings: SparseSettings, keys: Keys) -> Floats:
    """Factors of features' values in the training, float32 (n,); 1 for the bias."""
    factors = Encoding.of_text(settings.encoding).factors_of(keys)
    return np.where(keys == BIAS_KEY, np.float32(1), factors)


def loss_unit(settings: SparseSettings) -> float:
    """Factor that turns the loss of encoded targets into the loss of the targets as written."""
    return Encoding.of_text(settings.encoding).deviation ** LOSSES[settings.loss].degree
