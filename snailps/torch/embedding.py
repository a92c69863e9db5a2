"""Embeddings whose rows are on the servers, with PyTorch's calling conventions.

    ids -> Exchange -> rows -> gather or bags -> tensor;  .backward() -> dL/d(rows) -> Exchange

Owns the modules and their part in autograd.  Rows are not parameters, because a table may have more
of them than fit in memory: `parameters()` and `state_dict()` of a model do not contain them.  Must
not know which rows are pulled when (`exchange`), or from where (`rows`).
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from snailps.api.tables import Keys, Table
from snailps.errors import ConfigError, MisuseError, near_name
from snailps.local.session import Cluster
from snailps.serving.reader import TableReader
from snailps.serving.row_reader import RowReader
from snailps.serving.saved_tables import SavedTables, open_checkpoint
from snailps.torch import row_state
from snailps.torch._bags import add_to_rows
from snailps.torch.backward import enclosing, outermost
from snailps.torch.exchange import Exchange, Lookup, checked_lr, corked, ready_to_push
from snailps.torch.parameter import RowsParameter
from snailps.torch.rows import current
from snailps.torch.serving import ServedRows

Bags: TypeAlias = "Tensor | tuple[Tensor, Tensor]"
"""Ids (bags, ids per bag), or ids (n,) and the offset of each bag."""
M = TypeVar("M", bound="TableModule")
C = TypeVar("C", bound=Callable[..., Any])
MODES = ("sum", "mean", "max")
NOT_EXPORTED = (
    "a module of snailps.torch cannot be traced, scripted or exported: its rows are at the "
    "servers, and those of the example would become constants. Export the part that takes "
    "embeddings, and look these up by snailps.torch.Embedding.from_checkpoint or snailps.reader, "
    "or from the file that cluster.export writes"
)
STEPS = "snailps_steps"
"""Key in the metadata of a `state_dict`: number of the exchange, its steps so far, and the numbers
of its trained tables."""
TABLES = "snailps_tables"
"""Key in the metadata of a `state_dict`: `row_state.described` of the module's tables."""
ADAGRAD_EPS = 1e-10
"""PyTorch's epsilon.  `snailps.Table` has 1e-8, which differs visibly if a row's first gradient is
tiny."""
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl")
OPTIONS = {field.name for field in dataclasses.fields(Table) if field.init} - {
    "name", "dim", "access", "lr", "init", "scale", "seed",
}  # fmt: skip
"""Further options of a table."""

_NOT_COUNTED = (
    "rows are made by their first gradient, of any 64-bit id, and not counted: leave it out"
)
_AT_SERVERS = (
    "rows are at the servers, and no tensor here has them all: module(ids) reads some, "
    "cluster.export(...) writes all to a file"
)
_NOT_NORMALISED = "rows are not renormalised when they are looked up: leave it out"
LACKING = {
    "num_embeddings": _NOT_COUNTED,
    "weight": _AT_SERVERS,
    "_weight": _AT_SERVERS,
    "from_pretrained": _AT_SERVERS,
    "sparse": "gradients are always of the rows of a batch alone: leave it out",
    "max_norm": _NOT_NORMALISED,
    "norm_type": _NOT_NORMALISED,
    "scale_grad_by_freq": "gradients are not divided by how often an id comes: leave it out",
    "dtype": "rows are float32 at the servers; module.to(dtype) gives outputs another type",
    "device": "rows come to the CPU; module(ids).to(device) goes on elsewhere",
}
"""Arguments and attributes that modules of PyTorch have and these lack, and what to do instead."""


def _left_alone(forward: C) -> C:
    """Make `torch.compile` leave a method out, and a strict `torch.export` say why it fails."""
    # The effect of torch.compiler.disable, whose import takes seconds.
    forward._torchdynamo_disable = True  # type: ignore[attr-defined]
    forward._torchdynamo_disable_msg = NOT_EXPORTED  # type: ignore[attr-defined]
    return forward


class TableModule(nn.Module):
    """Base of the modules: their tables, their traffic, their step size.

    `rows` is a parameter without values; its `requires_grad` decides whether the servers' rows
    train.
    """

    rows: RowsParameter
    _is_copy = False
    _dtype = torch.float32

    def __init__(
        self,
        kind: str,
        dim: int,
        names: Sequence[str | None],
        padding: Sequence[int | None],
        *,
        cluster: Cluster | None,
        optimizer: str,
        lr: float,
        init: str,
        scale: float | None,
        seed: int,
        staleness: int,
        **options: Any,
    ) -> None:
        super().__init__()
        if optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer: expected {' or '.join(OPTIMIZERS)}, got {optimizer!r}")
        for name in names:
            if not isinstance(name, str | None):
                raise MisuseError(
                    f"name: expected text, got {name!r}; rows are not counted here: (dim, name)"
                )
        for option in sorted(options.keys() & LACKING.keys()):
            raise ConfigError(f"{option}: {LACKING[option]}")
        for option in options.keys() - OPTIONS:
            near = near_name(option, OPTIONS.union(inspect.signature(type(self)).parameters))
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(sorted(OPTIONS))}"
            raise ConfigError(f"no option {option!r}; {hint}")
        if optimizer == "adagrad":
            options.setdefault("eps", ADAGRAD_EPS)
        rows = current(cluster)
        self.tables = tuple(
            Table(
                name or rows.name(kind), dim, access=optimizer, lr=lr, init=init, scale=scale,
                seed=seed + (i if name is None else names.index(name)), **options,
            )
            for i, name in enumerate(names)  # features of one name share a table
        )  # fmt: skip
        self.embedding_dim = dim
        self.exchange = Exchange(rows, self.tables, padding, staleness)
        self._show_rows(True)

    def _show_rows(self, requires_grad: bool) -> None:
        self.rows = RowsParameter(requires_grad)
        self.rows.show(self.exchange)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.rows is not None:
            self._show_rows(self.rows.requires_grad)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in LACKING:
                raise AttributeError(f"{type(self).__name__}.{name}: {LACKING[name]}") from None
            raise

    def __deepcopy__(self: M, memo: dict[int, Any]) -> M:
        """Copy a module, with the same rows and frozen: a copy for averages must not push."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update({name: copy.deepcopy(it, memo) for name, it in vars(self).items()})
        if copied.rows is not None:
            copied._show_rows(False)
            copied._is_copy = True
        return copied

    @classmethod
    def from_checkpoint(
        cls: type[M],
        checkpoint: SavedTables | str | os.PathLike[str],
        names: str | Sequence[str],
        **options: Any,
    ) -> M:
        """Make a read-only module over the rows of a checkpoint, without a cluster.

        Parameters
        ----------
        checkpoint : SavedTables or path
            Result of `snailps.open_checkpoint`, or the folder that it takes.
        names : str or sequence of str
            Name of the table; for a collection the table of each feature.
        **options
            ``mode``, ``padding_idx``, ``include_last_offset``, as in training.

        Returns
        -------
        module in `eval` mode

        Raises
        ------
        ConfigError
            There is no such table.
        DataError, CheckpointError
            As in `snailps.open_checkpoint`.
        """
        saved = checkpoint if isinstance(checkpoint, SavedTables) else open_checkpoint(checkpoint)
        wanted = [names] if isinstance(names, str) else list(names)
        if missing := [name for name in wanted if name not in saved]:
            raise ConfigError(
                f"no table {missing[0]!r} in {saved.path}: there are {', '.join(saved) or 'none'}"
            )
        return served(cls, [saved[name] for name in wanted], **options)

    @classmethod
    def from_readers(cls: type[M], *readers: TableReader, **options: Any) -> M:
        """Make a read-only module over tables of a running cluster, read through caches.

        Parameters
        ----------
        *readers : TableReader
            Results of `snailps.reader`, one per table.
        **options
            As in `from_checkpoint`.
        """
        return served(cls, readers, **options)

    @property
    def lr(self) -> float:
        """Step size of the next pushes; it may be set at any time, to 0 or more."""
        return self.tables[0].lr * self.exchange.factor

    @lr.setter
    def lr(self, value: float) -> None:
        self.exchange.factor = checked_lr(value) / self.tables[0].lr

    def flush(self) -> None:
        """Wait until all pushes are acknowledged.

        Raises
        ------
        SnailError
            A push was refused, or the cluster has ended.
        """
        self.exchange.flush()

    def cast(self, rows: Tensor) -> Tensor:
        """Convert float32 rows to the type that `to`, `bfloat16`, ... gave the module."""
        return rows.to(self._dtype)  # the same tensor where it has that

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # Served modules have no parameter whose type changes, so the type is kept here.
        self._dtype = fn(torch.empty(0, dtype=self._dtype)).dtype
        return super()._apply(fn, recurse)

    @property
    def _trains(self) -> bool:
        if self.rows is None or not (self.training and torch.is_grad_enabled()):
            return False
        if self._is_copy and not self.rows.requires_grad:
            self._is_copy = False  # warn only once
            warnings.warn(
                f"a copy of a module reads the rows of {self.tables[0].name!r} and does not train "
                "them: call requires_grad_(True) if it is to, or eval() if not",
                stacklevel=5,
            )
        return self.rows.requires_grad

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.pop(f"{prefix}rows", None)
        if row_state.wanted():
            row_state.save_rows(self, destination, prefix)
        if hasattr(destination, "_metadata"):
            metadata, of = destination._metadata.setdefault(prefix[:-1], {}), self.exchange
            trained = [i for i, one in enumerate(self.tables) if one.name in of.trained]
            metadata[STEPS] = (of.number, of.pushed, trained)
            metadata[TABLES] = row_state.described(self.tables)

    def state_dict(self, *args: Any, rows: bool = False, **options: Any) -> Any:
        """As in `torch.nn.Module`; `rows` includes rows as in `snailps.torch.state_dict`."""
        with row_state.with_rows(rows):
            return super().state_dict(*args, **options)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if f"{prefix}rows" in missing_keys:
            missing_keys.remove(f"{prefix}rows")
        saver, pushed, trained = local_metadata.get(STEPS, (0, 0, ()))
        self.exchange.trained |= {one.name for i, one in enumerate(self.tables) if i in trained}
        saved = local_metadata.get(TABLES, ())
        if not row_state.load_rows(self, state_dict, prefix, saved, missing_keys, unexpected_keys):
            self._warn_of_rows(saver, pushed)

    def _warn_of_rows(self, saver: int, pushed: int) -> None:
        """Warn if a loaded state belongs to other rows than the servers have."""
        exchange = self.exchange
        if saver == exchange.number and pushed < exchange.pushed:
            warnings.warn(
                f"load_state_dict leaves the rows of {exchange.names} as they are at the servers, "
                f"{exchange.pushed - pushed:,} steps after the state was taken: it has no rows, as "
                "snailps.torch.state_dict(model, rows=True) has",
                stacklevel=6,
            )
        elif (lacking := exchange.lacking) is not None:
            warnings.warn(
                f"load_state_dict: the state has no rows, and this cluster has none of table "
                f"{lacking!r}, which was trained when it was taken: every id reads as its first "
                "value. Cluster.load brings rows",
                stacklevel=6,
            )

    def __prepare_scriptable__(self) -> None:
        """Raise MisuseError; `torch.jit.script` calls this first."""
        raise MisuseError(NOT_EXPORTED)

    def extra_repr(self) -> str:
        """For `print`."""
        first = self.tables[0]
        names = ", ".join(table.name for table in self.tables[:3])
        more = ", ..." if len(self.tables) > 3 else ""
        return f"{names}{more}, dim={first.dim}, optimizer={first.access}, lr={self.lr:g}"


class Embedding(TableModule):
    """`torch.nn.Embedding` for any 64-bit id, with its rows on the servers.

    Parameters
    ----------
    embedding_dim : int
        Floats per row, at least 1.
    name : str, optional
        Name of the table.  By default ``embedding0``, ``embedding1``, ... in order of construction.
    padding_idx : int, optional
        Id whose row is zeros and never trained.
    optimizer : str
        How servers step a row by its gradient: ``sgd``, ``adagrad``, ``rowwise_adagrad``, ``adam``
        or ``ftrl``.
    lr : float
        Step size.
    init, scale, seed
        First value of a row, which depends on `seed` and id only: as in `snailps.Table`.
    staleness : int
        Bounds asynchrony, in steps of this process: how many steps may be unacknowledged when the
        next one begins, and how many prefetched rows may lack.  0: `backward` returns when the
        servers have stepped the rows.
    cluster : Cluster, optional
        By default the cluster of the innermost ``with`` block, or the job on whose workers the
        module is made.
    **options
        Other options of `snailps.Table`: ``eps``, ``wire``, ``track``, ``beta1``, ...

    Raises
    ------
    ConfigError
        Unknown optimizer or option; for options of PyTorch that do not apply the text says why.
    MisuseError
        `name` is no str: the arguments are (dim, name), without a number of rows.

    Notes
    -----
    `forward` pulls each distinct row once; `backward` sums the gradients of an id and pushes each
    row's sum once.  In `eval` mode and under `torch.no_grad` nothing is pushed, so no row is made.

    Examples
    --------
    >>> with snailps.local_cluster() as cluster:  # doctest: +SKIP
    ...     users = snailps.torch.Embedding(16, "users", lr=0.1)
    ...     users(torch.tensor([7, 1 << 40])).sum().backward()
    """

    def __init__(
        self,
        embedding_dim: int,
        name: str | None = None,
        *,
        padding_idx: int | None = None,
        optimizer: str = "adagrad",
        lr: float = 0.01,
        init: str = "uniform",
        scale: float | None = None,
        seed: int = 0,
        staleness: int = 1,
        cluster: Cluster | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            "embedding", embedding_dim, [name], [as_id(padding_idx)], cluster=cluster,
            optimizer=optimizer, lr=lr, init=init, scale=scale, seed=seed, staleness=staleness,
            **options,
        )  # fmt: skip
        self.padding_idx = padding_idx

    @_left_alone
    def forward(self, input: Tensor) -> Tensor:
        """Look up rows.

        Parameters
        ----------
        input : Tensor
            Integer ids of any shape, on the CPU.

        Returns
        -------
        Tensor
            (\\*input.shape, embedding_dim), float32 unless the module was converted.

        Raises
        ------
        MisuseError
            `input` is not a tensor of integers, or not on the CPU.
        SnailError
            The cluster has ended, or a server did not answer within `request_timeout`.
        """
        lookup = self.exchange.look_up([ids_of(input)], to_train=self._trains)
        rows = gathered(self, lookup)
        return rows.view(*input.shape, self.embedding_dim)

    def prefetch(self, input: Tensor) -> None:
        """Start to pull the rows that a later `forward` of the same ids will need."""
        self.exchange.prefetch([ids_of(input)])


class EmbeddingBag(TableModule):
    """`torch.nn.EmbeddingBag` for any 64-bit id, with its rows on the servers.

    Parameters
    ----------
    embedding_dim, name
        As in `Embedding`; default names are ``embedding_bag0``, ...
    mode : {"mean", "sum", "max"}
        How the rows of a bag are combined.
    include_last_offset : bool
        Whether `offsets` has one more entry, the number of ids.
    padding_idx : int, optional
        Id that is left out of its bag.
    optimizer, lr, init, scale, seed, staleness, cluster, **options
        As in `Embedding`.

    Examples
    --------
    >>> tags = snailps.torch.EmbeddingBag(16, "tags", mode="sum")  # doctest: +SKIP
    >>> tags(torch.tensor([[7, 8], [7, 9]])).shape  # doctest: +SKIP
    torch.Size([2, 16])
    """

    def __init__(
        self,
        embedding_dim: int,
        name: str | None = None,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        optimizer: str = "adagrad",
        lr: float = 0.01,
        init: str = "uniform",
        scale: float | None = None,
        seed: int = 0,
        staleness: int = 1,
        cluster: Cluster | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            "embedding_bag", embedding_dim, [name], [as_id(padding_idx)], cluster=cluster,
            optimizer=optimizer, lr=lr, init=init, scale=scale, seed=seed, staleness=staleness,
            **options,
        )  # fmt: skip
        self.mode, self.include_last_offset = checked_mode(mode), include_last_offset
        self.padding_idx = padding_idx

    @_left_alone
    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Combine the rows of each bag.

        Parameters
        ----------
        input : Tensor
            Integer ids (bags, ids per bag), or (n,) with `offsets`, on the CPU.
        offsets : Tensor, optional
            Integers (bags,), ascending from 0: where each bag begins.
        per_sample_weights : Tensor, optional
            float32 of the shape of `input`; only with mode "sum".

        Returns
        -------
        Tensor
            (bags, embedding_dim), float32 unless the module was converted; zeros for an empty bag.

        Raises
        ------
        MisuseError
            A tensor has another shape, type or device.
        """
        starts = bag_starts(input, offsets, self.include_last_offset)
        weights = sample_weights(per_sample_weights, input, self.mode)
        lookup = self.exchange.look_up([ids_of(input)], to_train=self._trains)
        return bagged(self, lookup, starts, weights, self.mode)

    def prefetch(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> None:
        """Start to pull the rows that a later `forward` of the same ids will need."""
        self.exchange.prefetch([ids_of(input)])


class EmbeddingBagCollection(TableModule):
    """Embedding bags of several features at once: one request per server and batch, one gradient.

    Parameters
    ----------
    embedding_dim : int
        Floats per row, in all tables.
    names : int or sequence of str
        Number of features, or the names of their tables.
    mode : {"sum", "mean", "max"}
        How the rows of a bag are combined.
    padding_idx : int, optional
        Id that is left out of its bag, in every feature.
    optimizer, lr, init, scale, seed, staleness, cluster, **options
        As in `Embedding`.  The seed of table i is ``seed + i``.  Features
        of the same name share a table.

    Examples
    --------
    >>> bags = snailps.torch.EmbeddingBagCollection(16, ["user", "item"])  # doctest: +SKIP
    >>> bags(torch.tensor([[7, 3], [8, 3]])).shape  # doctest: +SKIP
    torch.Size([2, 2, 16])
    """

    def __init__(
        self,
        embedding_dim: int,
        names: int | Sequence[str],
        *,
        mode: str = "sum",
        padding_idx: int | None = None,
        optimizer: str = "adagrad",
        lr: float = 0.01,
        init: str = "uniform",
        scale: float | None = None,
        seed: int = 0,
        staleness: int = 1,
        cluster: Cluster | None = None,
        **options: Any,
    ) -> None:
        named = feature_names(names)
        super().__init__(
            "embedding_bag", embedding_dim, named, [as_id(padding_idx)] * len(named),
            cluster=cluster, optimizer=optimizer, lr=lr, init=init, scale=scale, seed=seed,
            staleness=staleness, **options,
        )  # fmt: skip
        self.mode, self.padding_idx = checked_mode(mode), padding_idx

    @_left_alone
    def forward(self, features: Tensor | Mapping[str, Bags] | Sequence[Bags]) -> Tensor:
        """Combine the rows of each feature's bags.

        Parameters
        ----------
        features : Tensor, mapping or sequence
            A tensor of integer ids (batch, features), with one id per feature.  Or the bags of each
            feature, in the order of the tables or by their names: ids (batch, ids per bag), or a
            pair of ids (n,) and offsets (batch,).

        Returns
        -------
        Tensor
            (batch, features, embedding_dim), float32 unless the module was converted.

        Raises
        ------
        MisuseError
            A tensor has another shape or type, or a feature is missing.
        """
        if isinstance(features, Tensor):
            lookup = self.exchange.look_up(self._columns(features), to_train=self._trains)
            return gathered(self, lookup).view(*features.shape, self.embedding_dim)
        bags = self._bags(features)
        ids = [ids_of(bag[0]) for bag in bags]
        starts = [bag_starts(*bag) for bag in bags]
        if len(set(map(len, starts))) > 1:
            raise MisuseError(
                f"features have unequal numbers of bags: {[len(places) for places in starts]}"
            )
        offsets = np.cumsum([0, *map(len, ids[:-1])])
        joined = np.concatenate(
            [places + int(offset) for places, offset in zip(starts, offsets, strict=True)]
        )
        lookup = self.exchange.look_up(ids, to_train=self._trains)
        rows = bagged(self, lookup, joined, None, self.mode)
        return rows.view(len(self.tables), len(starts[0]), self.embedding_dim).transpose(0, 1)

    def prefetch(self, features: Tensor | Mapping[str, Bags] | Sequence[Bags]) -> None:
        """Start to pull the rows that a later `forward` of the same features will need."""
        if isinstance(features, Tensor):
            self.exchange.prefetch(self._columns(features))
            return
        self.exchange.prefetch([ids_of(bag[0]) for bag in self._bags(features)])

    def _columns(self, features: Tensor) -> Keys:
        tensor("ids", features)
        if features.dim() != 2 or features.shape[1] != len(self.tables):
            raise MisuseError(
                f"expected ids of shape (batch, {len(self.tables)}), got {tuple(features.shape)}"
            )
        return ids_of(features).reshape(features.shape)

    def _bags(
        self, features: Mapping[str, Bags] | Sequence[Bags]
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Return ids and offsets of each feature, in the order of the tables."""
        names = [table.name for table in self.tables]
        if isinstance(features, Mapping):
            if missing := [name for name in names if name not in features]:
                raise MisuseError(f"no bags of feature {missing[0]!r}")
            features = [features[name] for name in names]
        if not isinstance(features, Sequence):
            tensor("ids", features)  # refused
        if len(features) != len(names):
            raise MisuseError(f"expected bags of {len(names)} features, got {len(features)}")
        bags = []
        for name, bag in zip(names, features, strict=True):
            if isinstance(bag, tuple) and len(bag) != 2:
                raise MisuseError(
                    f"bags of feature {name!r}: expected ids, or a pair of ids and offsets, got "
                    f"{len(bag)} of them"
                )
            bags.append(bag if isinstance(bag, tuple) else (bag, None))
        return bags


KINDS = (Embedding, EmbeddingBag, EmbeddingBagCollection)


def served(
    kind: type[M],
    tables: Sequence[RowReader],
    *,
    mode: str | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> M:
    """Make a read-only module of a kind over tables; a collection has one table per feature.

    Options must be as in training; defaults are the defaults of `kind`.
    """
    if kind not in KINDS:
        raise ConfigError(f"expected {', '.join(one.__name__ for one in KINDS)}, got {kind!r}")
    several = kind is EmbeddingBagCollection
    if not tables or (len(tables) > 1 and not several):
        raise ConfigError(f"{kind.__name__}: expected one table, got {len(tables)}")
    declared = tuple(one.table for one in tables)
    if len({table.dim for table in declared}) > 1:
        widths = ", ".join(f"{table.name} {table.dim}" for table in declared)
        raise ConfigError(f"tables of one module have one width, got {widths}")
    module: Any = kind.__new__(kind)
    nn.Module.__init__(module)
    module.tables, module.embedding_dim = declared, declared[0].dim
    padding = [as_id(padding_idx)] * len(tables)
    module.exchange = Exchange(ServedRows(tables), declared, padding, 0)
    module.rows = None
    module.padding_idx = padding_idx
    if kind is not Embedding:
        module.mode = checked_mode(mode or ("sum" if several else "mean"))
        module.include_last_offset = include_last_offset
    result: M = module.eval()
    return result


# --- ids and offsets ------------------------------------------------------------------------------


def as_id(number: int | None) -> int | None:
    """Convert an id to a key: the 64 bits of a negative id are read as unsigned.

    ConfigError: it is no whole number, or has more than 64 bits.
    """
    if number is None:
        return None
    try:
        whole = operator.index(number)
    except (TypeError, ValueError):
        whole = 1 << 64
    if isinstance(number, bool) or not -(1 << 63) <= whole < 1 << 64:
        raise ConfigError(f"padding_idx: expected an id of 64 bits, got {number!r}")
    return whole & (1 << 64) - 1


def feature_names(names: int | Sequence[str]) -> list[str | None]:
    """Return the name of each feature's table; None: it gets a default name.

    ConfigError: there is none, or one text, which is a sequence of names of one letter.
    """
    named: list[str | None] = []
    if isinstance(names, str | bytes | bool):
        raise ConfigError(f"names: expected a number of features or their names, got {names!r}")
    try:
        named = [None] * operator.index(names)  # type: ignore[arg-type]
    except TypeError:
        named = list(names)  # type: ignore[arg-type]
    if not named:
        raise ConfigError("names: expected one feature at least")
    return named


def tensor(what: str, value: Any) -> Tensor:
    """Check that an argument of a module's call is a tensor.

    Raises
    ------
    MisuseError
        It is no tensor; or the call is being traced, to be repeated later without the module.
    """
    if not isinstance(value, Tensor) and not type(value).__module__.startswith("torch.fx"):
        raise MisuseError(
            f"{what}: expected a tensor of PyTorch, got {type(value).__name__}: "
            "torch.as_tensor(...) makes one"
        )
    if torch.jit.is_tracing() or type(value).__name__ in (
        "FakeTensor",
        "FunctionalTensor",
        "Proxy",
    ):
        raise MisuseError(NOT_EXPORTED)
    return value


def ids_of(input: Any, what: str = "ids") -> Keys:
    """Convert ids to keys, uint64 (n,), without a copy if they are int64 and contiguous."""
    input = tensor(what, input)
    if input.is_floating_point() or input.is_complex() or input.dtype == torch.bool:
        raise MisuseError(f"{what}: expected integers, got {input.dtype}")
    if input.device.type != "cpu":
        raise MisuseError(f"{what}: expected a tensor in memory, got one on {input.device}")
    try:
        array: NDArray[Any] = input.detach().numpy()
    except (RuntimeError, TypeError) as error:  # sparse, nested; or inside vmap, grad, ...
        raise MisuseError(
            f"{what}: expected a tensor with values in memory, outside of torch.func, got {error}"
        ) from error
    if array.dtype != np.uint64:
        array = array.astype(np.int64, copy=False)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint64)


def bag_starts(input: Any, offsets: Any, include_last_offset: bool = False) -> NDArray[np.int64]:
    """Return where each bag begins, int64 (bags,)."""
    input = tensor("ids", input)
    offsets = None if offsets is None else tensor("offsets", offsets)
    if input.dim() == 2:
        if offsets is not None:
            raise MisuseError("input of two dimensions takes no offsets: its rows are the bags")
        rows, columns = input.shape
        return np.arange(rows, dtype=np.int64) * columns
    if input.dim() != 1:
        raise MisuseError(f"input: expected one or two dimensions, got {tuple(input.shape)}")
    if offsets is None or offsets.dim() != 1:
        raise MisuseError("input of one dimension takes offsets of one dimension")
    # A copy: `backward` needs them, and a caller may write the next batch into the same tensor.
    starts = ids_of(offsets, "offsets").view(np.int64).copy()
    if include_last_offset:
        if not len(starts) or starts[-1] > len(input):
            raise MisuseError(f"the last offset must be the number of ids, {len(input)} or less")
        if starts[-1] != len(input):
            raise MisuseError(f"the last offset is {starts[-1]}, and there are {len(input)} ids")
        starts = starts[:-1]
    wrong = len(starts) and (
        starts[0] != 0 or starts[-1] > len(input) or bool((starts[1:] < starts[:-1]).any())
    )
    if wrong or (len(input) and not len(starts)):
        raise MisuseError(
            f"offsets must ascend from 0, up to the {len(input)} ids, got {starts.tolist()[:10]}"
        )
    return starts


def sample_weights(weights: Any, input: Tensor, mode: str) -> Tensor | None:
    """Check weights and return them as float32 (n,), or None."""
    if weights is None:
        return None
    weights = tensor("per_sample_weights", weights)
    if weights.is_complex():
        raise MisuseError(f"per_sample_weights: expected real numbers, got {weights.dtype}")
    if mode != "sum":
        raise MisuseError(f"per_sample_weights need mode 'sum', not {mode!r}")
    if weights.shape != input.shape:
        raise MisuseError(
            f"per_sample_weights have shape {tuple(weights.shape)}, ids {tuple(input.shape)}"
        )
    return weights.reshape(-1).float()


def checked_mode(mode: str) -> str:
    """Return the mode; ConfigError for an unknown one."""
    if mode not in MODES:
        raise ConfigError(f"mode: expected {' or '.join(MODES)}, got {mode!r}")
    return mode


# --- several modules ------------------------------------------------------------------------------


def prefetch(*calls: Sequence[Any]) -> None:
    """Start the pulls of several modules together, in one packet per server if they fit.

    Parameters
    ----------
    *calls : sequence
        A module and the arguments of its next call: ``(users, ids)``, ``(words, ids, offsets)``.

    Examples
    --------
    >>> snailps.torch.prefetch(*zip(model.bags, ids.unbind(1)))  # doctest: +SKIP
    """
    with corked([module.exchange for module, *_ in calls]):
        for module, *arguments in calls:
            module.prefetch(*arguments)


def give(ctx: Any, rows: NDArray[np.float32]) -> None:
    """Accept the gradient of a lookup's rows in a backward pass: push it at the end, or hold it."""
    exchange: Exchange = ctx.module.exchange
    backward = outermost(ctx.enclosing)
    if not exchange.unscales:
        backward.refuse_scaled()
    if not exchange.give(ctx.lookup, rows):
        backward.gathered(ready_to_push).setdefault(exchange, []).append((ctx.lookup, rows))


def plain(exchange: Exchange, gradient: Tensor) -> NDArray[np.float32]:
    """Convert a gradient to an array; MisuseError if it must itself be differentiated."""
    if gradient.requires_grad:
        raise MisuseError(
            f"backward(create_graph=True): the gradient of the rows of {exchange.names} goes to "
            "the servers, and cannot be differentiated again: freeze them with "
            "requires_grad_(False), or use torch.autograd.grad(..., inputs, create_graph=True) "
            "of other inputs"
        )
    return gradient.contiguous().numpy()


# --- autograd -------------------------------------------------------------------------------------


class _Gather(torch.autograd.Function):
    """Gathers rows, or sums them by bag; weights of ids get no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        module: TableModule,
        lookup: Lookup,
        starts: NDArray[np.int64] | None,
        weights: NDArray[np.float32] | None,
    ) -> Tensor:
        ctx.module, ctx.lookup, ctx.starts, ctx.weights = module, lookup, starts, weights
        ctx.enclosing = enclosing()
        return looked_up(lookup, starts, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        lookup: Lookup = ctx.lookup
        exchange: Exchange = ctx.module.exchange
        values = plain(exchange, gradient)
        if lookup.is_plain and ctx.starts is None:
            give(ctx, values if exchange.borrows else values.copy())
            return None, None, None, None, None
        rows = exchange.buffers.take(lookup.starts[-1], lookup.rows.shape[1])
        rows.fill(0.0)
        add_to_rows(values, lookup.places, rows, ctx.starts, ctx.weights)
        give(ctx, rows)
        return None, None, None, None, None


class _PulledRows(torch.autograd.Function):
    """Hands the rows to operations of PyTorch; their gradient is pushed."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, module: TableModule, lookup: Lookup) -> Tensor:
        ctx.module, ctx.lookup, ctx.enclosing = module, lookup, enclosing()
        return torch.from_numpy(lookup.rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        give(ctx, plain(ctx.module.exchange, gradient).copy())
        return None, None, None


def looked_up(
    lookup: Lookup, starts: NDArray[np.int64] | None, weights: NDArray[np.float32] | None
) -> Tensor:
    """Return the row of each id (n, dim), or the weighted sum of each bag (bags, dim)."""
    rows, places = torch.from_numpy(lookup.rows), torch.from_numpy(lookup.places)
    if starts is None:
        return rows if lookup.is_plain else F.embedding(places, rows)
    factors = None if weights is None else torch.from_numpy(weights)
    at = torch.from_numpy(starts.astype(np.int32))
    return F.embedding_bag(places, rows, at, mode="sum", per_sample_weights=factors)


def gathered(module: TableModule, lookup: Lookup) -> Tensor:
    """Return the row of each id, connected to autograd if the module trains."""
    if not module._trains:
        return module.cast(looked_up(lookup, None, None))
    return module.cast(_Gather.apply(module.rows, module, lookup, None, None))


def bagged(
    module: TableModule,
    lookup: Lookup,
    starts: NDArray[np.int64],
    weights: Tensor | None,
    mode: str,
) -> Tensor:
    """Return a row for each bag, connected to autograd if the module trains."""
    trains = module._trains
    learnt = weights is not None and weights.requires_grad and torch.is_grad_enabled()
    if mode == "max" or learnt:
        rows = torch.from_numpy(lookup.rows)
        if trains:
            rows = _PulledRows.apply(module.rows, module, lookup)
        bags = F.embedding_bag(
            torch.from_numpy(lookup.places), rows, torch.from_numpy(starts.astype(np.int32)),
            mode=mode, per_sample_weights=weights, padding_idx=lookup.padding_place,
        )  # fmt: skip
        return module.cast(bags)
    # A copy: `backward` needs them, and a caller may write the next batch into the same tensor.
    factors = None if weights is None else weights.detach().numpy().copy()
    if factors is not None and lookup.has_padding:  # else an infinite weight of padding gives NaN
        factors = np.where(lookup.places < lookup.starts[-1], factors, np.float32(0))
    if mode == "mean":
        factors = mean_factors(lookup, starts)
    if not trains:
        return module.cast(looked_up(lookup, starts, factors))
    return module.cast(_Gather.apply(module.rows, module, lookup, starts, factors))


def mean_factors(lookup: Lookup, starts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return for each id 1 / (number of ids in its bag, without padding)."""
    n = len(lookup.places)
    sizes = np.diff(starts, append=n)
    of = np.repeat(np.arange(len(starts)), sizes)
    counted = lookup.places < lookup.starts[-1]
    counts = np.bincount(of[counted], minlength=len(starts))
    return (1.0 / np.maximum(counts, 1)[of]).astype(np.float32)
