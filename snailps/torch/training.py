"""PyTorch models as jobs: workers lease blocks; rows and dense parameters are on the servers.

    block -> batches -> loss -> backward -> pushes;  rows + dense + position -> one checkpoint

`Worker` calls the user's `model`, `batches` and `loss`, and owns the order of pulls and pushes
around them.  Leases, checkpoints and recovery are the same as for every `snailps.Worker`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from snailps.api import worker as api
from snailps.api.block import Block
from snailps.api.results import Results, write_tables
from snailps.api.row_updates import STEPPED_BY_SHARDS, RowUpdate
from snailps.api.tables import Table, Tensor
from snailps.api.traits import is_clocked
from snailps.config import JobSettings, setting
from snailps.dataclass import dataclass
from snailps.errors import MisuseError
from snailps.files.atomic import atomic_file
from snailps.torch.dense import DenseParameters, trained
from snailps.torch.embedding import TableModule
from snailps.torch.exchange import ready_to_push
from snailps.torch.rows import WorkerRows, bound
from snailps.torch.server_vector import Buffers, ServerVector

DENSE = "dense"
"""Name of the table of dense parameters."""
BUFFERS = "dense.buffers"
"""Name of the table of buffers, of a model that has some."""


@dataclass(frozen=True, slots=True)
class TorchSettings(JobSettings):
    """Settings of a `snailps.torch.Worker`; subclass it to add your own."""

    dense_optimizer: Literal["sgd", "momentum", "adagrad", "adam"] = setting(
        "adagrad",
        help="How servers step the dense parameters.",
        when="As in plain PyTorch; `adam` for deep dense parts.",
    )
    dense_lr: float = setting(
        0.01,
        help="Step size of the dense parameters.",
        when="It diverges, or learns slowly. Each embedding has its own.",
        low=1e-30,
        high=1e6,
    )
    dense_staleness: int = setting(
        0,
        help="Own steps of a block that a worker's dense parameters may lack; not with `bsp`.",
        when="1 spares a wait for the servers a batch; the first thousands of steps learn less.",
        low=0,
        high=1,
    )


class Worker(api.Worker):
    """A PyTorch model that a cluster trains on blocks of its input.

    Implement `model` and `loss`, and `batches` unless a block is one batch.

    Attributes
    ----------
    net : nn.Module
        The result of `model`; available from `setup` on.

    Notes
    -----
    With ``consistency: async`` or ``ssp`` each batch is a step.  With ``bsp`` a block is one of
    `micro_batches` contributions to a step: the mean gradient of its batches, computed from the
    rows and parameters at the start of the step.  The result then has the same bits with any number
    of workers and servers, and whichever of them are lost.  Persistent float32 buffers (running
    means of BatchNorm) are kept on the servers like parameters: each worker pushes its share of
    what batches add to them, with ``bsp`` the mean over the contributions of a step.

    Examples
    --------
    >>> class Clicks(snailps.torch.Worker):  # doctest: +SKIP
    ...     def model(self):
    ...         return Net(snailps.torch.EmbeddingBagCollection(16, 26, lr=0.05))
    ...
    ...     def loss(self, block):
    ...         ids, labels = parse(block.data)
    ...         return F.binary_cross_entropy_with_logits(self.net(ids), labels), len(labels)
    """

    Settings = TorchSettings
    row_updates: ClassVar[Mapping[str, RowUpdate]] = {
        **STEPPED_BY_SHARDS,
        "running means and variances": RowUpdate.SHARE,
        "counts of batches": RowUpdate.STEP,
    }

    net: nn.Module

    def model(self) -> nn.Module:
        """Make the model, with embeddings of `snailps.torch`; called once in every process.

        PyTorch's random numbers are seeded with the setting ``seed``, so that all processes make
        equal models.
        """
        raise NotImplementedError(f"{type(self).__name__} has no model()")

    def batches(self, block: Block) -> Iterable[Any]:
        """Yield the batches of a block, each an argument of `loss`; by default the block itself.

        Runs in another thread while the block before is trained: it may use `settings`, but not
        `net`.
        """
        return [block]

    def loss(self, batch: Any) -> tuple[torch.Tensor, int]:
        """Return the mean loss of a batch, a scalar tensor, and its number of examples."""
        raise NotImplementedError(f"{type(self).__name__} has no loss()")

    def ahead(self, batch: Any) -> None:
        """Prefetch the ids of the next batch, if the model wants to; does nothing by default.

        Called before `loss` of the batch before, and for the first batch of a block before its
        training.  Not called with ``bsp``, where all batches use the rows at the start of a step.
        """

    # --- what the base class asks for -------------------------------------------------------

    def tables(self) -> Sequence[Table | Tensor]:
        """Make the model; return the tables of its embeddings and dense parameters."""
        rows = self._rows = WorkerRows(self)
        with torch.random.fork_rng(devices=[]), bound(rows):
            torch.manual_seed(self.settings.seed)
            self.net = self.model()
            settings: TorchSettings = self.settings  # type: ignore[assignment]
            self._vectors: list[ServerVector] = []
            self._dense: DenseParameters | None = None
            self._buffers: Buffers | None = None
            if any(True for _ in trained(self.net)):
                self._dense = DenseParameters(
                    rows, self.net, DENSE, settings.dense_optimizer, settings.dense_lr
                )
                self._vectors.append(self._dense)
            if Buffers.has_any(self.net):
                self._buffers = Buffers(rows, self.net, BUFFERS)
                self._vectors.append(self._buffers)
        self._modules = [one for one in self.net.modules() if isinstance(one, TableModule)]
        if not self._modules and self._dense is None:
            raise MisuseError(f"{type(self).__name__}.model() has nothing to train")
        return list(rows.tables.values())

    def setup(self) -> None:
        """Set PyTorch's threads and take over the pushes; an override must call it first."""
        torch.set_num_threads(1 if is_clocked(type(self), self.settings) else self.threads)
        for module in self._modules:
            module.exchange.hold(self)

    def prepare(self, block: Block) -> Any:
        """Return the batches of a block as a list."""
        return list(self.batches(block))

    def train(self, block: Block) -> Mapping[str, float]:
        """Make a step with each batch; with ``bsp`` a contribution with all batches."""
        torch.manual_seed(block.seed & (1 << 63) - 1)
        self.net.train()
        batches: list[Any] = block.prepared
        clocked = block.clock >= 0
        share = 1.0 / (len(batches) * block.slots) if clocked and batches else 1.0
        for vector in self._vectors:
            vector.forget()  # a pull from the block before lacks steps of others
        lags = self.settings.dense_staleness and not clocked  # type: ignore[attr-defined]
        if batches:
            with self._rows.corked():
                self._ask()
                if not clocked:
                    self.ahead(batches[0])
            self._refresh()
        examples, total = 0, 0.0
        for number, batch in enumerate(batches):
            more = number + 1 < len(batches) and not clocked
            if number and not clocked:
                self._refresh()
            if more:
                with self._rows.corked():
                    if lags:
                        self._ask()  # for the next batch: this one's push is not in it
                    self.ahead(batches[number + 1])
            loss, count = self.loss(batch)
            total += float(loss.detach()) * count
            examples += count
            (loss * share if clocked else loss).backward()
            if not clocked:
                with self._rows.corked():  # the dense part first: the next batch waits for it
                    self._push_vectors(1.0 / self.workers)
                    if more and not lags:
                        self._ask()  # after the push, so that the pull includes it
                    self._push_rows()
        if clocked:
            self._push_rows()
            for module in self._modules:
                module.exchange.forget_ahead()
            slots = 1.0 / block.slots
            self._push_vectors(slots, counts=slots, carries=block.slot == 0)
        return {"units": examples, "examples": examples, "loss": total}

    def _ask(self) -> None:
        with self._rows.corked():
            for vector in self._vectors:
                vector.ask()

    def _refresh(self) -> None:
        if self._dense is not None and self._dense.take_edit() is not None:
            raise MisuseError(
                f"dense parameters of {type(self).__name__} were set outside of model(): the "
                "servers have their values, and step them"
            )
        self._ask()
        for vector in self._vectors:
            vector.refresh()

    def _push_rows(self) -> None:
        """Push the gradients of rows."""
        exchanges = [module.exchange for module in self._modules]
        ready_to_push({exchange: exchange.take_held() for exchange in exchanges})()

    def _push_vectors(self, share: float, *, counts: float = 1.0, carries: bool = True) -> None:
        """Push dense gradients, and the change of buffers: means times `share`, counts `counts`."""
        gradient = None if self._dense is None else self._dense.take_gradient()
        with self._rows.corked():
            if self._dense is not None and gradient is not None:
                self._dense.push_gradient(*gradient)
            if self._buffers is not None:
                change = self._buffers.take_change(share, counts=counts, carries=carries)
                self._buffers.push(change)

    def finish(self) -> None:
        """Wait until all pushes are acknowledged."""
        for module in self._modules:
            module.flush()

    @classmethod
    def trained(cls, results: Results) -> nn.Module:
        """Return the model with the trained dense parameters and buffers; rows stay on servers."""
        worker = cls(results.settings)
        worker.tables()
        for vector in worker._vectors:
            vector.set_from(results.pull(vector.table.name, vector.keys))
        return worker.net

    @classmethod
    def result_files(cls, settings: JobSettings) -> Sequence[str]:
        """Return ``OUTPUT.npz`` and ``OUTPUT.pt``; nothing for a class that overrides `export`."""
        own = cls.export.__func__ is not Worker.export.__func__  # type: ignore[attr-defined]
        return () if own else (f"{settings.output}.npz", f"{settings.output}.pt")

    @classmethod
    def export(cls, results: Results) -> Mapping[str, Any]:
        """Write keys and rows to ``OUTPUT.npz``, and the dense `state_dict` to ``OUTPUT.pt``."""
        output = results.settings.output
        write_tables(Path(f"{output}.npz"), results)
        net = cls.trained(results)
        with atomic_file(f"{output}.pt") as file:
            # Cloned, because parameters are views of one array, which would be saved for each.
            torch.save(
                {
                    name: value.clone() if isinstance(value, torch.Tensor) else value
                    for name, value in net.state_dict().items()
                },
                file,
            )
        return {"files": [f"{output}.npz", f"{output}.pt"]}
