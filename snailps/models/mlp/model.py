"""A multilayer perceptron on dense examples, such as images, from files of arrays.

    lease -> numbers of examples (`data/array_files.py`) -> x, labels  (next block, meanwhile)
    PULL of all layers -> x @ W -> activation -> ... -> softmax -> loss, gradients -> PUSH

The optimizer of all layers runs at the servers.  With ``bsp`` a block is a micro-batch, and pushes
its part of the gradient of the batch's mean loss: the shards add the parts, and take one step.
Otherwise a block is a few batches, each of them a step.  Examples stay in their files, which every
worker opens; with `shuffle`, seed and epoch determine their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from snailps.abi.key_hash import order
from snailps.api.concurrency import Concurrency
from snailps.api.counting import Counted
from snailps.api.passes import Passes, share_of_new
from snailps.api.row_updates import STEPPED_BY_SHARDS, RowUpdate
from snailps.api.tables import Tensor
from snailps.api.traits import Adopted, Cut, Limited, Reported, Surveyed, Surveyor
from snailps.api.validation import Validation
from snailps.api.worker import Block, Pending, Results, Worker
from snailps.config import JobSettings
from snailps.config.consistency import steps_of
from snailps.data.array_files import Labelled, read_header
from snailps.data.encoding import LIMIT, Encoding, clip
from snailps.dataclass import dataclass, replace
from snailps.errors import DataError
from snailps.files.blocks import InputFile
from snailps.files.input_files import InputFiles
from snailps.files.matrix_file import ArrayPlace
from snailps.files.model_file import HEADER
from snailps.files.scratch import Scratch
from snailps.models.layers import BIASES, Floats
from snailps.models.losses import LOSSES
from snailps.models.mlp import files
from snailps.models.mlp.settings import (
    FIRST,
    METHODS,
    STEP,
    STEP_KEYS,
    MlpSettings,
    adopted,
    pairs_of,
)
from snailps.models.packed_tables import NoSurvey, opened_model, put_tables
from snailps.models.parameters import Parameters, Pull, Vector, pulled
from snailps.models.row_bounds import LOSS_BOUND
from snailps.models.shared_settings import check_optimizer
from snailps.models.sparse.clipping import STEPPED, STEPS_TAKEN, counts_of, judged
from snailps.models.stopping import Figures, decided_by

ENOUGH = 32 << 20
"""Numbers in all epochs of a small input."""
BATCHES_MAX = 16
"""Most batches of a block; a lease costs a message to the master."""
JUDGED = 2000
"""Test examples evaluated at a time, and in each evaluation during the training."""
BLOCKS_A_KEY = (1 << 24) // BATCHES_MAX
"""Blocks whose steps are counted in one row, so that the float32 count stays exact."""
_ONE = np.ones((1, 1), np.float32)


@dataclass(slots=True)
class Ready:
    """A prepared block; it has a `pull` in jobs with clocks."""

    x: Floats
    labels: NDArray[np.int64]
    weights: Floats
    pull: Pull | None
    counts: Mapping[str, float]


class Mlp(Worker, Adopted, Cut, Surveyed, Limited, Reported):
    """A multilayer perceptron; see the module's docstring."""

    loss_bound = LOSS_BOUND
    row_updates: ClassVar[Mapping[str, RowUpdate]] = {
        **STEPPED_BY_SHARDS,
        "number of steps": RowUpdate.OWNER,
    }
    completed: ClassVar[tuple[str, ...]] = ("encoding",)
    Settings = MlpSettings
    settings: MlpSettings

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "mlp"

    @classmethod
    def adopt(cls, settings: MlpSettings, explicit: Callable[[str], str | None]) -> JobSettings:
        names = [name for name in ("learnt", "learnt_batch") if explicit(name) is None]
        if settings.continue_from and names:
            with opened_model(settings) as model:
                said = model.settings() if f"{HEADER}.npy" in model.members else {}
            of_file: dict[str, Any] = {name: int(said.get(name, 0)) for name in names}
            settings = replace(settings, **of_file)
        return adopted(settings)

    @classmethod
    def check(cls, settings: MlpSettings) -> None:
        why = f"{cls.__name__}, whose servers step by gradients of dense layers"
        check_optimizer(settings, METHODS, why)
        if settings.continue_from:  # before the output is looked at, and before a cluster starts
            with opened_model(settings):
                pass

    @classmethod
    def workers_at_once(cls, settings: MlpSettings, files: InputFiles) -> Concurrency:
        """With sgd and momentum few: a gradient lacks as many steps as there are other workers."""
        s = settings
        if s.method not in ("sgd", "momentum"):
            return Concurrency()
        step = s.lr / (1 - s.momentum if s.method == "momentum" else 1)
        return Concurrency.by_step(
            step,
            f"with optimizer: {s.method} gradients lack a step of each other; a smaller lr, "
            "optimizer: adam, or consistency: bsp, lets more",
        )

    @classmethod
    def counted(cls, settings: MlpSettings, counts: Mapping[str, float], units: int) -> Counted:
        """Have predictions clip values as the training did; refuse a job that clipped many."""
        return judged(settings, counts, units)

    @classmethod
    def passes(cls, settings: JobSettings, files: InputFiles) -> Passes:
        """Small inputs get the epochs that `ENOUGH` allows, while the loss falls."""
        numbers = sum(math.prod(read_header(source.path).shape) for source in files.sources)
        return Passes.by_size(numbers, ENOUGH, share=share_of_new(settings, files))

    @classmethod
    def pieces(
        cls, settings: MlpSettings, sources: Sequence[InputFile], workers: int
    ) -> Sequence[tuple[str, int, int]]:
        """Cut ranges of whole examples: micro-batches with ``bsp``, else up to `BATCHES_MAX`
        batches.

        All workers together then have at most a twentieth of an epoch.
        """
        headers = [read_header(source.path) for source in sources]
        size = settings.part_size
        if not steps_of(settings).are_sums:
            batches = sum(header.shape[0] for header in headers) // size
            size *= max(1, min(BATCHES_MAX, batches // (20 * workers)))
        return [
            (source.path, *_bytes_of(header, first, count))
            for source, header in zip(sources, headers, strict=True)
            for first, count in _parts(header.shape[0], size)
        ]

    @classmethod
    def surveyor(cls, settings: MlpSettings) -> Surveyor | None:
        """With `continue_from` an empty survey, since rows are set after one."""
        return NoSurvey() if settings.continue_from else None

    @classmethod
    def loader(cls, settings: MlpSettings) -> Callable[[Results], None] | None:
        return put_tables if settings.continue_from else None

    @classmethod
    def tester(cls, settings: MlpSettings) -> Callable[[Results], Mapping[str, float]] | None:
        return _tested if settings.test else None

    @classmethod
    def validation(cls, settings: MlpSettings) -> Validation | None:
        if not settings.validation:
            return None
        return decided_by(settings.stop_by, _FIGURES, _validated, settings.stop_after)

    @classmethod
    def judge(cls, results: Results) -> Mapping[str, Any]:
        """Evaluate the finished model on the test files (``test``); count its ``global_step``."""
        assert isinstance(results.settings, MlpSettings)
        figures: dict[str, Any] = {"global_step": trained_steps(results)}
        if results.settings.test:
            figures["test"] = figures_of_test(results)
        return figures

    @classmethod
    def result_files(cls, settings: JobSettings) -> Sequence[str]:
        return (f"{settings.output}.npz",)

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        s = results.settings
        assert isinstance(s, MlpSettings)
        arrays = pulled(results, s.tensors)
        # Of values as they are written.
        centres, factors = s.scales
        first, biases = arrays[FIRST] * factors[:, None], arrays[BIASES].copy()
        biases[: first.shape[1]] -= centres.astype(np.float64) @ first
        arrays = {**arrays, FIRST: first, BIASES: biases}
        # Whether `epochs` was automatic is not known here: so it is where the file is read.
        kept = replace(s, epochs=0)
        return {"files": [files.write_npz(f"{s.output}.npz", kept, arrays, trained_steps(results))]}

    # --- at a worker -------------------------------------------------------------------------

    def tables(self) -> Sequence[Tensor]:
        return [*self.settings.tensors, STEP]

    def setup(self) -> None:
        s = self.settings
        self._layers, self._scales = s.layers, s.scales
        self._net = Parameters(self, s.tensors)
        self._counted: Pending | None = None  # the last step
        self._scratch = Scratch(s.scratch_dir, s.scratch_bytes)
        pairs = pairs_of(s.input, s.labels, self._scratch)
        self._examples = Labelled(pairs, self._scratch)
        counts = [header.shape[0] for header in self._examples.headers]
        firsts = np.cumsum([0, *counts]).tolist()
        self._places = {
            images: (header, first)
            for (images, _), header, first in zip(
                pairs, self._examples.headers, firsts, strict=False
            )
        }
        self._part_counts = [count for n in counts for _, count in _parts(n, s.part_size)]
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, np.int64))
        self._weighed: tuple[int, list[float]] = (-1, [])  # by block of an epoch: sum of weights

    def survey(self, block: Block) -> bytes:
        return b""

    def prepare(self, block: Block) -> Ready:
        pull = self._net.pull(block.clock) if block.clock >= 0 else None
        numbers = self._numbers(block)
        weights = self._examples.weights
        if len(weights):
            numbers = numbers[weights[numbers] > 0]  # the others are not there
            weights = weights[numbers]
        centres, factors = self._scales
        values = (self._examples.rows(numbers) - centres) * factors
        beyond, width = clip(values, LIMIT), max(1, self.settings.inputs)
        return Ready(
            values,
            self._examples.labels[numbers],
            weights,
            pull,
            counts_of([beyond % width]),
        )

    def train(self, block: Block) -> Mapping[str, float]:
        """Take a step for each of the block's batches; with clocks, a part of a step."""
        ready: Ready = block.prepared
        size = self.settings.part_size
        loss = weighed = 0.0
        steps = 0
        # A part of a step is pushed even if it is empty: its clock waits for it.
        for first in range(0, len(ready.labels) or int(block.clock >= 0), size):
            labels = ready.labels[first : first + size]
            of_labels = ready.weights[first : first + size]
            weights = self._net.use(ready.pull or self._net.pull())
            gradients = self._net.blank()
            of_part, weight = self._gradients(
                ready.x[first : first + size], labels, of_labels, weights, gradients,
                self._out_of(block, len(labels), of_labels),
            )  # fmt: skip
            loss, weighed = loss + of_part, weighed + weight
            self._net.push(gradients)
            if block.slot == 0:
                self._count_step(block)
                steps += 1
        metrics = {"units": float(len(ready.labels)), "lr": self.settings.lr, **ready.counts}
        metrics |= {STEPS_TAKEN: float(steps), STEPPED: float(len(ready.labels))}
        return {**metrics, "loss": loss, "examples": weighed}

    def finish(self) -> None:
        self._net.settle()
        if self._counted is not None:
            self._counted.wait()
        self._scratch.close()

    def _count_step(self, block: Block) -> None:
        if self._counted is not None:
            self._counted.wait()
        key = block.number // BLOCKS_A_KEY % len(STEP_KEYS)
        self._counted = self.push_async(STEP.name, STEP_KEYS[key : key + 1], _ONE)

    def _gradients(
        self,
        x: Floats,
        labels: NDArray[np.int64],
        of_examples: Floats,
        weights: Vector,
        gradients: Vector,
        out_of: float,
    ) -> tuple[float, float]:
        """Compute the gradients of a batch, or a part; returns sums of losses and of weights."""
        loss, weight, dz = self._layers.step(
            x @ weights[FIRST], weights.arrays, labels.astype(np.float32), of_examples,
            gradients.arrays, out_of,
        )  # fmt: skip
        np.matmul(x.T, dz, out=gradients[FIRST])
        return loss, weight

    def _numbers(self, block: Block) -> NDArray[np.int64]:
        """The numbers of a block's examples: its bytes stand for a range of the epoch's order."""
        try:
            header, before = self._places[block.path]
        except KeyError:
            raise DataError(
                f"expected this worker's input to have {block.path}, as the master's has: name the "
                "input by absolute paths, the same on all machines"
            ) from None
        examples = self._order_of(block.epoch)
        item = header.width * header.dtype.itemsize
        first = before + (block.start - header.start) // item
        return examples[first : first + (block.stop - block.start) // item]

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        """The numbers of all examples, in the order of an epoch."""
        known, examples = self._order
        if known != epoch:
            count = len(self._examples)
            examples = np.arange(count)
            if self.settings.shuffle:
                examples = order(count, self.settings.seed, epoch)
            self._order = epoch, examples
        return examples

    def _out_of(self, block: Block, labels: int, weights: Floats) -> float:
        """Divisor of a part's gradients: the sum of the weights of its batch.

        With clocks, of all micro-batches of its clock.  Lines may be fewer than a batch, and their
        mean gradient is larger: where a model goes on, each of them moves it as far as in the
        batches that it has learnt with, or as in `batch_size`, if the user has made that smaller.
        """
        if block.clock < 0:
            weight = float(weights.sum(dtype=np.float64)) if len(weights) else float(labels)
        else:
            first = block.number - block.slot
            parts, counts = range(first, first + block.slots), self._part_counts
            labels = sum(counts[number % len(counts)] for number in parts)
            weight = sum(map(self._weight_of, parts))
        whole = min(self.settings.learnt_batch, self.settings.batch_size)
        return weight * max(1.0, whole / max(1, labels))

    def _weight_of(self, number: int) -> float:
        """Sum of the weights of a block's examples, in a job with clocks."""
        counts, weights = self._part_counts, self._examples.weights
        epoch, part = divmod(number, len(counts))
        if not len(weights):
            return counts[part]
        if epoch != self._weighed[0]:
            starts = np.cumsum([0, *counts[:-1]])
            sums = np.add.reduceat(weights[self._order_of(epoch)], starts, dtype=np.float64)
            self._weighed = epoch, sums.tolist()
        return self._weighed[1][part]


def _parts(examples: int, size: int) -> list[tuple[int, int]]:
    """List the first example and the size of each part of a file; the last may be short."""
    return [(first, min(size, examples - first)) for first in range(0, examples, size)]


def _bytes_of(header: ArrayPlace, first: int, count: int) -> tuple[int, int]:
    """The first and the last (exclusive) byte of examples in their file."""
    item = header.width * header.dtype.itemsize
    return header.start + item * first, header.start + item * (first + count)


def trained_steps(results: Results) -> int:
    return int(results.pull(STEP.name, STEP_KEYS).sum(dtype=np.float64))


def _tested(results: Results) -> Mapping[str, float]:
    figures = figures_of_test(results, JUDGED)
    return {name: round(figures[name], 4) for name in ("accuracy", "log_loss")}


_FIGURES: Figures = MappingProxyType(
    {"accuracy": ("accuracy", "higher"), "loss": ("log_loss", "lower")}
)


def _validated(results: Results) -> Mapping[str, float]:
    s = results.settings
    assert isinstance(s, MlpSettings)
    figures = figures_of(results, s.validation, s.validation_labels, "validation_labels")
    return {name: round(figures[name], 6) for name in ("accuracy", "log_loss")}


def figures_of_test(results: Results, most: int = 0) -> dict[str, Any]:
    """Loss and accuracy on the test files, or on at most `most` of their examples (0: all)."""
    s = results.settings
    assert isinstance(s, MlpSettings)
    return figures_of(results, s.test, s.test_labels, "test_labels", most)


def figures_of(
    results: Results, paths: Sequence[str], labels: Sequence[str], setting: str, most: int = 0
) -> dict[str, Any]:
    """Loss and accuracy on files with their labels, which a setting names."""
    s = results.settings
    assert isinstance(s, MlpSettings)
    arrays, judge = pulled(results, s.tensors), LOSSES["multinomial"].judge()
    centres, factors = s.scales
    encoding = Encoding.of_text(s.encoding)
    with Scratch(s.scratch_dir, s.scratch_bytes) as scratch:
        test = Labelled(pairs_of(paths, labels, scratch, setting), scratch)
        chosen = np.arange(0, len(test), max(1, -(-len(test) // most)) if most else 1)
        for first in range(0, len(chosen), JUDGED):
            numbers = chosen[first : first + JUDGED]
            rows = encoding.bounded_rows(test.rows(numbers))
            found = files.scores(s, arrays, (rows - centres) * factors)
            weights = test.weights[numbers] if len(test.weights) else test.weights
            judge.add(test.labels[numbers].astype(np.float32), found, weights)
    return judge.figures()
