"""Declarations of tables and tensors, and the checks of the keys and values users pass.

    Table(...) -> to_dict -> Declare -> master -> MakeTables -> server -> Shard.add_table

Owns what a declaration may say; each receiver validates it again.  No sockets and no rows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snailps.abi.loops import init_rows
from snailps.api.access_method import load_method
from snailps.dataclass import dataclass
from snailps.errors import ConfigError, MisuseError, NotFinite

Keys = NDArray[np.uint64]
Rows = NDArray[np.float32]
AnyKeys = Keys | NDArray[Any] | Sequence[int]
"""The forms of keys that `as_keys` takes."""
_DTYPES = {name: np.dtype(name) for name in ("float32", "int64", "uint64")}
"""NumPy's own objects, which nearly all arrays share: `is` is seven times as fast as ``==``."""
_UINT64, _FLOAT32 = _DTYPES["uint64"], _DTYPES["float32"]
_LR_SCALES = (int, float, np.floating)

DIM_MAX = 65_536
TENSOR_CHUNK = 1024
"""Values of a tensor in one row: 4 KiB, so that a frame carries 64 rows and even a small tensor
spreads over the shards."""
_SHARED_WITH_TENSOR = (
    "access", "init", "scale", "lr", "eps", "seed", "beta1", "beta2", "l1", "l2", "beta", "wire",
    "finite",
)  # fmt: skip
_ACCESS = {
    "add": 0, "sgd": 1, "adagrad": 2, "adam": 3, "ftrl": 4, "average": 5, "momentum": 6,
    "rowwise_adagrad": 7,
}  # of _row_ops.h  # fmt: skip
_INTEGERS = {
    ("min", "uint64"): (8, (1 << 64) - 1),
    ("max", "uint64"): (9, 0),
    ("min", "int64"): (10, (1 << 63) - 1),
    ("max", "int64"): (11, 1 << 63),
    ("or", "uint64"): (12, 0),
    ("or", "int64"): (12, 0),
    ("again", "uint64"): (13, 0),
    ("again", "int64"): (13, 0),
}
"""Of an access method and a type: its number in _row_ops.h; the bits of the value that changes no
other one."""
_INTEGER_ACCESS = ("min", "max", "or", "again")
_PYTHON = 14
INIT_SCALE = 0.05
"""Default scale of drawn first values, usual for embeddings.  Rows of zeros would have gradients of
zero in most models."""
_INIT = {"zeros": 0, "uniform": 1, "normal": 2, "factors": 3}
_INIT_BITS = 4
_STATE_ROWS = {"adagrad": 1, "adam": 2, "ftrl": 2, "average": 1, "momentum": 1}
"""Floats of state a row, as a multiple of `dim`; see `_STATE_MORE`."""
_STATE_MORE = {"adam", "average", "rowwise_adagrad"}
"""Access methods with one float of state more."""
_TRACK = {"": 0, "touch": 1}
ADMIT_MAX = 100
ADMIT_BYTES = 64 << 20
_ADDED = {
    "admit_after": 0, "admit_bytes": ADMIT_BYTES, "rows_max": 0, "age_max": 0, "finite": True,
}  # fmt: skip
"""Fields that checkpoints of 0.1.0 lack."""
_WIRE = ("float32", "float16", "int8", "auto")
_TAKES_REPEATED = {"add", "sgd", "average", *_INTEGER_ACCESS}
"""Access methods that take the values of a repeated key one after the other: for floats that is the
same as one push of their sum, and integers are not summed."""
_ADDS_STATE = {"add", "sgd", "adagrad", "rowwise_adagrad", "ftrl"}
_SCALES_LR = {"sgd", "adagrad", "rowwise_adagrad", "adam", "momentum"}
"""Access methods whose step size a push may scale; FTRL's z holds for one step size only."""
_STEPS = _SCALES_LR | {"ftrl"}
_NEEDS_EPS = {"adagrad", "rowwise_adagrad", "adam"}


def as_keys(given: object, where: str = "") -> Keys:
    """Convert integers from 0 to 2^64 - 1 to uint64 (n,), without a copy if they are that already.

    `where` begins the message of a `MisuseError`: other numbers, or another shape.
    """
    if type(given) is np.ndarray and given.dtype == np.uint64 and given.ndim == 1:
        # `==` also holds for the other byte order, which is not a uint64 in C.
        return given if given.dtype.isnative else given.astype(np.uint64)
    expected = "integers from 0 to 2^64 - 1, one dimension"
    array = _as_array("keys", expected, given, where)
    if array.ndim != 1:
        raise _refuse("keys", expected, array, where)
    return _as_integers("keys", expected, given, array, _UINT64, where)


def _as_integers(
    name: str, expected: str, given: object, array: NDArray[Any], dtype: np.dtype[Any], where: str
) -> NDArray[Any]:
    """Convert `array`, made of `given`, to a type of 64-bit integers, if that changes no number."""
    if not array.size and not isinstance(given, np.ndarray):  # an empty list has no type
        return np.empty(array.shape, dtype)
    low, high = (0, 1 << 64) if dtype.kind == "u" else (-1 << 63, 1 << 63)
    numbers: Any
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and array is not given):
        # NumPy gives either for Python integers that no type holds.
        try:
            numbers = [operator.index(number) for number in np.array(given, object).ravel()]
        except TypeError:
            raise _refuse(name, expected, array, where, f", {_shortened(array)}") from None
        wrong = np.array([not low <= number < high for number in numbers], bool)
    elif array.dtype.kind in "iu":
        numbers = array.ravel()
        wrong = np.zeros(0, bool)
        if array.size and array.dtype.kind != dtype.kind:  # at one end
            if dtype.kind == "u" and numbers.min() < 0:
                wrong = numbers < 0
            elif dtype.kind == "i" and numbers.max() >= high:
                wrong = numbers > np.uint64(high - 1)
    else:
        raise _refuse(name, expected, array, where, f", {_shortened(array)}")
    if wrong.any():
        first = int(np.argmax(wrong))
        place = first if array.ndim == 1 else np.argwhere(wrong.reshape(array.shape))[0].tolist()
        raise _refuse(name, expected, array, where, f", {numbers[first]} at place {place}")
    if isinstance(numbers, list):
        return np.array(numbers, dtype).reshape(array.shape)
    return np.ascontiguousarray(array, dtype)


def _refuse(
    name: str, expected: str, array: NDArray[Any], where: str, got: str = ""
) -> MisuseError:
    return MisuseError(
        f"{where}{': ' if where else ''}{name}: expected {expected}; got {array.dtype} of shape "
        f"{array.shape}{got}"
    )


def as_rows(given: object, where: str = "") -> Rows:
    """Convert values to float32, without a copy if they are that already.

    `where` begins the message of a `MisuseError` (no numbers) or a `NotFinite` (a finite number
    that float32 cannot hold).
    """
    if type(given) is np.ndarray and given.dtype == np.float32 and given.dtype.isnative:
        return given
    array = _as_array("values", "numbers", given, where)
    if array.dtype.kind not in "fiub":
        what = f", {_shortened(array)}"
        raise _refuse("values", "numbers that become float32", array, where, what)
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array, np.float32)
    if array.dtype.itemsize > 4 and np.isinf(rows).any():
        beyond = np.argwhere(np.isinf(rows) & np.isfinite(array)).tolist()
        if beyond:
            raise NotFinite(
                f"{where}{': ' if where else ''}values: expected numbers within float32, whose "
                f"largest is 3.4e38; got {array[tuple(beyond[0])]} at place {beyond[0]}"
            )
    return rows


def _as_array(name: str, expected: str, given: object, where: str) -> NDArray[Any]:
    if isinstance(given, np.ma.MaskedArray) and np.any(given.mask):
        raise MisuseError(  # whose hidden elements would count as any other
            f"{where}{': ' if where else ''}{name}: expected an array without hidden elements, got "
            f"a masked one that hides {np.count_nonzero(given.mask):,}: give filled(value), or "
            "leave them out"
        )
    try:
        return np.asarray(given)
    except ValueError:
        raise MisuseError(
            f"{where}{': ' if where else ''}{name}: expected {expected}; got a "
            f"{type(given).__name__} of parts of unequal length: {str(given)[:80]}"
        ) from None


def _shortened(array: NDArray[Any]) -> str:
    return np.array2string(array, threshold=6, edgeitems=3).replace("\n", " ")[:80]


@dataclass(frozen=True, slots=True)
class Table:
    """A named set of rows of one width and one access method.

    Attributes
    ----------
    name : str
        1 to 64 letters, digits, "_", "-" or ".".
    dim : int
        Values in a row, 1 to 65,536; of integers to 32,768.
    access : str
        What a push does to a row: ``add``, ``sgd``, ``momentum``, ``adagrad``,
        ``rowwise_adagrad``, ``adam``, ``ftrl``, ``average`` (docs/access_methods.md has the
        formulae), or ``package.module:Class``, an `AccessMethod` that every server can import; of
        integers ``min``, ``max``, ``or`` or ``again``.
    init : str
        First value of a row, a function of `seed` and the key alone: ``zeros``, ``uniform`` (in
        ``[-scale, scale)``), ``normal`` (standard deviation ``scale``) or ``factors`` (``normal``,
        with 0 in column 0, for a weight followed by factors).  Of integers ``identity``: the value
        that changes no other one, such as the largest for ``min``.  ``""`` (the default): the first
        of these that the type has.
    scale : float
        Scale of `init`.  None (the default): 0.05, or 0 if `init` is ``zeros``.
    lr : float
        Step size; FTRL's alpha.
    eps : float
        Added to the root that AdaGrad and Adam divide by.
    seed : int
        uint64.
    dtype : str
        Type of the values: ``float32``; or ``uint64`` or ``int64``, for ``min``, ``max``, ``or``
        and ``again``, whose pushes may come in any order; but for ``again``, one may come twice.
        Rows of integers keep all bits, in memory, on the network and in files; they take no other
        `wire`, `track`, `admit_after`, `rows_max` or `age_max` than the defaults.
    beta1, beta2 : float
        Adam's decay of the two moments; `beta1` is also momentum's decay.
    l1, l2 : float
        FTRL's penalties: l1 is what abs(z) has to exceed for a weight that is not 0, l2 a factor
        of the weight in each gradient.
    beta : float
        FTRL's beta: how slowly the step size starts to fall.
    track : str
        What is stored with each row: ``""`` (nothing) or ``touch`` (the tick of its last push).
    admit_after : int
        Which push of a key makes its row, 0 to 100 (0 and 1: the first).  Earlier pushes change
        nothing, so that rare keys take no memory.  Not for ``average`` and classes.
    admit_bytes : int
        Memory of the counts of pushes, over all servers (standbys need as much again).  The counts
        reach back over about an eighth as many pushes of keys without rows.
    rows_max : int
        Most rows of the table, over all servers (standbys hold as many again); 0: no limit.  Beyond
        it the rows that were pushed least recently are deleted, and start anew when they are pushed
        again.  Each fragment (`frag_num`) has an equal share.  Not for ``average``.
    age_max : int
        A row is deleted once this many values were pushed to the table since its own last push, at
        the latest after one and a half times as many, and starts anew when it is pushed again.  0:
        never.  Each fragment counts its equal share.  Not for ``average``.
    wire : str
        Type of the rows on the network: ``float32``, ``float16``, ``int8`` (with a scale a row) or
        ``auto``.  ``auto`` means float16 on a network below 400 MB/s, else float32 (always on a
        single machine without TLS).  With `Worker.narrow_rows` rows of ``add`` and ``sgd`` are int8
        below 30 MB/s, else float16; with `Worker.narrow_deltas` their pushes are int8 anywhere.
        `Worker.forward` and `backward` send float16 to several shards.  In a job with clocks
        ``auto`` is float32.  Rows in memory are float32.  Rows with state, rows of ``average``, and
        a push with values that the type cannot hold always travel as float32.
    finite : bool
        Whether NaN and infinite values are refused, in pushes and in an export.  False: they are
        numbers like others, for an access method that works with them.

    Examples
    --------
    >>> table = Table("vectors", 100, access="adagrad", lr=0.1, init="uniform")
    >>> table.scale, table.state_floats
    (0.05, 100)
    """

    name: str
    dim: int
    access: str = "add"
    init: str = ""
    scale: float | None = None
    lr: float = 0.0
    eps: float = 1e-8
    seed: int = 0
    dtype: str = "float32"
    beta1: float = 0.9
    beta2: float = 0.999
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0
    track: str = ""
    wire: str = "float32"
    admit_after: int = 0
    admit_bytes: int = ADMIT_BYTES
    rows_max: int = 0
    age_max: int = 0
    finite: bool = True

    def __post_init__(self) -> None:
        def refuse(what: str, expected: str, got: object) -> ConfigError:
            return ConfigError(f"table {self.name!r}: {what}: expected {expected}, got {got!r}")

        plain = isinstance(self.name, str) and self.name.replace("_", "a").replace("-", "a")
        if not plain or len(self.name) > 64 or not plain.replace(".", "a").isalnum():
            raise refuse("name", "1 to 64 letters, digits, '_', '-' or '.'", self.name)
        if not isinstance(self.dtype, str) or self.dtype not in _DTYPES:
            raise refuse("dtype", " or ".join(_DTYPES), self.dtype)
        integers = self.dtype != "float32"
        dim_max = DIM_MAX // 2 if integers else DIM_MAX
        if type(self.dim) is not int or not 1 <= self.dim <= dim_max:
            raise refuse("dim", f"1 to {dim_max}", self.dim)
        if integers and self.access not in _INTEGER_ACCESS:
            expected = f"{', '.join(_INTEGER_ACCESS)} for rows of {self.dtype}"
            raise refuse("access", expected, self.access)
        if self.access == "again" and self.dim % 2:
            raise refuse("dim", "an even number for access 'again': bits, and bits again", self.dim)
        if not integers and self.access in _INTEGER_ACCESS:
            raise refuse("dtype", f"uint64 or int64 for access {self.access!r}", self.dtype)
        if not integers and not (
            isinstance(self.access, str) and (self.in_python or self.access in _ACCESS)
        ):
            raise refuse("access", " or ".join(_ACCESS) + " or package.module:Class", self.access)
        inits = ("identity",) if integers else tuple(_INIT)
        if self.init == "":
            object.__setattr__(self, "init", inits[0])
        if not isinstance(self.init, str) or self.init not in inits:
            raise refuse("init", " or ".join(inits), self.init)
        if self.scale is None:
            drawn = self.init not in ("zeros", "identity")
            object.__setattr__(self, "scale", INIT_SCALE if drawn else 0.0)
        for field in ("scale", "lr", "eps", "l1", "l2", "beta"):
            value = getattr(self, field)
            if not isinstance(value, int | float) or not 0 <= value < 1e30:
                raise refuse(field, "a number, 0 or more", value)
        for field in ("beta1", "beta2"):
            value = getattr(self, field)
            # It is sent as float32: 0.99999999 would become 1, and its correction 0.
            if not isinstance(value, int | float) or not 0 <= value <= 1 - 2**-24:
                raise refuse(field, "a number from 0, below 1", value)
        if self.access in _STEPS and self.lr < 1e-30:
            raise refuse("lr", f"more than 0 for access {self.access!r}", self.lr)
        if self.access in _NEEDS_EPS and self.eps < 1e-30:
            raise refuse("eps", f"more than 0 for access {self.access!r}", self.eps)
        if self.access == "ftrl" and self.beta < 1e-30:
            raise refuse("beta", "more than 0 for access 'ftrl'", self.beta)
        if self.access == "average" and self.dim == DIM_MAX:
            raise refuse("dim", f"1 to {DIM_MAX - 1} for access 'average'", self.dim)
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise refuse("seed", "0 to 2^64 - 1", self.seed)
        if not isinstance(self.track, str) or self.track not in _TRACK:
            raise refuse("track", " or ".join(map(repr, _TRACK)), self.track)
        if self.wire not in _WIRE:
            raise refuse("wire", " or ".join(_WIRE), self.wire)
        for field, most in (
            ("admit_after", ADMIT_MAX),
            ("admit_bytes", 1 << 40),
            ("rows_max", 1 << 48),
            ("age_max", 1 << 48),
        ):
            value = getattr(self, field)
            if type(value) is not int or not 0 <= value <= most:
                raise refuse(field, f"a whole number from 0 to {most:,}", value)
        if type(self.finite) is not bool:
            raise refuse("finite", "True or False", self.finite)
        # Integers are not rounded, and forget no push: a row would depend on the order of its
        # pushes then, and on how often one came.
        keeps_all = integers or self.access == "average"
        for field, expected, refused in (
            ("admit_after", "0", (keeps_all or self.in_python) and self.admit_after > 1),
            ("rows_max", "0", keeps_all and self.rows_max),
            ("age_max", "0", keeps_all and self.age_max),
            ("track", "''", integers and self.track),
            ("wire", "float32", integers and self.wire != "float32"),
        ):
            if refused:
                whose = f"rows of {self.dtype}" if integers else f"access {self.access!r}"
                raise refuse(field, f"{expected} for {whose}", getattr(self, field))

    def to_dict(self) -> dict[str, Any]:
        """Give the declaration as plain values, for a message."""
        return {field: getattr(self, field) for field in self.__slots__}

    @classmethod
    def from_dict(cls, data: object) -> Table:
        """Make a declaration of what `to_dict` gave; `ConfigError` if it is none."""
        if isinstance(data, dict):
            data = {**_ADDED, **data}
        if not isinstance(data, dict) or set(data) != set(cls.__slots__):
            raise ConfigError(f"table: expected the fields {sorted(cls.__slots__)}, got {data!r}")
        return cls(**data)

    @property
    def in_python(self) -> bool:
        """Whether its access method is a user's class."""
        return ":" in self.access

    @property
    def words(self) -> int:
        """Words of 32 bits in a row's values: what shards, clients and files count."""
        return self.dim if self.dtype == "float32" else 2 * self.dim

    def empty(self, count: int, state: bool = False) -> Rows:
        """Make an array for `count` rows, of this table's type."""
        width = self.dim + self.state_floats if state else self.dim
        return np.empty((count, width), _DTYPES[self.dtype])

    def typed(self, words: Rows) -> Rows:
        """View rows as words, float32 (n, `words`), as values of this table's type."""
        return words if self.dtype == "float32" else words.view(_DTYPES[self.dtype])

    @property
    def state_floats(self) -> int:
        """How many float32 values of state follow a row's weights.

        Imports the access method if it is a user's class; `ConfigError` if that fails.
        """
        if self.in_python:
            return load_method(self).state_floats
        return _STATE_ROWS.get(self.access, 0) * self.dim + (self.access in _STATE_MORE)

    def keys(self, given: object) -> Keys:
        """`as_keys`, with this table's name in messages."""
        if type(given) is np.ndarray and given.dtype is _UINT64 and given.ndim == 1:
            return given
        return as_keys(given, f"table {self.name!r}")

    def values(self, given: object) -> Rows:
        """`as_rows`, or integers of this table's type, with its name in messages."""
        dtype, where = _DTYPES[self.dtype], f"table {self.name!r}"
        if type(given) is np.ndarray and given.dtype is dtype:
            return given
        if dtype is _FLOAT32:
            return as_rows(given, where)
        expected = "integers from " + ("0 to 2^64 - 1" if dtype is _UINT64 else "-2^63 to 2^63 - 1")
        array = _as_array("values", expected, given, where)
        return _as_integers("values", expected, given, array, dtype, where)

    def check_width(self, rows: Rows, width: int) -> None:
        """Refuse rows that are not (n, width) of this table's type."""
        dtype = _DTYPES[self.dtype]
        if not isinstance(rows, np.ndarray):
            raise MisuseError(
                f"table {self.name!r}: expected an array {dtype} (n, {width}), got a "
                f"{type(rows).__name__}"
            )
        if rows.dtype is dtype and rows.ndim == 2 and rows.shape[1] == width:
            return
        if rows.ndim != 2 or rows.shape[1] != width or rows.dtype != dtype:
            kind = "" if rows.dtype == dtype else f" of {rows.dtype}, expected {dtype}"
            raise MisuseError(
                f"table {self.name!r} has rows of {width} values, got shape {rows.shape}{kind}"
            )

    def check_lr_scale(self, lr_scale: float) -> float:
        """`lr_scale`, from 0, below 1e30; 1 where the access method has no step to scale."""
        if not isinstance(lr_scale, _LR_SCALES) or not 0 <= lr_scale < 1e30:
            raise MisuseError(
                f"table {self.name!r}: lr_scale: expected a number from 0, below 1e30; "
                f"got {lr_scale!r}"
            )
        if lr_scale != 1 and self.access not in _SCALES_LR:
            raise MisuseError(
                f"table {self.name!r}: access {self.access!r} has no step size that a push may "
                "scale; these have one: " + ", ".join(sorted(_SCALES_LR))
            )
        return float(lr_scale)

    def check_push(
        self, values: NDArray[np.float32], state: bool = False, lr_scale: float = 1.0
    ) -> bool:
        """Whether repeated keys of a push must be summed before sending; refuses wrong values."""
        if self.check_lr_scale(lr_scale) != 1 and state:
            raise MisuseError(
                f"table {self.name!r}: lr_scale goes with gradients; differences of weights and "
                "state are of steps that were taken already"
            )
        self.check_floats("push(state=True)", state)
        if state and self.access not in _ADDS_STATE:
            raise MisuseError(
                f"table {self.name!r}: the state of access {self.access!r} does not add up, so the "
                "optimizer runs at the server only: push gradients, or use one of "
                + ", ".join(sorted(_ADDS_STATE))
            )
        width = self.dim + (self.access == "average")
        self.check_width(values, self.dim + self.state_floats if state else width)
        return not state and self.access not in _TAKES_REPEATED

    def check_floats(self, call: str, asked: bool = True) -> None:
        """Refuse a call that computes with floats where rows are integers."""
        if asked and self.dtype != "float32":
            raise MisuseError(
                f"table {self.name!r}: {call} needs rows of float32, this table has {self.dtype}: "
                "pull rows and push values"
            )

    def check_finite(self, keys: Keys, rows: Rows) -> None:
        """Raise `NotFinite` for stored rows with NaN or infinities, if the table is `finite`."""
        if not self.finite or rows.dtype.kind in "iu" or np.isfinite(rows).all():
            return
        row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
        raise NotFinite(
            f"table {self.name!r}: expected finite rows, got {rows[row, column]} in row "
            f"{keys[row]}, column {column}: its steps have grown beyond float32, and no model is "
            "written. Lower lr, and go on from an earlier checkpoint"
        )

    def fill_first(self, keys: Keys, out: Rows) -> None:
        """Write the first values of keys to `out`, float32 (n, words)."""
        init_rows(*self._first(), keys, out)

    def _first(self) -> tuple[int, float, int]:
        """How a row begins: a kind of init in _row_ops.h, its scale, its seed."""
        if self.dtype != "float32":
            return _INIT_BITS, 0.0, _INTEGERS[self.access, self.dtype][1]
        return _INIT[self.init], float(self.scale or 0.0), self.seed

    def store_arguments(
        self,
    ) -> tuple[int, int, int, float, int, tuple[float, ...], int, tuple[int, int, int, int], bool]:
        """Give the arguments of `Shard.add_table`: dim, access, init, scale, seed, hyper, track,
        retention, finite.
        """
        hyper = (self.lr, self.eps, self.beta1, self.beta2, self.l1, self.l2, self.beta)
        integers = self.dtype != "float32"
        access = _PYTHON if self.in_python else _ACCESS.get(self.access, -1)
        return (
            self.words,
            _INTEGERS[self.access, self.dtype][0] if integers else access,
            *self._first(),
            tuple(map(float, hyper)),
            _TRACK[self.track],
            (self.admit_after, self.admit_bytes, self.rows_max, self.age_max),
            self.finite and not integers,
        )


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense array of any shape: an ordinary table whose keys are the numbers of its chunks.

    Attributes
    ----------
    name : str
        As in `Table`.
    shape : tuple of int
        Sizes of the axes, each at least 1.
    access, init, scale, lr, eps, seed, beta1, beta2, l1, l2, beta, wire, finite
        As in `Table`.

    Notes
    -----
    Stored in C order, `TENSOR_CHUNK` values a row; the last row is padded with values that are
    never read.  Chunks spread over the shards like any keys, so all shards serve a large tensor.

    Examples
    --------
    >>> Tensor("weights", (3, 1000)).keys()
    array([0, 1, 2], dtype=uint64)
    """

    name: str
    shape: tuple[int, ...]
    access: str = "add"
    init: str = "zeros"
    scale: float | None = None
    lr: float = 0.0
    eps: float = 1e-8
    seed: int = 0
    beta1: float = 0.9
    beta2: float = 0.999
    l1: float = 0.0
    l2: float = 0.0
    beta: float = 1.0
    wire: str = "float32"
    finite: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if not self.shape or not all(type(n) is int and n >= 1 for n in self.shape):
            raise ConfigError(
                f"tensor {self.name!r}: shape: expected whole numbers of at least 1, "
                f"got {self.shape!r}"
            )

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def table(self) -> Table:
        """The table that stores it."""
        dim = min(self.size, TENSOR_CHUNK)
        options = {name: getattr(self, name) for name in _SHARED_WITH_TENSOR}
        return Table(self.name, dim, **options)

    def keys(self) -> NDArray[np.uint64]:
        """Keys of the chunks, uint64 (chunks,), in order."""
        dim = min(self.size, TENSOR_CHUNK)
        return np.arange(-(-self.size // dim), dtype=np.uint64)

    def from_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Reshape the rows of all chunks to `shape`, without a copy."""
        return rows.reshape(-1)[: self.size].reshape(self.shape)

    def to_rows(self, values: Any) -> NDArray[np.float32]:
        """Convert an array of `shape` to the rows of all chunks, padded with zeros.

        `MisuseError` for another shape.
        """
        values = as_rows(values, f"tensor {self.name!r}")
        if values.shape != self.shape:
            raise MisuseError(f"tensor {self.name!r} has shape {self.shape}, got {values.shape}")
        rows = np.zeros((len(self.keys()), min(self.size, TENSOR_CHUNK)), np.float32)
        rows.reshape(-1)[: self.size] = np.ravel(values)
        return rows
