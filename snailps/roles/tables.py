"""Declarations of tables and tensors: what a model says of them, and how that travels.

    Table(...) -> to_dict -> Declare -> master -> MakeTables -> server -> ShardThread.add_table

Checked wherever it arrives; no sockets and no rows here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.errors import ConfigError, MisuseError

DIM_MAX = 65_536
TENSOR_CHUNK = 1024
"""Values of a tensor in one row: 4 KiB, so that a frame carries 64 rows and even a small tensor
spreads over the shards."""
_SHARED_WITH_TENSOR = ("access", "init", "scale", "lr", "eps", "seed")
_ACCESS = {"add": 0, "sgd": 1, "adagrad": 2}  # numbers of _ops.pxd
_INIT = {"zeros": 0, "uniform": 1, "normal": 2}


@dataclass(frozen=True, slots=True)
class Table:
    """A named set of rows of one width and one access method.

    Attributes
    ----------
    name : str
        1 to 64 letters, digits, "_", "-" or ".".
    dim : int
        float32 values in a row, 1 to 65,536.
    access : str
        What a push does to a row: ``add`` (``w += value``), ``sgd`` (``w -= lr * value``) or
        ``adagrad`` (per-element steps; Duchi, Hazan, Singer, JMLR 2011).
    init : str
        First value of a row: ``zeros``, ``uniform`` (in ``[-scale, scale)``) or ``normal``
        (standard deviation ``scale``); a function of `seed` and the key alone.
    scale : float
    lr, eps : float
        Step size; added to AdaGrad's root.
    seed : int
        uint64.
    dtype : str
        Type of the values in memory: ``float32``.
    """

    name: str
    dim: int
    access: str = "add"
    init: str = "zeros"
    scale: float = 0.0
    lr: float = 0.0
    eps: float = 1e-8
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        def refuse(what: str, expected: str, got: object) -> ConfigError:
            return ConfigError(f"table {self.name!r}: {what}: expected {expected}, got {got!r}")

        plain = isinstance(self.name, str) and self.name.replace("_", "a").replace("-", "a")
        if not plain or len(self.name) > 64 or not plain.replace(".", "a").isalnum():
            raise refuse("name", "1 to 64 letters, digits, '_', '-' or '.'", self.name)
        if type(self.dim) is not int or not 1 <= self.dim <= DIM_MAX:
            raise refuse("dim", f"1 to {DIM_MAX}", self.dim)
        if not isinstance(self.access, str) or self.access not in _ACCESS:
            raise refuse("access", " or ".join(_ACCESS), self.access)
        if not isinstance(self.init, str) or self.init not in _INIT:
            raise refuse("init", " or ".join(_INIT), self.init)
        for field in ("scale", "lr", "eps"):
            value = getattr(self, field)
            if not isinstance(value, int | float) or not 0 <= value < 1e30:
                raise refuse(field, "a number, 0 or more", value)
        if self.access != "add" and self.lr == 0:
            raise refuse("lr", f"more than 0 for access {self.access!r}", self.lr)
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise refuse("seed", "0 to 2^64 - 1", self.seed)
        if self.dtype != "float32":
            raise refuse("dtype", "float32, the only one so far", self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a message."""
        return {field: getattr(self, field) for field in self.__slots__}

    @classmethod
    def from_dict(cls, data: object) -> Table:
        """The table that `to_dict` wrote.

        Raises
        ------
        ConfigError
            Anything is missing, unknown or out of range.
        """
        if not isinstance(data, dict) or set(data) != set(cls.__slots__):
            raise ConfigError(f"table: expected the fields {sorted(cls.__slots__)}, got {data!r}")
        return cls(**data)

    def store_arguments(self) -> tuple[int, int, int, float, int, tuple[float, ...]]:
        """dim, access, init, scale, seed, hyper, as `ShardThread.add_table` takes them."""
        return (
            self.dim,
            _ACCESS[self.access],
            _INIT[self.init],
            float(self.scale),
            self.seed,
            (float(self.lr), float(self.eps), 0.0, 0.0),
        )


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense array of any shape: an ordinary table whose keys are the numbers of its chunks.

    Attributes
    ----------
    name : str
        As of a `Table`.
    shape : tuple of int
        Sizes of the axes, each at least 1.
    access, init, scale, lr, eps, seed
        As of a `Table`.

    Notes
    -----
    C order; `TENSOR_CHUNK` values a row, the last row is filled up with values that nobody reads.
    Chunks spread over the shards like any keys, so a large tensor is served by all of them.
    """

    name: str
    shape: tuple[int, ...]
    access: str = "add"
    init: str = "zeros"
    scale: float = 0.0
    lr: float = 0.0
    eps: float = 1e-8
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if not self.shape or not all(type(n) is int and n >= 1 for n in self.shape):
            raise ConfigError(
                f"tensor {self.name!r}: shape: expected whole numbers of at least 1, "
                f"got {self.shape!r}"
            )

    @property
    def size(self) -> int:
        """Values in all."""
        return math.prod(self.shape)

    def table(self) -> Table:
        """The table that keeps it."""
        dim = min(self.size, TENSOR_CHUNK)
        options = {name: getattr(self, name) for name in _SHARED_WITH_TENSOR}
        return Table(self.name, dim, **options)

    def keys(self) -> NDArray[np.uint64]:
        """Keys of its chunks, uint64 (chunks,), in order."""
        dim = min(self.size, TENSOR_CHUNK)
        return np.arange(-(-self.size // dim), dtype=np.uint64)

    def from_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows of all chunks as an array of `shape`."""
        return rows.reshape(-1)[: self.size].reshape(self.shape)

    def to_rows(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """An array of `shape` as rows of all chunks, filled up with zeros.

        Raises
        ------
        MisuseError
            Another shape.
        """
        if np.shape(values) != self.shape:
            raise MisuseError(
                f"tensor {self.name!r} has shape {self.shape}, got {np.shape(values)}"
            )
        rows = np.zeros((len(self.keys()), min(self.size, TENSOR_CHUNK)), np.float32)
        rows.reshape(-1)[: self.size] = np.ravel(values)
        return rows
