"""Settings of multilayer perceptrons, and values derived from them and from the input.

    settings, files -> adopted -> settings with widths -> Layers, tensors, pairs of files

Declarations and checks; the heads of the files are read at the master, before the job starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from snailps.api.passes import EPOCHS_AUTO
from snailps.api.tables import DIM_MAX, Tensor
from snailps.config import JobSettings, setting
from snailps.config.consistency import steps_of
from snailps.data.array_files import Labelled, check_pair, classes_of, labels_of, weights_of
from snailps.data.encoding import FARTHEST, Encoding
from snailps.dataclass import dataclass, replace
from snailps.errors import ConfigError, DataError
from snailps.files.blocks import expand
from snailps.files.scratch import Scratch
from snailps.models.layers import Floats, Layers, check_widths
from snailps.models.shared_settings import (
    ACTIVATION,
    CONTINUE_FROM,
    LEARNT_BATCH,
    SHUFFLE,
    STOP_AFTER,
    STOP_BY,
    VALIDATION,
    refuse_untested,
)
from snailps.models.tested_texts import warn_of_trained

METHODS = ("adagrad", "adam", "momentum", "sgd")
FIRST = "dense0"
STEP = Tensor("global_step", (1,))
"""Steps of the parameters; a row counts exactly up to 2^24, so later blocks use further rows."""
STEP_KEYS = np.arange(1024, dtype=np.uint64)
"""Rows of `STEP`; their sum is the number of steps."""
SAMPLE_VALUES = 1 << 18
"""Values of the input that are read before the training."""
_SEED_FIRST = 1 << 32
"""Added to the first layer's seed, so that its weights differ from the other layers'."""


@dataclass(frozen=True, slots=True)
class MlpSettings(JobSettings):
    """Settings of multilayer perceptrons."""

    epochs: int = setting(0, **EPOCHS_AUTO)
    labels: tuple[str, ...] = setting(
        (),
        help="Label files, one for each input file. Empty: found in the same folder by MNIST's "
        "names (`images-idx3` becomes `labels-idx1`), or by `y` in place of `X` in the name of a "
        "`.npy`; a matrix file contains its labels.",
        when="The files have other names.",
        unit="paths",
    )
    test: tuple[str, ...] = setting(
        (),
        help="Hold-out files with examples. The model is evaluated on them from time to time and "
        "at the end. Empty: no evaluation.",
        when="To measure the model on examples that it was not trained on.",
        unit="paths",
    )
    test_labels: tuple[str, ...] = setting(
        (),
        help="Label files of `test`, found like `labels`.",
        when="The files have other names.",
        unit="paths",
    )
    validation: tuple[str, ...] = setting(
        (), **VALIDATION, when="To see whether more epochs help, or for `stop_after`."
    )
    validation_labels: tuple[str, ...] = setting(
        (),
        help="Label files of `validation`, found like `labels`.",
        when="The files have other names.",
        unit="paths",
    )
    stop_after: int = setting(0, **STOP_AFTER)
    stop_by: str = setting(
        "",
        help="Figure by which `stop_after` compares epochs: `accuracy` or `loss`. Empty: "
        "`accuracy`.",
        **STOP_BY,
    )
    hidden: tuple[str, ...] = setting(
        ("100",),
        help="Widths of the hidden layers.",
        when="More or wider layers for harder data; on MNIST, 1024 gains half a point of accuracy.",
        unit="widths",
    )
    activation: Literal["relu", "sigmoid"] = setting("relu", **ACTIVATION)
    batch_size: int = setting(
        256,
        help="Examples in a step. With `consistency: bsp` all workers share them, in "
        "`micro_batches` parts; otherwise each worker makes its own steps.",
        when="Larger for fewer steps and less traffic an example; raise `lr` with it.",
        unit="examples",
        low=1,
        high=1 << 20,
    )
    lr: float = setting(
        0.002,
        help="Step size.",
        when="About 0.05 with momentum, 0.2 with sgd, 0.02 with adagrad.",
        low=1e-6,
        high=100.0,
    )
    momentum: float = setting(
        0.9,
        help="Share of the velocity that each step keeps.",
        when="Less with several asynchronous workers: their delays act like momentum.",
        low=0.0,
        high=0.999,
        read_if={"method": ("momentum",)},
    )
    inputs: int = setting(
        0,
        help="Number of values of an example. 0: as in the first input file.",
        when="Never; the master fills it in for the workers.",
        unit="values",
        low=0,
        high=1 << 24,
        hidden=True,
    )
    classes: int = setting(
        0,
        help="Number of classes. 0: one more than the largest label of the input.",
        when="The input lacks examples of the last classes.",
        unit="classes",
        low=0,
        high=DIM_MAX,
    )
    encoding: str = setting(
        "",
        help="Centres and factors of columns whose values are far from 1.",
        when="Never; the master measures it on a sample of the input.",
        hidden=True,
    )
    shuffle: bool = setting(True, **SHUFFLE)
    continue_from: str = setting("", **CONTINUE_FROM)
    learnt_batch: int = setting(0, **LEARNT_BATCH)

    def validate(self, where: Callable[[str], str]) -> None:
        JobSettings.validate(self, where)
        refuse_untested(self, where, ("validation",))
        check_widths(self.hidden, where("hidden"))
        if steps_of(self).are_sums and self.batch_size < self.micro_batches:
            raise ConfigError(
                f"{where('batch_size')}: expected at least an example for each of "
                f"{self.micro_batches} micro_batches, got {self.batch_size}"
            )

    @property
    def method(self) -> str:
        return "adam" if self.optimizer == "auto" else self.optimizer

    @property
    def scales(self) -> tuple[Floats, Floats]:
        """Centres and factors of an example's values: (x - centre) x factor."""
        encoding, keys = Encoding.of_text(self.encoding), np.arange(self.inputs, dtype=np.uint64)
        return encoding.centres_of(keys), encoding.factors_of(keys)

    @property
    def layers(self) -> Layers:
        return Layers((*map(int, self.hidden), self.classes), self.activation, "multinomial")

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters: weights of the first layer, then the parameters of `layers`."""
        options: dict[str, Any] = {
            "access": self.method, "lr": self.lr, "seed": self.seed, "wire": self.wire,
        }  # fmt: skip
        if self.method == "momentum":
            options["beta1"] = self.momentum
        width = int(self.hidden[0])
        first = {**options, "seed": self.seed + _SEED_FIRST}
        scale = (6 / (self.inputs + width)) ** 0.5
        return [
            Tensor(FIRST, (self.inputs, width), init="uniform", scale=scale, **first),
            *self.layers.tensors(**options),
        ]

    @property
    def part_size(self) -> int:
        """Examples that one worker computes at a time."""
        if steps_of(self).are_sums:
            return -(-self.batch_size // self.micro_batches)
        return self.batch_size


def pairs_of(
    inputs: Sequence[str], labels: Sequence[str], scratch: Scratch, name: str = "labels"
) -> list[tuple[str, str]]:
    """Pair files of examples with the files of their labels; DataError if one is missing."""
    images = [source.path for source in expand(inputs, scratch)]
    if not labels:
        option = f"--{name.replace('_', '-')}"
        return [(path, labels_of(path, option)) for path in images]
    others = [source.path for source in expand(labels, scratch)]
    if len(others) != len(images):
        raise DataError(
            f"{name}: expected {len(images)} files, one for each file of examples, "
            f"got {len(others)}"
        )
    return list(zip(images, others, strict=True))


def adopted(settings: MlpSettings) -> MlpSettings:
    """Return the settings with widths, classes and factors of columns read from the files."""
    if not settings.input:
        return settings
    with Scratch(settings.scratch_dir, settings.scratch_bytes) as scratch:
        pairs = pairs_of(settings.input, settings.labels, scratch)
        width = settings.inputs or check_pair(*pairs[0]).width
        largest = max(int(classes_of(labels, scratch).max()) for _, labels in pairs)
        classes = settings.classes or max(2, largest + 1)
        if largest >= classes:
            raise DataError(f"classes: expected labels below {classes}, got {largest}")
        encoding = Encoding.of_text(settings.encoding)
        if not encoding.is_measured:
            encoding = _measured(encoding, Labelled(pairs, scratch))
        tests = []
        if settings.test:
            tests = pairs_of(settings.test, settings.test_labels, scratch, "test_labels")
            _refuse_unmeasured("test", tests, scratch)
        if settings.validation:
            warn_of_trained(settings.validation, settings.input)
            labels_of_them = settings.validation_labels
            pairs_tested = pairs_of(
                settings.validation, labels_of_them, scratch, "validation_labels"
            )
            _refuse_unmeasured("validation", pairs_tested, scratch)
            tests += pairs_tested
        for images, labels in [*pairs, *tests]:
            if (other := check_pair(images, labels).width) != width:
                raise DataError(
                    f"{images}: expected examples of {width} values, as in {pairs[0][0]}, "
                    f"got {other}"
                )
    return replace(settings, inputs=width, classes=classes, encoding=encoding.text)


def _refuse_unmeasured(name: str, pairs: Sequence[tuple[str, str]], scratch: Scratch) -> None:
    """Refuse files of the setting `name` if all of their examples weigh 0."""
    weights = [weights_of(images, scratch) for images, _ in pairs]
    if not any(not len(one) or one.any() for one in weights):
        raise DataError(
            f"{name}: expected an example with a weight above 0, got none: there is nothing to "
            "measure; give other files"
        )


def _measured(encoding: Encoding, examples: Labelled) -> Encoding:
    """Return the encoding with centres and factors of columns, measured on a sample."""
    columns, values = entries_of(examples)
    return encoding.measured(columns, values, len(values) // examples.width, farthest=FARTHEST)


def entries_of(examples: Labelled) -> tuple[NDArray[np.uint64], Floats]:
    """Return columns and values of a sample of the examples with a weight above 0, or of all if no
    example has one."""
    weighed = np.flatnonzero(examples.weights)
    count = len(weighed) or len(examples)
    rows = min(count, max(1, SAMPLE_VALUES // examples.width))
    numbers = np.linspace(0, count - 1, rows).astype(np.int64)
    sample = examples.rows(weighed[numbers] if len(weighed) else numbers)
    return np.tile(np.arange(examples.width, dtype=np.uint64), rows), sample.ravel()
