"""Dense parameters of a module as one vector on the servers, which step it.

    pull -> start + steps -> parameters;  gradients -> push -> optimizer at the servers
    buffers (running means) beside them: each process pushes its share of what a forward adds

`DenseParameters` is the vector.  `Synced` moves it by hooks around a script's forward and backward,
`training.Worker` around a block.  The servers store only what has been added to the first values,
which are the module's own; sums begin at zero, so no process has to push first.  Must not know
embeddings.
"""

from __future__ import annotations

import functools
import gc
import operator
import os
import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from snailps.api.tables import Rows, Table, Tensor
from snailps.errors import ConfigError, MisuseError, NotFinite, WaitTimeout
from snailps.local.session import Cluster
from snailps.torch.backward import BackwardPass, tensors_in, this_pass
from snailps.torch.exchange import check_finite, checked_lr
from snailps.torch.rows import RowClient, current
from snailps.torch.server_vector import Buffers, ServerVector
from snailps.transport._awake import awake_s
from snailps.transport.client._client import Pending

OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam")
DEFAULT_NAME = "dense"
ATTRIBUTE = "_snailps_synced"
"""Attribute of a module under `sync`: its `Synced`."""
LIMIT_S = 60.0
"""Default limit in seconds for which a rank waits for the others."""
LOOK_FIRST_S, LOOK_S = 0.001, 0.05
"""First and longest pause between two looks at the steps of the other ranks."""
READY, SHAPES, EDITS = (np.uint64((1 << 32) + i) for i in range(3))
"""Keys of rows in the table of steps: whether the first values are there, and how many; their
shapes; a number that changes whenever a script sets them."""
BASE = 1 << 20
"""A count of steps is two digits to this base, because float32 is exact only up to 2^24."""
WIDTHS = tuple(1 << power for power in range(4, 10))
"""Allowed widths of a row of parameters."""
ROW_COST = 8
"""Cost of sending a row besides its floats, in floats."""


class DenseParameters(ServerVector):
    """The parameters of a module that need gradients, as rows of one table.

    Parameters
    ----------
    rows : RowClient
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

    Notes
    -----
    Each parameter has rows of its own, so that a step leaves those without a gradient alone.
    """

    def __init__(
        self,
        rows: RowClient,
        module: nn.Module,
        name: str,
        optimizer: str,
        lr: float,
        **options: Any,
    ) -> None:
        if optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer: expected {' or '.join(OPTIMIZERS)}, got {optimizer!r}")
        refuse_sparse(module)
        self._places = list(trained(module))
        self.parameters = [owner._parameters[key] for owner, key in self._places]
        if not self.parameters:
            raise MisuseError("the module has no dense parameters that need gradients")
        for parameter in self.parameters:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise MisuseError(
                    f"dense parameters: expected float32 in memory, got {parameter.dtype} on "
                    f"{parameter.device}"
                )
        sizes = [parameter.numel() for parameter in self.parameters]
        self.size = sum(sizes)
        if optimizer == "adagrad":
            options.setdefault("eps", 1e-10)  # as PyTorch's
        dim = row_width(sizes)
        self._starts = np.cumsum([0, *(-(-size // dim) for size in sizes)])
        table = Tensor(name, (dim,), access=optimizer, lr=lr, **options).table()
        super().__init__(rows, table, np.arange(self._starts[-1], dtype=np.uint64))
        self.values = np.zeros_like(self._pulled)
        self._views = [self._part(self.values, i) for i in range(len(sizes))]
        for i in range(len(sizes)):
            self._adopt(i)
        self.start = self.values.copy()
        self._set = self.values.copy()

    def _part(self, rows: Rows, i: int) -> torch.Tensor:
        """Return the part of `rows` that belongs to parameter i, in its shape."""
        parameter, flat = self.parameters[i], torch.from_numpy(rows).view(-1)
        offset = int(self._starts[i]) * self.table.dim
        return flat[offset : offset + parameter.numel()].view(parameter.shape)

    def _adopt(self, i: int) -> None:
        """Move a parameter's value into `values` and make it a view, so that one pull sets all."""
        parameter, view = self.parameters[i], self._views[i]
        view.copy_(parameter.detach())
        parameter.data = view

    def set_from(self, steps: Rows) -> None:
        """Set the parameters to the first values plus `steps`, the sums on the servers."""
        np.add(self.start, steps, out=self.values)
        self.settle()

    def settle(self) -> None:
        """Remember the values as set here: any later change is an edit by the script."""
        np.copyto(self._set, self.values)

    def take_edit(self) -> Rows | None:
        """Take what others have set in parameters since `settle`, as a difference; None if nothing.

        Raises
        ------
        MisuseError
            A parameter has another shape, or another one is in its place.
        """
        for i, (owner, key) in enumerate(self._places):
            parameter, view = self.parameters[i], self._views[i]
            current = owner._parameters.get(key, parameter)
            if current is not parameter or parameter.shape != view.shape:
                raise MisuseError(
                    f"the parameter {key!r} of {type(owner).__name__} was replaced: its values are "
                    "at the servers. Set its values in place, or close() and sync() again"
                )
            if parameter.data_ptr() != view.data_ptr():  # the script set `parameter.data`
                self._adopt(i)
        if np.array_equal(self.values.view(np.uint32), self._set.view(np.uint32)):
            return None
        edit = self.values - self._set
        self.settle()
        return edit

    def take_gradient(self) -> tuple[Rows, NDArray[np.bool_]] | None:
        """Remove the gradients from the parameters; return them, and which rows have one."""
        rows: Rows | None = None
        for i, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                if rows is None:
                    rows, present = np.zeros_like(self.values), np.zeros(len(self.keys), np.bool_)
                if parameter.grad.layout is not torch.strided:
                    raise MisuseError(f"dense parameters: {_SPARSE}")
                self._part(rows, i).copy_(parameter.grad.detach())
                present[self._starts[i] : self._starts[i + 1]] = True
                parameter.grad = None
        return None if rows is None else (rows, present)

    def push_gradient(self, rows: Rows, present: NDArray[np.bool_]) -> Pending:
        """Start a push of the rows that have a gradient; others must not be stepped."""
        return self.push(rows) if present.all() else self.push(rows[present], self.keys[present])


_SPARSE = (
    "expected dense gradients, got sparse ones, as of sparse=True, which sync() cannot keep: rows "
    "of which a batch has some are for snailps.torch.Embedding; or use sparse=False, or "
    "requires_grad_(False) and an optimizer of your own"
)


def refuse_sparse(module: nn.Module) -> None:
    """Raise MisuseError for embeddings of PyTorch whose gradients will be sparse."""
    for name, part in module.named_modules():
        is_table = isinstance(part, nn.Embedding | nn.EmbeddingBag)
        if is_table and part.sparse and part.weight.requires_grad:
            raise MisuseError(f"{name or 'the module'}, {type(part).__name__}: {_SPARSE}")


def trained(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield modules and names of the parameters that have values and need gradients, each once."""
    seen: set[int] = set()
    for owner in module.modules():
        for key, parameter in owner._parameters.items():
            if parameter is None or not (parameter.requires_grad and parameter.numel()):
                continue
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield owner, key


def row_width(sizes: Sequence[int]) -> int:
    """Choose the width of rows for which parameters of these sizes take the fewest bytes to send.

    A parameter begins with a row of its own, so wide rows waste floats and narrow ones headers.
    """
    return min(WIDTHS, key=lambda dim: sum(-(-size // dim) for size in sizes) * (dim + ROW_COST))


def shape_code(module: nn.Module) -> int:
    """Hash the shapes of the parameters to 32 bits."""
    shapes = [tuple(owner._parameters[key].shape) for owner, key in trained(module)]
    return zlib.crc32(repr(shapes).encode())


def sync(
    module: nn.Module,
    name: str = DEFAULT_NAME,
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
    """Keep a module's dense parameters on the servers: pull before forward, step after backward.

    Parameters
    ----------
    module : nn.Module
        Kept are its float32 parameters that need gradients (not the rows of embeddings), its
        persistent float32 buffers such as running means, and counts of batches
        (``num_batches_tracked``).
    name : str
        Name of the tables; the same in all processes that train the module together.
    mode : {"async", "ssp", "bsp"}
        "async": each process steps the parameters when it has a gradient.  "ssp": the same, but no
        process is more than `staleness` steps ahead of the slowest.  "bsp": gradients are averaged
        over all processes and stepped once; several processes need `torch.distributed`, initialised
        with gloo.
    optimizer : {"sgd", "momentum", "adagrad", "adam"}
        How the servers step the parameters.
    lr : float
        Step size.
    staleness : int
        With "ssp": how many steps a process may be ahead, at least 0.
    rank, world : int, optional
        Number of this process, and of all processes that train the module; by default RANK and
        WORLD_SIZE of the environment, which `torchrun` sets, else 0 of 1.
    cluster : Cluster, optional
        As in `Embedding`.
    timeout_s : float
        Longest wait for another rank, in seconds; then the call that waits (`sync`, or with "ssp"
        a forward or step) raises WaitTimeout.
    **options
        Other options of `snailps.Tensor`: ``eps``, ``beta1``, ``wire``, ...

    Returns
    -------
    Synced
        With "ssp", call its `close` when this process makes no more steps: the others would wait
        for it.

    Raises
    ------
    ConfigError
        An argument is out of range, or "bsp" lacks a process group.
    MisuseError
        The module has no dense parameters, parameters of another type or device, or others than the
        servers have under this name.
    WaitTimeout
        Rank 0 did not bring the first values in time.

    Notes
    -----
    The first values are rank 0's.  They are set once: a process that starts again continues from
    the values on the servers.

    Examples
    --------
    >>> synced = snailps.torch.sync(model, lr=0.05)  # doctest: +SKIP
    >>> model(x).sum().backward()  # pulled before, pushed after  # doctest: +SKIP
    >>> synced.close()  # doctest: +SKIP
    """
    if not isinstance(module, nn.Module):
        raise MisuseError(f"module: expected a module of PyTorch, got {type(module).__name__}")
    rank = _whole("rank", rank, "RANK", 0)
    world = _whole("world", world, "WORLD_SIZE", 1)
    if mode not in ("async", "ssp", "bsp"):
        raise ConfigError(f"mode: expected async, ssp or bsp, got {mode!r}")
    if not 0 <= rank < world:
        raise ConfigError(f"rank: expected 0 to {world - 1}, got {rank}")
    if type(staleness) is not int or staleness < 0:
        raise ConfigError(f"staleness: expected 0 or more steps, got {staleness!r}")
    if not timeout_s > 0:
        raise ConfigError(f"timeout_s: expected more than 0 seconds, got {timeout_s!r}")
    refuse_kept(module)
    if mode == "bsp" and world > 1 and not _has_group():
        raise ConfigError(
            "mode bsp of several processes averages gradients by torch.distributed: call "
            "init_process_group('gloo') first, or use DistributedDataParallel instead of sync"
        )
    rows = current(cluster)
    if rows.clocked:
        raise MisuseError("a model on workers is kept by snailps.torch.Worker: it needs no sync")
    ranks = Ranks(rows, name, rank, world, timeout_s)
    ranks.check_shapes(module)
    dense = DenseParameters(rows, module, name, optimizer, lr, **options)
    buffers = Buffers(rows, module, f"{name}.buffers") if Buffers.has_any(module) else None
    return Synced(module, dense, buffers, rows, mode, ranks, staleness)


def _whole(what: str, given: int | None, variable: str, default: int) -> int:
    """Return an argument, or the number in a variable of the environment that torchrun sets."""
    value: Any = (os.environ.get(variable) or default) if given is None else given
    try:
        return int(value) if given is None else operator.index(value)
    except (TypeError, ValueError):
        source = f"{what}, from {variable} of the environment" if given is None else what
        raise ConfigError(f"{source}: expected a whole number, got {value!r}") from None


def refuse_kept(module: nn.Module) -> None:
    """Raise MisuseError if `sync` keeps a parameter of the module already."""
    for owner, key in trained(module):
        if (synced := _keepers.get(id(owner._parameters[key]))) is not None:
            raise MisuseError(
                f"sync() keeps the parameter {key!r} of {type(owner).__name__} already, under the "
                f"name {synced.dense.table.name!r}: two would step it. close() that one first"
            )


class Ranks:
    """The processes that train a module together: their first values, and the steps of each.

    A table has one row per rank: low digit of its steps, whether it has ended, high digit.  Each
    rank writes only its own row.  The rows READY, SHAPES and EDITS describe the first values.
    """

    def __init__(self, rows: RowClient, name: str, rank: int, world: int, timeout_s: float) -> None:
        self.rank, self.world, self._timeout_s = rank, world, timeout_s
        self._rows, self._table = rows, f"{name}.steps"
        rows.declare(Table(self._table, 3))
        self._others = np.arange(world, dtype=np.uint64)
        self._known = -1.0
        """Steps of the slowest other rank at the last look; it only grows."""
        row = self._read(self._others[rank : rank + 1])[0].tolist()
        self._digits = int(row[2]), int(row[0])
        self.steps = steps_in(row)
        self._edits = 0.0
        self._edits_asked: Pending | None = None

    def _read(self, keys: NDArray[np.uint64], table: str = "", dim: int = 3) -> Rows:
        out = np.empty((len(keys), dim), np.float32)
        return self._rows.pull_async(table or self._table, keys, out).wait()

    def _write(self, key: np.uint64, *values: float) -> None:
        row = np.array([values], np.float32)
        self._rows.push_async(self._table, np.array([key], np.uint64), row, 1.0).wait()

    def agree(self, dense: DenseParameters, *others: ServerVector) -> None:
        """Set the first values of the vectors to rank 0's, which it pushes unless they are there.

        READY is written last: a rank that sees it finds all first values.
        """
        ready = np.array([READY])
        vectors = (dense, *others)
        for vector in vectors:
            self._rows.declare(Table(f"{vector.table.name}.first", vector.table.dim))
        if self.rank == 0 and not self._read(ready)[0, 0]:
            # An earlier rank 0 may have been killed here: what it pushed is subtracted first.  As
            # x - x is exactly 0, the sum is exactly the new first value.
            for vector in vectors:
                for change in (-self._first_of(vector), vector.start):
                    name = f"{vector.table.name}.first"
                    self._rows.push_async(name, vector.keys, change, 1.0).wait()
            shapes = np.array([self._shapes, self._ready], np.float32)
            shapes[0] -= self._read(np.array([SHAPES]))[0]
            for key, row in zip((SHAPES, READY), shapes, strict=True):
                self._write(key, *row.tolist())
        self._until(
            lambda: bool(self._read(ready)[0, 0]), lambda: "rank 0 to bring the first values"
        )
        self._check()
        self._edits = float(self._read(np.array([EDITS]))[0, 0])
        for vector in vectors:
            vector.start = self._first_of(vector)

    def check_shapes(self, module: nn.Module) -> None:
        """Raise MisuseError if the servers already have parameters of other shapes or number."""
        # Parts of 16 bits: each exact as float32.
        size = sum(owner._parameters[key].numel() for owner, key in trained(module))
        self._ready = (1.0, *map(float, divmod(size, 1 << 16)))
        self._shapes = (0.0, *map(float, divmod(shape_code(module), 1 << 16)))
        if self._read(np.array([READY]))[0, 0]:
            self._check()

    def _check(self) -> None:
        shapes, there = (tuple(row) for row in self._read(np.array([SHAPES, READY])).tolist())
        if there != self._ready:
            stored, here = (int(row[1]) * 65536 + int(row[2]) for row in (there, self._ready))
            raise MisuseError(
                f"the servers have {stored:,} parameters under this name, the "
                f"module has {here:,}: give sync() another name"
            )
        if shapes != self._shapes:
            raise MisuseError(
                "the servers have parameters of other shapes under this name: give sync() another"
            )

    def _first_of(self, vector: ServerVector) -> Rows:
        return self._read(vector.keys, f"{vector.table.name}.first", vector.table.dim)

    def edit(self, dense: DenseParameters, change: Rows) -> None:
        """Add a change to the first values, and tell all ranks by EDITS that they have changed."""
        self._rows.push_async(f"{dense.table.name}.first", dense.keys, change, 1.0).wait()
        edits = float(self._read(np.array([EDITS]))[0, 0])
        self._write(EDITS, 1.0 if edits < BASE else -edits, 0.0, 0.0)
        self.forget()  # an answer under way would lack this edit

    def ask(self) -> None:
        """Start to ask whether first values have changed."""
        if self._edits_asked is None:
            out = np.empty((1, 3), np.float32)
            keys = np.array([EDITS])
            self._edits_asked = self._rows.pull_async(self._table, keys, out)

    def refresh(self, dense: DenseParameters) -> None:
        """Read the first values again, if they have changed."""
        self.ask()
        asked, self._edits_asked = self._edits_asked, None
        assert asked is not None
        edits = float(asked.wait()[0, 0])
        if edits != self._edits:
            self._edits, dense.start = edits, self._first_of(dense)

    def forget(self) -> None:
        """Abandon a question that is under way."""
        if self._edits_asked is not None:
            self._edits_asked.abandon()
            self._edits_asked = None

    def wait_for_slowest(self, staleness: int) -> None:
        """Wait until every other rank that has not ended is at most `staleness` steps behind.

        After `timeout_s` it raises WaitTimeout, with the number of the slowest rank.
        """
        if self.world > 1 and self._known < self.steps - staleness:
            self._until(lambda: self.slowest() >= self.steps - staleness, self.text_of_slowest)

    def slowest(self) -> float:
        rows = self._read(self._others)
        self._known = min(
            (
                float(steps_in(row.tolist()))
                for i, row in enumerate(rows)
                if i != self.rank and not row[1]
            ),
            default=float("inf"),
        )
        return self._known

    def text_of_slowest(self) -> str:
        rows = self._read(self._others)
        slow = min(
            (i for i, row in enumerate(rows) if i != self.rank and not row[1]),
            key=lambda i: steps_in(rows[i].tolist()),
        )
        return f"rank {slow}, which has made {steps_in(rows[slow].tolist())} steps"

    def _until(self, done: Any, what: Any) -> None:
        until, pause_s = awake_s() + self._timeout_s, LOOK_FIRST_S
        while not done():
            if awake_s() > until:
                raise WaitTimeout(
                    f"rank {self.rank} has waited {self._timeout_s:g} s for {what()}: does it run?"
                )
            time.sleep(pause_s)
            pause_s = min(LOOK_S, 1.5 * pause_s)

    def step(self) -> None:
        """Count a step of this rank."""
        self.steps += 1
        (high, low), self._digits = self._digits, divmod(self.steps, BASE)
        self._write(self._others[self.rank], self._digits[1] - low, 0.0, self._digits[0] - high)

    def end(self) -> None:
        """Mark this rank as ended, so that others no longer wait for it."""
        if not self._read(self._others[self.rank : self.rank + 1])[0, 1]:
            self._write(self._others[self.rank], 0.0, 1.0, 0.0)

    def resume(self) -> None:
        """Mark this rank as making steps again."""
        if self._read(self._others[self.rank : self.rank + 1])[0, 1]:
            self._write(self._others[self.rank], 0.0, -1.0, 0.0)


def steps_in(row: Sequence[float]) -> int:
    """Decode the number of steps in the row of a rank."""
    return int(row[0]) + BASE * int(row[2])


class _Hook:
    """A hook that calls a method weakly; in a copy or a pickle of its module it does nothing."""

    def __init__(self, method: Callable[..., object] | None = None) -> None:
        self._method = None if method is None else weakref.WeakMethod(method)

    def __reduce__(self) -> Any:
        return _Hook, ()

    def __call__(self, *arguments: Any) -> None:
        method = None if self._method is None else self._method()
        if method is not None:
            method(*arguments)


class Synced:
    """A module whose dense parameters are on the servers; `sync` makes one.

    Attributes
    ----------
    held : bool
        Whether gradients wait in the parameters for `snailps.torch.Optimizer`; else each backward
        pass pushes them at its end.
    lr : float
        Step size of the next pushes; may be set at any time.
    """

    _holder: weakref.ref[object]

    def __init__(
        self,
        module: nn.Module,
        dense: DenseParameters,
        buffers: Buffers | None,
        rows: RowClient,
        mode: str,
        ranks: Ranks,
        staleness: int,
    ) -> None:
        self.dense, self.mode, self.held = dense, mode, False
        self._rows, self._ranks, self._staleness = rows, ranks, staleness
        self._buffers = buffers
        self._vectors: list[ServerVector] = [dense] if buffers is None else [dense, buffers]
        self._pushes: list[Pending] = []
        self._pass: weakref.ref[BackwardPass] | None = None
        """The backward pass at whose end gradients are pushed."""
        self._fresh = True  # no gradient was pushed since the last refresh
        self._seen = False  # the module itself was called since the last step
        self._loads = False  # `load_state_dict` was called since the last refresh
        self._warned = False
        self._shares = mode != "bsp" and ranks.world > 1
        self._share = 1.0 / ranks.world  # this process's share of a change of buffers
        ranks.agree(dense, *self._vectors[1:])
        if mode == "ssp":
            ranks.resume()
        self._refresh()
        join = _Hook(self._join_pass)
        self._hooks: list[Any] = [
            module.register_forward_pre_hook(_Hook(self._before_forward)),
            module.register_forward_hook(_Hook(self._after_forward)),
            *(parameter.register_hook(join) for parameter in dense.parameters),
            *(
                part._register_load_state_dict_pre_hook(_Hook(self._before_load))
                for part in module.modules()
            ),
        ]
        setattr(module, ATTRIBUTE, self)
        self._module = weakref.ref(module)
        _keepers.update((id(parameter), self) for parameter in dense.parameters)
        self._say_if_shared()

    def _say_if_shared(self) -> None:
        """Warn if two modules of this process, two towers say, share parameters by default."""
        if self.dense.table.name != DEFAULT_NAME:
            return
        if any(map(self._is_namesake, _keepers.values())):
            gc.collect()  # a module that a notebook has made again may be garbage in a cycle
        if any(map(self._is_namesake, _keepers.values())):
            warnings.warn(
                "sync() keeps another module of this process under the default name "
                f"{DEFAULT_NAME!r}: both have the same parameters at the servers, and each steps "
                "them. Give each a name of its own, sync(module, 'name'), or close() the other",
                stacklevel=4,
            )

    def _is_namesake(self, other: Synced) -> bool:
        """Whether another one takes itself for the same process of the same module."""
        mine, its = ((it._rows, it.dense.table.name, it._ranks.rank) for it in (self, other))
        return other is not self and mine == its

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy of the module is not kept by the servers

    def hold(self, holder: object) -> None:
        """Let gradients stay in the parameters until `holder` calls `step`."""
        self.held, self._holder = True, weakref.ref(holder)

    @property
    def lr(self) -> float:
        """Step size of the next pushes."""
        return self.dense.table.lr * self.dense.factor

    @lr.setter
    def lr(self, value: float) -> None:
        self.dense.factor = checked_lr(value) / self.dense.table.lr

    # --- hooks ------------------------------------------------------------------------------

    def _before_forward(self, module: nn.Module, arguments: Any) -> None:
        if torch.is_grad_enabled():
            self._seen = True
        self._drop_failed()
        if self.mode == "bsp":  # the last step has set the parameters
            return
        if self.mode == "ssp" and module.training:
            self._ranks.wait_for_slowest(self._staleness)
        if self._shares and not self._loads:
            self._keep_buffers()
        self._make_fresh()

    def _after_forward(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if self._buffers is not None and self._shares:
            self._buffers.note_forward()
        # Join the outer pass by its output.  Else the first gradient might come from an inner pass
        # (of a checkpointed part, say), and all would be pushed at the end of that pass, too early.
        for tensor in tensors_in(output):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(_Hook(self._join_pass))

    def _join_pass(self, gradient: Any) -> None:
        if self.held:
            if self._holder() is None:
                raise MisuseError(
                    "the dense parameters wait for a snailps.torch.Optimizer that is gone, so "
                    "nothing steps them: keep it, or make another one of the model"
                )
            return
        self._drop_failed()
        if self._pass is None:
            joined = this_pass()
            joined.refuse_scaled()
            joined.gathered(_ready_all)[self] = True
            self._pass = weakref.ref(joined)

    def _drop_failed(self) -> None:
        """Drop the gradients that a failed backward pass has left in the parameters."""
        if self._pass is not None and self._pass() is None:
            self._pass = None
            for parameter in self.dense.parameters:
                parameter.grad = None

    def _before_load(self, *arguments: Any) -> None:
        if not self._loads:  # `load_state_dict` calls the hook of every part of the module
            self.pull()
            self._loads = True

    # --- values -----------------------------------------------------------------------------

    def _make_fresh(self) -> None:
        if self._loads or not self._fresh:
            self._keep_edit()
            self._keep_buffers()
            self._refresh()

    def _ask(self) -> None:
        with self._rows.corked():
            self._ranks.ask()
            for vector in self._vectors:
                vector.ask()

    def _refresh(self) -> None:
        self._ask()
        self._ranks.refresh(self.dense)
        for vector in self._vectors:
            vector.refresh()
        self._fresh = True

    def _keep_edit(self) -> None:
        """Push the changes that the script has made to parameters, if this is rank 0."""
        change = self.dense.take_edit()
        if change is not None and self._ranks.rank == 0:
            self._ranks.edit(self.dense, change)
        elif change is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"rank {self._ranks.rank} has set parameters that sync() keeps: only what rank 0 "
                "sets is kept",
                stacklevel=2,
            )

    def _keep_buffers(self) -> None:
        """Push the changes that the script has made to buffers, if this is rank 0."""
        self._loads = False
        if self._buffers is None:
            return
        edit = self._buffers.take_edit()
        if self._ranks.rank == 0 and edit.any():
            self._push_buffers(edit)
            self._buffers.forget()  # a pull under way lacks this edit

    def _push_buffers(self, change: Rows) -> None:
        assert self._buffers is not None
        self._check(change)
        self._pushes.append(self._buffers.push(change))

    def _check(self, change: Rows | None, gradient: Rows | None = None) -> None:
        """Raise NotFinite for NaN and infinite values; first reset all to the servers' values."""
        try:
            for vector, values in ((self.dense, gradient), (self._buffers, change)):
                if vector is not None and values is not None:
                    check_finite(vector.table, vector.keys, values)
        except NotFinite:
            self._refresh()
            raise

    # --- steps ------------------------------------------------------------------------------

    def ready_to_step(self) -> Callable[[], object]:
        """Take the gradients of the parameters, check them, and return what pushes them.

        With "bsp" all processes must call it together, and it makes the step, because they have to
        agree on what is checked.
        """
        self._pass = None
        gradient = self.dense.take_gradient()
        if self.mode == "bsp":
            self._step_together(gradient)
            return _nothing
        if gradient is None:
            return _nothing
        self._fresh = False  # also if this step fails below
        self.flush()
        change = None if self._buffers is None else self._buffers.take_change(self._share)
        self._check(change, gradient[0])
        return functools.partial(self._step, gradient, change)

    def _step(self, gradient: tuple[Rows, NDArray[np.bool_]], change: Rows | None) -> None:
        with self._rows.corked():
            self._pushes.append(self.dense.push_gradient(*gradient))
            if self._buffers is not None and change is not None:
                self._pushes.append(self._buffers.push(change))
            if self.mode == "async":
                self._ask()  # after the push, on the same connection, so the pull sees the push
        if self.mode == "ssp":
            self.flush()
            self._ranks.step()
        seen, self._seen = self._seen, False
        if not seen:  # only parts of the module are called: no hook announces the next forward
            if self.mode == "ssp":
                self._ranks.wait_for_slowest(self._staleness)
            self._make_fresh()

    def _step_together(self, gradient: tuple[Rows, NDArray[np.bool_]] | None) -> None:
        self._keep_edit()
        self._loads = False
        if gradient is None:
            gradient = np.zeros_like(self.dense.start), np.zeros(len(self.dense.keys), np.bool_)
        rows, present = gradient
        change = None if self._buffers is None else self._buffers.take_change()
        if self._ranks.world > 1:
            for step in (rows,) if change is None else (rows, change):
                flat = torch.from_numpy(step)
                torch.distributed.all_reduce(flat)
                flat /= self._ranks.world
            flags = torch.from_numpy(present.view(np.uint8))
            torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX)
        # All ranks have the same sums now, so either all raise here or none: else the others would
        # wait in `broadcast`.
        self._check(change, rows)
        if self._ranks.rank == 0:
            pushes = [self.dense.push_gradient(rows, present)] if present.any() else []
            if self._buffers is not None and change is not None:
                pushes.append(self._buffers.push(change))
            for push in pushes:
                push.wait()
            self._refresh()
        if self._ranks.world > 1:
            torch.distributed.broadcast(torch.from_numpy(self.dense.values), src=0)
            self.dense.settle()
            if self._buffers is not None:
                torch.distributed.broadcast(torch.from_numpy(self._buffers.values), src=0)
                self._buffers.write()

    def pull(self) -> None:
        """Set parameters and buffers to the values on the servers, for instance to evaluate.

        Values that the script has set since the last pull are pushed first.
        """
        self._keep_edit()
        self._keep_buffers()
        if self._buffers is not None and self._shares:
            change = self._buffers.take_change(self._share)
            if change.any():  # there were forwards without a step
                self._push_buffers(change)
        self.flush()
        self._ranks.forget()
        for vector in self._vectors:
            vector.forget()
        self._refresh()

    def flush(self) -> None:
        """Wait until all pushes are acknowledged."""
        while self._pushes:
            self._pushes.pop(0).wait()

    def close(self) -> None:
        """Remove the hooks; parameters keep their values, and other ranks no longer wait."""
        if not self._hooks:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for parameter in self.dense.parameters:
            _keepers.pop(id(parameter), None)
        module = self._module()
        if module is not None:
            delattr(module, ATTRIBUTE)
        self.pull()
        if self.mode == "ssp":
            self._ranks.end()


_keepers: weakref.WeakValueDictionary[int, Synced] = weakref.WeakValueDictionary()
"""By `id` of a parameter what keeps it, which refers to the parameter."""


def _refuse(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Raise MisuseError if an optimizer of PyTorch would step gradients that wait for ours."""
    for group in optimizer.param_groups if not hasattr(optimizer, "steps_rows") else ():
        for parameter in group["params"]:
            synced = _keepers.get(id(parameter))
            if synced is not None and synced.held and parameter.grad is not None:
                raise MisuseError(
                    f"torch's {type(optimizer).__name__} and snailps.torch.Optimizer would both "
                    f"step the parameters that sync() keeps as {synced.dense.table.name!r}: give "
                    "it the others alone"
                )


register_optimizer_step_pre_hook(_refuse)


def _ready_all(synced: dict[Synced, bool]) -> Callable[[], object]:
    actions = [module.ready_to_step() for module in synced]
    return lambda: [act() for act in actions]


def _nothing() -> None:
    """What is left to do after a step without gradients."""


def _has_group() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
