"""A network with a large sparse first layer, which the servers or the workers compute.

    block -> batches -> first layer (`first_layer`): Z -> dense layers (`layers`): loss, gradients
          -> dL/dZ back through the first layer; gradients of the dense layers -> PUSH

Row k of table `TABLE` has the first layer's weights of feature k; the dense layers are tensors,
which are pulled for each batch.  A worker keeps no parameters: the optimizer of all layers runs at
the servers.  Owns the size of batches, and how many are under way.  With `in_flight` 2 the next
batch is requested while this one is computed, and its Z lacks this batch's step.  Several workers
lack each other's steps, too, so they take smaller batches (`share_of_batch`), at first much smaller
(`growing`).  With `bsp` a block is a part of a step: the gradients of all its batches are divided
by its examples and by the blocks of the step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from snailps import kernels
from snailps.api.passes import EPOCHS
from snailps.api.row_updates import STEPPED_BY_SHARDS, RowUpdate
from snailps.api.tables import Table, Tensor
from snailps.api.worker import BATCHES_BYTES, Block, Pending, Results
from snailps.config import JobSettings, setting
from snailps.config.consistency import steps_of
from snailps.data._admission import Admitted
from snailps.data._key_numbering import KeyNumbers
from snailps.data.encoding import FARTHEST, Encoding
from snailps.dataclass import dataclass
from snailps.errors import ConfigError
from snailps.models.layers import Layers, check_widths
from snailps.models.losses import LOSSES
from snailps.models.packed_tables import GrownClasses, Packed, grown_tensors
from snailps.models.parameters import Parameters, Vector, pulled
from snailps.models.shared_settings import ACTIVATION, LEARNT_BATCH
from snailps.models.sparse import evaluate
from snailps.models.sparse.batch import TABLE, Batch, Floats, Keys, batch_reader
from snailps.models.sparse.clipping import STEPPED, STEPS_TAKEN, counts_of
from snailps.models.sparse.first_layer import (
    AtServers,
    AtWorker,
    BatchEntries,
    Way,
    bytes_at_servers,
    bytes_at_worker,
)
from snailps.models.sparse.model import factors_of, loss_unit
from snailps.models.sparse.settings import ClassesSettings, check_method
from snailps.models.sparse.worker import SparseWorker

log = logging.getLogger(__name__)

METHODS = ("adagrad", "adam", "ftrl", "sgd")
LOOKED_AT = 4
"""Batches whose traffic decides where the first layer is computed, with ``auto``."""
BLOCK_BYTES = 8 << 20
SHARE_MIN = 64
"""Least examples in a batch of several workers: a batch costs two messages to every shard."""
GROWTH = 32
"""A batch of several workers is at most 1 / GROWTH of its worker's examples so far."""
STEPS = 1000
"""Steps of all workers that are enough for a training: with examples for more, batches grow."""


@dataclass(frozen=True, slots=True)
class NetSettings(ClassesSettings):
    """Settings of networks with a sparse first layer."""

    usual_method: ClassVar[str] = "adagrad"
    hidden: tuple[str, ...] = setting(
        ("50",),
        help="Widths of the hidden layers; the first is the sparse one's.",
        when="More or wider layers for more data.",
        unit="widths",
    )
    activation: Literal["relu", "sigmoid"] = setting("relu", **ACTIVATION)
    init_scale: float = setting(
        0.05,
        help="Initial weights of a feature are uniform between minus and plus this value.",
        when="Smaller for hundreds of features an example, or for rare features.",
        low=0.0,
        high=10.0,
    )
    batch_size: int = setting(
        1024,
        help="Examples a step of one worker, or of all together: each takes its share, but at "
        f"least {SHARE_MIN}, and more, up to all, in a training of more than {STEPS:,} such steps. "
        "With bsp a block is a step.",
        when="Larger for fewer, longer steps and less processor time an example: about 512 times "
        "the number of workers.",
        unit="examples",
        low=1,
        high=1 << 20,
    )
    in_flight: int = setting(
        2,
        help="Batches in flight at once. With 1 every batch sees the step of the previous one.",
        when="1 to compare with other programs; more if network latency is high.",
        unit="batches",
        low=1,
        high=8,
    )
    first_layer: Literal["auto", "servers", "worker"] = setting(
        "auto",
        help="Where the product of the first layer is computed. `servers`: weights never travel; "
        "`worker`: rows are pulled, gradients pushed. `auto`: whichever moves fewer bytes for the "
        "first batches.",
        when="To measure both.",
    )
    lr: float = setting(
        0.05,
        help="Step size of all layers.",
        when="0.001 for adam; smaller if the loss jumps.",
        low=1e-6,
        high=100.0,
    )
    learnt_batch: int = setting(0, **LEARNT_BATCH)

    def validate(self, where: Callable[[str], str]) -> None:
        ClassesSettings.validate(self, where)
        check_widths(self.hidden, where("hidden"))

    @property
    def layers(self) -> Layers:
        widths = (*map(int, self.hidden), self.outputs)
        return Layers(widths, self.activation, self.loss)


@dataclass(frozen=True, slots=True)
class Stepped:
    """A batch's sum of losses, sum of weights, and dL/dZ."""

    loss: float
    weight: float
    dz: Floats


class Net(SparseWorker):
    """A network with a sparse first layer; see the module's docstring."""

    row_updates: ClassVar[Mapping[str, RowUpdate]] = STEPPED_BY_SHARDS
    Settings = NetSettings
    settings: NetSettings
    shape = ("hidden", "activation", "learnt_batch")
    learns_by_heart = True

    # --- at the master -----------------------------------------------------------------------

    @classmethod
    def model_name(cls, settings: JobSettings) -> str:
        return "sparse_net"

    @classmethod
    def check(cls, settings: NetSettings) -> None:
        """Refuse optimizers that servers lack, and batches that are too large for them."""
        why = f"{cls.__name__}, whose servers step by gradients"
        check_method(settings, METHODS, why, ("l1", "l2"))
        if steps_of(settings).are_sums and settings.first_layer == "servers":
            raise ConfigError(
                "first_layer: expected worker or auto with consistency bsp, where contributions "
                "wait in slots until all are there; got servers"
            )
        kept = 4 * settings.batch_size * settings.layers.sizes[0] * settings.in_flight
        if settings.first_layer != "worker" and kept > BATCHES_BYTES // 2:
            raise ConfigError(
                f"batch_size: {settings.in_flight} batches of {settings.batch_size:,} rows of "
                f"{settings.layers.sizes[0]:,} floats are {kept >> 20:,} MiB at each server, limit "
                f"{BATCHES_BYTES >> 21:,}: make them smaller, or set first_layer: worker"
            )
        evaluate.check(cls, settings)

    @classmethod
    def block_bytes(cls, settings: JobSettings, total_bytes: int, workers: int) -> int:
        """A tenth of an epoch over all workers, 8 MiB at most.

        Blocks are cut into batches, and no batch is under way from one block to the next.
        """
        return max(512, min(BLOCK_BYTES, total_bytes // (10 * workers)))

    @classmethod
    def has_bias(cls, settings: JobSettings) -> bool:
        """No: the dense layers have biases."""
        return False

    @classmethod
    def has_constant(cls, settings: JobSettings) -> bool:
        """Yes: the bias of the last layer."""
        return True

    @classmethod
    def farthest(cls, settings: JobSettings) -> float:
        """No limit: the biases of the first layer take what centring subtracts."""
        return FARTHEST

    @classmethod
    def decoded(cls, settings: NetSettings, keys: Keys, rows: Floats, centred: Floats) -> Floats:
        """Multiply weights by the factors of values."""
        return rows * factors_of(settings, keys)[:, None]

    @classmethod
    def decoded_extras(cls, results: Results) -> dict[str, NDArray[Any]]:
        """Give the dense layers, for values and targets as written."""
        s = results.settings
        assert isinstance(s, NetSettings)
        made = super().decoded_extras(results)
        encoding = Encoding.of_text(s.encoding)
        factor = np.float32(LOSSES[s.loss].restored(encoding)[0])
        *_, last, biases = s.layers.names
        made[last] = made[last] * factor
        made[biases] = made[biases].copy()
        made[biases][: s.layers.sizes[0]] -= encoding.offsets @ cls.centred_rows(results)
        made[biases][-s.outputs :] *= factor
        return made

    @classmethod
    def grown(
        cls,
        before: NetSettings,
        after: NetSettings,
        classes: GrownClasses,
        packed: Mapping[str, Packed],
    ) -> Mapping[str, Packed]:
        """Grow the last layer."""
        old, new = (s.layers.tensors(access=s.method, lr=s.lr) for s in (before, after))
        return grown_tensors(packed, old, new, classes, before.outputs)

    @classmethod
    def stored_scores(cls, results: Results, batch: Batch, extras: Mapping[str, Floats]) -> Floats:
        """Compute scores with the first layer at the shards: it may be larger than the memory here.

        Features without a row count as 0, as in the model's file.
        """
        s = results.settings
        assert isinstance(s, NetSettings)
        scores = np.empty((len(batch), s.outputs), np.float32)
        entries = _entries(batch)
        for first in range(0, len(batch), s.batch_size):
            last = min(len(batch), first + s.batch_size)
            part = entries.part(first, last)
            z = results.forward(TABLE, part.ptr, part.keys, part.values, stored=True)
            scores[first:last] = s.layers.scores(z, extras)
        return scores

    @classmethod
    def extras(cls, results: Results) -> Mapping[str, Floats]:
        assert isinstance(results.settings, NetSettings)
        return pulled(results, results.settings.layers.tensors())

    @classmethod
    def scores(
        cls, settings: NetSettings, rows: Floats, batch: Batch, extras: Mapping[str, Floats]
    ) -> Floats:
        z = np.empty((len(batch), rows.shape[1]), np.float32)
        kernels.csr_product(batch.ptr, batch.places, batch.values, rows, z)
        return settings.layers.scores(z, extras)

    # --- at a worker -------------------------------------------------------------------------

    def tables(self) -> Sequence[Table | Tensor]:  # type: ignore[override]
        """Declare the table of the first layer, and the tensors of the dense layers."""
        s = self.settings
        options = {"access": s.method, "lr": s.lr, "beta": s.beta, "seed": s.seed}
        if s.method == "ftrl":
            options |= {"l1": s.l1, "l2": s.l2}
        sparse = self.table(s.layers.sizes[0], init="uniform", scale=s.init_scale, **options)
        return [sparse, *s.layers.tensors(**options)]

    def setup(self) -> None:
        """With ``auto``, the first block decides where the first layer is computed."""
        s = self.settings
        self._layers, self._loss_unit = s.layers, loss_unit(s)
        self._numbers = KeyNumbers()
        self._place = "worker" if steps_of(s).are_sums else s.first_layer
        self._dense = Parameters(self, s.layers.tensors())
        self._backs: deque[Pending] = deque()  # ways back under way
        self._trained = 0  # examples
        self._reader = batch_reader(
            s,
            threads=self.threads,
            admitted=Admitted(self.summary) if self.summary else None,
            trains=True,
        )

    def prepare(self, block: Block) -> Batch:  # type: ignore[override]
        batch = self._reader.read_block(block)
        self._look_at(batch, block)
        return self._in_order(batch, block).laid_out()

    def train(self, block: Block) -> Mapping[str, float]:
        """Train on the block's batches, `in_flight` of them at a time."""
        batch: Batch = block.prepared
        size = self._batch_size(len(batch), block.progress)
        entries = _entries(batch)
        if self._place == "auto" and len(batch):
            whole = range(0, min(len(batch), LOOKED_AT * size), size)
            self._choose([entries.part(at, min(len(batch), at + size)) for at in whole])
        edges = self._edges(len(batch), size)
        under_way: deque[tuple[Way, tuple[int, int]]] = deque()
        # Several workers wait for the few shards that have the dense layers.  Once steps are short,
        # these are pulled one step of this worker earlier: copies lack other steps anyway.
        early = self.settings.in_flight > 1 and 0 < self._long_steps(size) <= self._trained
        self._trained += len(batch)
        next_pull = self._dense.pull()
        loss = weight = 0.0
        with self.corked():
            for number in range(len(edges) + self.settings.in_flight - 1):
                if number < len(edges):
                    under_way.append((self._start(entries.part(*edges[number])), edges[number]))
                if number + 1 < self.settings.in_flight or not under_way:
                    continue
                way, edge = under_way.popleft()
                weights = self._dense.use(next_pull)
                last = not under_way and number + 1 >= len(edges)
                if early and not last:
                    next_pull = self._dense.pull()
                out_of = self._out_of(block, batch.weights, len(batch), slice(*edge))
                back = self._step(way, batch, edge, weights, out_of)
                if not early and not last:
                    # Before the way back: a shard answers in order, and that takes it longest.
                    next_pull = self._dense.pull()
                self._backs.append(way.back(back.dz))
                loss, weight = loss + back.loss, weight + back.weight
        return {
            "units": float(len(batch)),
            "lr": self.settings.lr,
            "bad_lines": float(batch.bad),
            **counts_of([batch.beyond]),
            STEPS_TAKEN: float(len(edges) if block.clock < 0 else block.slot == 0),
            STEPPED: float(len(batch)),
            "loss": loss * self._loss_unit,
            "examples": weight,
        }

    def finish(self) -> None:
        self._dense.settle()
        self._settle(0)
        self._reader.close()

    def _batch_size(self, examples: int, progress: tuple[float, float]) -> int:
        """Choose the examples of a batch; with bsp a block is a part of one step, in any batches.

        How many examples the training has follows from the block's part of it, for the epochs that
        it has in any case (`epochs: auto`).
        """
        s = self.settings
        if steps_of(s).are_sums:
            return s.batch_size
        part = (progress[1] - progress[0]) * max(1.0, s.epochs / EPOCHS)
        return share_of_batch(s.batch_size, self.workers, int(examples / part) if part > 0 else 0)

    def _long_steps(self, size: int) -> int:
        """Examples at the start in which the added steps of several workers are too long."""
        return GROWTH * size if self.workers > 1 else 0

    def _edges(self, examples: int, size: int) -> list[tuple[int, int]]:
        """List the first and the last (exclusive) example of each batch of a block."""
        grow = self._long_steps(size) > 0 and not steps_of(self.settings).are_sums
        edges, first = [], 0
        while first < examples:
            now = growing(size, self._trained + first) if grow else size
            edges.append((first, min(examples, first + now)))
            first += now
        return edges

    def _out_of(self, block: Block, weights: Floats, examples: int, of_batch: slice) -> float:
        """Divisor of a batch's gradients: the weight of the step that they are a part of.

        With bsp, of all batches of all blocks of the step, which are of even length.  With sgd,
        steps of several workers from about the same weights add up to one step of `batch_size`;
        steps of other optimizers do not grow with gradients.

        Lines may be fewer than a batch, and their mean gradient is larger.  So where a model goes
        on, each of them moves it as far as in the batches that it has learnt with, or as in a batch
        of `batch_size`, if the user has made that smaller.
        """
        s, count = self.settings, of_batch.stop - of_batch.start
        if block.clock >= 0:
            parts, lines, weight = 1.0, block.slots * examples, _weight(weights, examples)
            weight, whole = weight * block.slots, s.learnt_batch
        else:
            parts = min(s.batch_size / count, self.workers) if s.method == "sgd" else 1.0
            lines, weight = count, _weight(weights[of_batch], count)
            whole = min(s.learnt_batch, s.batch_size)
        return weight * max(parts, whole / max(1, lines))

    def _step(
        self, way: Way, batch: Batch, edge: tuple[int, int], weights: Vector, out_of: float
    ) -> Stepped:
        """Push the gradients of the dense layers; returns dL/dZ for the way back."""
        examples, gradients = slice(*edge), self._dense.blank()
        loss, weight, dz = self._layers.step(
            way.wait(), weights.arrays, batch.labels[examples], batch.weights[examples],
            gradients.arrays, out_of,
        )  # fmt: skip
        self._settle(2)
        self._dense.push(gradients)
        return Stepped(loss, weight, dz)

    def _start(self, entries: BatchEntries) -> Way:
        if self._place == "servers":
            return AtServers(self, TABLE, entries)
        return AtWorker(self, TABLE, entries, self._numbers)

    def _settle(self, kept: int) -> None:
        """Wait for all ways back but the newest `kept`, which still need their arrays."""
        while len(self._backs) > kept:
            self._backs.popleft().wait()

    def _choose(self, first: Sequence[BatchEntries]) -> None:
        """Choose the place of the first layer that moves fewer bytes."""
        _, table = self._find(TABLE)
        assert self._wire_choice is not None
        product = self._wire_choice.of_product(table, self.shards)
        rows = self._wire_choice.of_pull(table)
        there = here = unique = 0
        for entries in first:
            distinct = len(self._numbers.number(entries.keys)[0])
            unique += distinct
            there += bytes_at_servers(entries, table.dim, self.shards, product)
            here += bytes_at_worker(entries, table.dim, distinct, rows)
        self._place = "servers" if there <= here else "worker"
        log.info(
            "first_layer: auto: %s, as %d batches of %s examples with %s different features would "
            "move %.1f MB with the product at the servers, %.1f MB with their rows pulled",
            self._place,
            len(first),
            f"{sum(len(one.ptr) - 1 for one in first) // len(first):,}",
            f"{unique // len(first):,}",
            there / 1e6,
            here / 1e6,
        )


def _weight(weights: Floats, examples: int) -> float:
    """Sum of the weights of examples; without `weights` each has 1."""
    return float(weights.sum(dtype=np.float64)) if len(weights) else float(examples)


def share_of_batch(batch_size: int, workers: int, examples: int) -> int:
    """Examples in a batch of one of several workers; the training has `examples` (0: not known).

    All workers' batches from one set of weights are together no larger than a whole batch, or than
    a `STEPS`-th of the training.
    """
    share = max(SHARE_MIN, batch_size // workers, examples // (STEPS * workers))
    return min(batch_size, share)


def growing(size: int, trained: int) -> int:
    """Examples in a batch of a worker that has trained on `trained` examples.

    AdaGrad's first steps are the longest.  Steps that all workers take from the same weights add
    up, so that units of the dense layers may die; in small batches the long steps are soon over.
    """
    return min(size, max(SHARE_MIN, trained // GROWTH))


def _entries(batch: Batch) -> BatchEntries:
    return BatchEntries(batch.ptr, batch.keys[batch.places], batch.values)
