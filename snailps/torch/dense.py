"""Dense parameters of a module as one vector at the servers, which step it.

    pull -> start + steps -> parameters;  gradients -> push -> optimiser at the servers
    buffers (running means) beside them: what a forward adds to them is pushed as it is

`DenseParameters` is the vector; `Synced` moves it by hooks around a script's forward and backward,
`training.Worker` around a block.  The first values are the module's own, so the servers keep what
has been added to them, which begins at zeros: no process has to be the first to push.  Must not
know embeddings.
"""

from __future__ import annotations

import os
import time
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from snailps.api.tables import Rows as RowArray
from snailps.api.tables import Table, Tensor
from snailps.errors import ConfigError, MisuseError, WaitTimeout
from snailps.local.session import Cluster
from snailps.torch.rows import Rows, current
from snailps.torch.server_vector import Buffers, ServerVector
from snailps.transport.client._client import Pending

OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam")
ATTRIBUTE = "_snailps_synced"
"""Of a module that `sync` keeps: its `Synced`."""
LIMIT_S = 60.0
"""How long a rank waits for the others."""
LOOK_FIRST_S, LOOK_S = 0.001, 0.05
"""Between two looks at the steps of the other ranks, the first ones and the later ones."""
READY = np.uint64(1 << 32)
"""Key of the row in a table of steps that says that the first values are there."""


class DenseParameters(ServerVector):
    """The parameters of a module that need gradients, as rows of one table.

    Parameters
    ----------
    rows : Rows
    module : nn.Module
        Its parameters become views of one vector; they keep their values.
    name : str
        Of the table.
    optimizer : str
        ``sgd``, ``momentum``, ``adagrad`` or ``adam``.
    lr : float
    **options
        Further ones of `snailps.Tensor`.

    Attributes
    ----------
    parameters : list of nn.Parameter
    size : int
        How many floats they are.
    """

    def __init__(
        self, rows: Rows, module: nn.Module, name: str, optimizer: str, lr: float, **options: Any
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer: expected {' or '.join(OPTIMIZERS)}, got {optimizer!r}")
        self.parameters = [one for one in module.parameters() if one.requires_grad]
        if not self.parameters:
            raise MisuseError("the module has no dense parameters that need gradients")
        for one in self.parameters:
            if one.dtype != torch.float32 or one.device.type != "cpu":
                raise MisuseError(
                    f"dense parameters: expected float32 in memory, got {one.dtype} on {one.device}"
                )
        self.size = sum(one.numel() for one in self.parameters)
        if optimizer == "adagrad":
            options.setdefault("eps", 1e-10)  # as PyTorch's
        super().__init__(rows, Tensor(name, (self.size,), access=optimizer, lr=lr, **options))
        self._values = np.zeros_like(self._pulled)
        self._make_views()
        self.start = self._values.copy()

    def _make_views(self) -> None:
        """The parameters, as parts of one array, which a pull fills at once."""
        flat, at = torch.from_numpy(self._values).view(-1), 0
        with torch.no_grad():
            for one in self.parameters:
                part = flat[at : at + one.numel()].view(one.shape)
                part.copy_(one)
                one.data = part
                at += one.numel()

    def set_from(self, steps: RowArray) -> None:
        """Sets the parameters to the first values and what has been added to them."""
        np.add(self.start, steps, out=self._values)

    def take_gradient(self) -> RowArray | None:
        """The gradients, in an array of their own, and none are left; None if there are none."""
        if all(one.grad is None for one in self.parameters):
            return None
        rows = np.zeros_like(self._values)
        flat, at = rows.reshape(-1), 0
        for one in self.parameters:
            if one.grad is not None:
                flat[at : at + one.numel()] = one.grad.detach().numpy().reshape(-1)
                one.grad = None
            at += one.numel()
        return rows

    @property
    def values(self) -> NDArray[np.float32]:
        """The parameters, float32 (size,): a view."""
        return self._values.reshape(-1)[: self.size]


def sync(
    module: nn.Module,
    name: str = "dense",
    *,
    mode: Literal["async", "ssp", "bsp"] = "async",
    optimizer: str = "adagrad",
    lr: float = 0.01,
    staleness: int = 2,
    rank: int | None = None,
    world: int | None = None,
    cluster: Cluster | None = None,
    timeout_s: float = LIMIT_S,
    **options: Any,
) -> Synced:
    """Keeps dense parameters on the servers: pulled before forward, stepped after backward.

    Parameters
    ----------
    module : nn.Module
        Its parameters that need gradients, float32; rows of embeddings are not among them.  With
        them its persistent float32 buffers, as running means and variances are, and counts of
        batches (``num_batches_tracked``).
    name : str
        Of the tables; the same in all processes that train the module together.
    mode : str
        ``async``: each process steps the parameters when it has a gradient.  ``ssp``: the same, and
        no process is more than `staleness` steps ahead of the slowest.  ``bsp``: gradients are
        averaged over all processes, and stepped once; with several processes it needs
        `torch.distributed`, initialised with gloo.
    optimizer : str
        At the servers: ``sgd``, ``momentum``, ``adagrad`` or ``adam``.
    lr : float
    staleness : int
        Of ``ssp``.
    rank, world : int, optional
        This process among those that train the module; by default RANK and WORLD_SIZE of the
        environment, as `torchrun` sets them, else 0 of 1.
    cluster : Cluster, optional
    timeout_s : float
        How long to wait for another rank, seconds.
    **options
        Further ones of `snailps.Tensor`: ``eps``, ``beta1``, ``wire`` ...

    Returns
    -------
    Synced
        `close` it when this process has no more steps, with ``ssp``.

    Raises
    ------
    MisuseError
        No dense parameters, of another type, or others than those that the servers have.
    WaitTimeout
        Rank 0 has not brought the first values in time.

    Notes
    -----
    The first values are those of rank 0, once and for all: a process that begins again goes on
    from what the servers have.
    """
    rank = int(os.environ.get("RANK", "0")) if rank is None else rank
    world = int(os.environ.get("WORLD_SIZE", "1")) if world is None else world
    if mode not in ("async", "ssp", "bsp"):
        raise ConfigError(f"mode: expected async, ssp or bsp, got {mode!r}")
    if not 0 <= rank < world:
        raise ConfigError(f"rank: expected 0 to {world - 1}, got {rank}")
    if staleness < 0:
        raise ConfigError(f"staleness: expected 0 or more steps, got {staleness}")
    if mode == "bsp" and world > 1 and not _has_group():
        raise ConfigError(
            "mode bsp of several processes averages gradients by torch.distributed: call "
            "init_process_group('gloo') first, or use DistributedDataParallel instead of sync"
        )
    rows = current(cluster)
    if rows.clocked:
        raise MisuseError("a model on workers is kept by snailps.torch.Worker: it needs no sync")
    dense = DenseParameters(rows, module, name, optimizer, lr, **options)
    buffers = Buffers(rows, module, f"{name}.buffers") if Buffers.has_any(module) else None
    ranks = Ranks(rows, name, rank, world, timeout_s)
    return Synced(module, dense, buffers, rows, mode, ranks, staleness)


class Ranks:
    """The processes that train a module together: their first values, and how far each is.

    Rows of one table: steps and whether it has ended, by rank; and behind them what says that the
    first values are there, and how many.
    """

    def __init__(self, rows: Rows, name: str, rank: int, world: int, timeout_s: float) -> None:
        self.rank, self.world, self._timeout_s = rank, world, timeout_s
        self._rows, self._table = rows, f"{name}.steps"
        rows.declare(Table(self._table, 3))
        self._others = np.arange(world, dtype=np.uint64)
        self._known = -1.0
        """Steps of the slowest other rank, when it was last looked at."""
        self.steps = int(self._read(self._others[rank : rank + 1])[0, 0])

    def _read(self, keys: NDArray[np.uint64], table: str = "", dim: int = 3) -> RowArray:
        out = np.empty((len(keys), dim), np.float32)
        return self._rows.pull_async(table or self._table, keys, out).wait()

    def _write(self, key: np.uint64, *values: float) -> None:
        row = np.array([values], np.float32)
        self._rows.push_async(self._table, np.array([key], np.uint64), row, 1.0).wait()

    def agree(self, dense: DenseParameters, *others: ServerVector) -> None:
        """Makes the first values of `dense`, and of others beside it, those of rank 0."""
        ready = np.array([READY])
        vectors = (dense, *others)
        for one in vectors:
            self._rows.declare(Table(f"{one.table.name}.first", one.table.dim))
        size = divmod(dense.size, 1 << 16)  # each exact as float32
        if self.rank == 0 and not self._read(ready)[0, 0]:
            # What a process pushed that was killed here is taken back first, exactly.
            for one in vectors:
                for change in (-self._first_of(one), one.start):
                    keys, name = one.tensor.keys(), f"{one.table.name}.first"
                    self._rows.push_async(name, keys, change, 1.0).wait()
            self._write(READY, 1.0, *size)
        self._until(
            lambda: bool(self._read(ready)[0, 0]), lambda: "rank 0 to bring the first values"
        )
        there = tuple(int(part) for part in self._read(ready)[0, 1:])
        if there != size:
            raise MisuseError(
                f"the servers have {there[0] * 65536 + there[1]:,} parameters under this name, the "
                f"module has {dense.size:,}: give sync() another name"
            )
        for one in vectors:
            one.start = self._first_of(one)

    def _first_of(self, one: ServerVector) -> RowArray:
        return self._read(one.tensor.keys(), f"{one.table.name}.first", one.table.dim)

    def wait_for_slowest(self, staleness: int) -> None:
        """Waits until no other rank is more than `staleness` steps behind this one."""
        if self.world > 1 and self._known < self.steps - staleness:
            self._until(lambda: self._slowest() >= self.steps - staleness, self._behind)

    def _slowest(self) -> float:
        rows = self._read(self._others)
        self._known = min(
            (float(row[0]) for i, row in enumerate(rows) if i != self.rank and not row[1]),
            default=float("inf"),
        )
        return self._known

    def _behind(self) -> str:
        rows = self._read(self._others)
        slow = min(
            (i for i, row in enumerate(rows) if i != self.rank and not row[1]),
            key=lambda i: rows[i, 0],
        )
        return f"rank {slow}, which has made {int(rows[slow, 0])} steps"

    def _until(self, done: Any, what: Any) -> None:
        until, pause_s = time.monotonic() + self._timeout_s, LOOK_FIRST_S
        while not done():
            if time.monotonic() > until:
                raise WaitTimeout(
                    f"rank {self.rank} has waited {self._timeout_s:g} s for {what()}: does it run?"
                )
            time.sleep(pause_s)
            pause_s = min(LOOK_S, 1.5 * pause_s)

    def step(self) -> None:
        """Counts a step of this rank."""
        self.steps += 1
        self._write(self._others[self.rank], 1.0, 0.0, 0.0)

    def end(self) -> None:
        """Says that this rank makes no more steps."""
        if not self._read(self._others[self.rank : self.rank + 1])[0, 1]:
            self._write(self._others[self.rank], 0.0, 1.0, 0.0)

    def resume(self) -> None:
        """Says that it makes steps again."""
        if self._read(self._others[self.rank : self.rank + 1])[0, 1]:
            self._write(self._others[self.rank], 0.0, -1.0, 0.0)


class Synced:
    """A module whose dense parameters are on the servers; made by `sync`.

    Attributes
    ----------
    held : bool
        Gradients stay in the parameters until `step`: set by `snailps.torch.Optimizer`.
    """

    def __init__(
        self,
        module: nn.Module,
        dense: DenseParameters,
        buffers: Buffers | None,
        rows: Rows,
        mode: str,
        ranks: Ranks,
        staleness: int,
    ) -> None:
        self.dense, self.mode, self.held = dense, mode, False
        self._rows, self._ranks, self._staleness = rows, ranks, staleness
        self._buffers = buffers
        self._vectors: list[ServerVector] = [dense] if buffers is None else [dense, buffers]
        self._pushes: list[Pending] = []
        self._queued = False
        self._fresh = True  # no gradient was pushed since the last refresh
        ranks.agree(dense, *self._vectors[1:])
        if mode == "ssp":
            ranks.resume()
        self._refresh()
        self._hooks: list[Any] = [module.register_forward_pre_hook(self._before_forward)]
        self._hooks += [
            one.register_post_accumulate_grad_hook(self._after_gradient) for one in dense.parameters
        ]
        setattr(module, ATTRIBUTE, self)
        self._module = module

    @property
    def lr(self) -> float:
        """Step size of the next pushes."""
        return self.dense.table.lr * self.dense.factor

    @lr.setter
    def lr(self, value: float) -> None:
        self.dense.factor = float(value) / self.dense.table.lr

    def _before_forward(self, module: nn.Module, arguments: Any) -> None:
        if self.mode == "bsp":  # they were set by the last step
            return
        if self.mode == "ssp" and module.training:
            self._ranks.wait_for_slowest(self._staleness)
        if not self._fresh:
            self._refresh()
        self._fresh = True

    def _refresh(self) -> None:
        with self._rows.corked():
            for one in self._vectors:
                one.ask()
        for one in self._vectors:
            one.refresh()

    def _after_gradient(self, parameter: Any) -> None:
        if not (self.held or self._queued):
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        self._queued = False
        self.step()

    def step(self) -> None:
        """Pushes the gradients of the parameters; with ``bsp`` waits for all processes."""
        gradient = self.dense.take_gradient()
        if self.mode == "bsp":
            self._step_together(gradient)
            return
        if gradient is None:
            return
        self.flush()
        with self._rows.corked():
            self._pushes.append(self.dense.push(gradient))
            if self._buffers is not None:
                self._pushes.append(self._buffers.push(self._buffers.take_change()))
            if self.mode == "async":
                for one in self._vectors:
                    one.ask()  # behind the push: it sees that
        if self.mode == "ssp":
            self.flush()
            self._ranks.step()
        self._fresh = False

    def _step_together(self, gradient: RowArray | None) -> None:
        steps = [np.zeros_like(self.dense.start) if gradient is None else gradient]
        if self._buffers is not None:
            steps.append(self._buffers.take_change())
        if self._ranks.world > 1:
            for step in steps:
                flat = torch.from_numpy(step)
                torch.distributed.all_reduce(flat)
                flat /= self._ranks.world
        if self._ranks.rank == 0:
            pushes = [one.push(step) for one, step in zip(self._vectors, steps, strict=True)]
            for push in pushes:
                push.wait()
            self._refresh()
        if self._ranks.world > 1:
            torch.distributed.broadcast(torch.from_numpy(self.dense._values), src=0)
            if self._buffers is not None:
                torch.distributed.broadcast(torch.from_numpy(self._buffers.values), src=0)
                self._buffers.write()

    def pull(self) -> None:
        """Sets parameters and buffers to what the servers have now: before an evaluation, say."""
        self.flush()
        for one in self._vectors:
            one.forget()
        self._refresh()

    def flush(self) -> None:
        """Waits until what was pushed is acknowledged."""
        while self._pushes:
            self._pushes.pop(0).wait()

    def close(self) -> None:
        """Ends: parameters stay, hooks are gone, other ranks do not wait for this one."""
        if not self._hooks:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        delattr(self._module, ATTRIBUTE)
        self.pull()
        if self.mode == "ssp":
            self._ranks.end()


def _has_group() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
